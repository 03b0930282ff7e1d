"""What fences, atomics and strong loads order, between blocks and at one place."""

import pytest
from race_watch import B, Watch

from gpulab.errors import FaultError


def test_fence_and_atomic_publish_to_later_atomics() -> None:
    def last_block_reads(fence: bool) -> None:
        watch = Watch()
        watch.do("store", 64, [0], space="global", blocks=[0])
        if fence:
            watch.watcher.fence(watch.lanes([0], [0]), "gpu", None)
        watch.do("atomic", 0, [0], space="global", blocks=[0])
        watch.do("atomic", 0, [0], space="global", blocks=[1])
        watch.do("load", 64, [7], space="global", blocks=[1])

    last_block_reads(fence=True)
    with pytest.raises(FaultError, match="race"):
        last_block_reads(fence=False)


def test_a_fence_covers_only_what_came_before_it() -> None:
    watch = Watch()
    watch.watcher.fence(watch.lanes([0], [0]), "gpu", None)
    watch.do("store", 64, [0], space="global", blocks=[0])
    watch.do("atomic", 0, [0], space="global", blocks=[0])
    watch.do("atomic", 0, [0], space="global", blocks=[1])
    with pytest.raises(FaultError, match="race"):
        watch.do("load", 64, [7], space="global", blocks=[1])


def test_an_atomic_is_published_to_blocks_that_look_after_it_alone() -> None:
    watch = Watch()
    watch.do("store", 64, [0], space="global", blocks=[0])
    watch.do("load", 0, [0], space="global", blocks=[1], order="acquire")  # too early
    watch.do("store", 0, [0], space="global", blocks=[0], order="release")
    with pytest.raises(FaultError, match="two blocks"):
        watch.do("load", 64, [0], space="global", blocks=[1])


def test_a_fence_of_a_block_publishes_nothing_to_others() -> None:
    watch = Watch()
    watch.do("store", 64, [0], space="global", blocks=[0])
    watch.watcher.fence(watch.lanes([0], [0]), "cta", None)
    watch.do("atomic", 0, [0], space="global", blocks=[0])
    watch.do("atomic", 0, [0], space="global", blocks=[1])
    with pytest.raises(FaultError, match="two blocks"):
        watch.do("load", 64, [7], space="global", blocks=[1])


def test_a_release_orders_what_came_before_it_and_not_itself() -> None:
    watch = Watch()
    watch.do("store", 0, [0], space="global", blocks=[0], order="release")
    watch.do("load", 8, [0], space="global", blocks=[1], order="acquire")  # of another word
    with pytest.raises(FaultError, match="two blocks"):
        watch.do("load", 0, [0], space="global", blocks=[1])


@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize("reset", ["store", "load"])
def test_who_counted_last_may_set_the_counter_back(space: str, reset: str) -> None:
    """What an atomic reads was left by all those before it (PTX: observation, then program
    order)."""
    watch = Watch()
    for thread in (60, 3, 20):  # the last one is at neither end
        watch.do("atomic", 0, [thread], space=space, blocks=[1])
    watch.do("atomic", 8, [40], space=space, blocks=[1])  # of another counter
    with pytest.raises(FaultError, match="atomic"):
        watch.do(reset, 0, [40], space=space, blocks=[1])
    watch.do(reset, 0, [20], space=space, blocks=[1])


def test_the_last_block_may_set_the_counter_back() -> None:
    def kernel(last: int, then: int) -> None:
        watch = Watch()
        watch.do("atomic", 0, [0], space="global")  # all blocks, one after the other
        watch.do("atomic", 0, [0], space="global", blocks=[last])
        watch.barrier()
        watch.do("store", 0, [50], space="global", blocks=[then])

    for last in range(B):
        kernel(last, last)
        with pytest.raises(FaultError, match="two blocks"):
            kernel(last, (last + 1) % B)


@pytest.mark.parametrize("looks", [True, False])
def test_who_saw_the_flag_by_a_strong_load_may_clear_it(looks: bool) -> None:
    watch = Watch()
    watch.do("store", 0, [0], space="global", blocks=[0], order="release")
    if looks:
        watch.do("load", 0, [9], space="global", blocks=[2], order="relaxed")
        watch.do("store", 0, [9], space="global", blocks=[2])
        return
    with pytest.raises(FaultError, match="two blocks"):
        watch.do("store", 0, [9], space="global", blocks=[2])


def test_a_strong_store_has_read_nothing() -> None:
    watch = Watch()
    watch.do("atomic", 0, [0], space="global", blocks=[0])
    watch.do("store", 0, [9], space="global", blocks=[2], order="relaxed")
    with pytest.raises(FaultError, match="two blocks"):
        watch.do("store", 0, [9], space="global", blocks=[2])


@pytest.mark.parametrize("space", ["shared", "global"])
def test_a_volatile_store_races_with_atomics_in_shared_memory_alone(space: str) -> None:
    watch = Watch()
    watch.do("atomic", 0, [0], space=space, blocks=[1])
    if space == "global":
        watch.do("store", 0, [1], space=space, blocks=[1], opcode="st.volatile.global.u32")
        return
    with pytest.raises(FaultError, match="race"):
        watch.do("store", 0, [1], space=space, blocks=[1], opcode="st.volatile.shared.u32")


def test_release_and_acquire_need_no_fence() -> None:
    watch = Watch()
    watch.do("store", 64, [0], space="global", blocks=[0])
    watch.do("store", 0, [0], space="global", blocks=[0], order="release")
    watch.do("load", 0, [0], space="global", blocks=[1], order="acquire")
    watch.do("load", 64, [0], space="global", blocks=[1])
