"""Races that hang on values, order of memory operations and asynchronous copies."""

import numpy as np
import pytest
from race_watch import LANE, T, Watch

from gpulab.errors import FaultError


def test_one_instruction_storing_one_value_is_no_race() -> None:
    watch = Watch(peek=b"\0" * 64)
    watch.do("store", 0, values=(np.float32([[1.0]]),))
    with pytest.raises(FaultError, match=r"store by thread \(7, 0, 0\)"):
        Watch(peek=b"").do("store", 0, values=(np.where(LANE == 7, 2.0, 1.0).astype("f4"),))


def test_unknown_values_are_taken_to_differ() -> None:
    with pytest.raises(FaultError):
        Watch(peek=b"").do("store", 0)


def test_only_the_shared_bytes_are_compared() -> None:
    # Each thread stores a pair; pairs overlap in nothing, then in equal halves, then in others.
    pair = (np.int32(LANE), np.int32(LANE))
    watch = Watch(peek=b"")
    watch.do("store", 8 * LANE, nbytes=8, values=pair)
    watch.barrier()
    same = (np.int32([[5]]), np.int32(LANE * 0 + 6))
    watch.do("store", 0, nbytes=8, values=same)
    with pytest.raises(FaultError):
        watch.do("store", 0, nbytes=8, values=(np.int32([[5]]), np.int32(LANE)))


def test_a_later_store_of_the_value_that_is_there_is_no_race() -> None:
    there = np.int32([7] * 64).tobytes()
    watch = Watch(peek=there)
    watch.do("store", 0, [0], values=(np.int32([[7]]),))
    watch.do("store", 0, [40], values=(np.int32([[7]]),))
    with pytest.raises(FaultError, match="no barrier"):
        watch.do("store", 0, [1], values=(np.int32([[8]]),))


def test_each_part_of_a_wide_store_is_compared_with_what_is_there() -> None:
    there = np.int32([1, 2]).tobytes()
    for second, races in ((2, False), (3, True)):
        watch = Watch(peek=there)
        watch.do("store", 4, [40], values=(np.int32([[2]]),))
        pair = (np.int32([[1]]), np.int32([[second]]))
        if not races:
            watch.do("store", 0, [0], nbytes=8, values=pair)
            continue
        with pytest.raises(FaultError, match="race") as caught:
            watch.do("store", 0, [0], nbytes=8, values=pair)
        assert caught.value.details["address"] == 4


def test_narrow_values_of_wide_registers() -> None:
    watch = Watch(peek=b"\7" * 64)
    watch.do("store", 0, nbytes=2, values=(np.uint32([[0xABCD0707]]),))
    watch.do("store", 0, [1], nbytes=2, values=(np.uint16([[0x0707]]),))


@pytest.mark.parametrize("order", ["relaxed", "acquire"])
def test_strong_loads_do_not_race_with_atomics(order: str) -> None:
    watch = Watch()
    watch.do("atomic", 0, space="global")
    watch.do("load", 0, [1], space="global", order=order)
    watch.do("load", 0, [1], space="global", opcode="ld.volatile.global.u32")
    with pytest.raises(FaultError):
        watch.do("load", 0, [1], space="global")


def test_a_volatile_load_still_races_with_a_plain_store() -> None:
    watch = Watch()
    watch.do("store", 0, [0])
    with pytest.raises(FaultError):
        watch.do("load", 0, [1], opcode="ld.volatile.shared.u32")


def test_volatile_is_for_other_blocks_not_for_other_lanes() -> None:
    watch = Watch()
    watch.do("store", 0, [0], space="global", blocks=[0], opcode="st.volatile.global.u32")
    watch.do("load", 0, [0], space="global", blocks=[1], opcode="ld.volatile.global.u32")
    watch.do("store", 0, [0], opcode="st.volatile.shared.u32")
    with pytest.raises(FaultError):
        watch.do("load", 0, [1], opcode="ld.volatile.shared.u32")


CP = {"opcode": "cp.async.cg.shared.global", "nbytes": 16}


def test_the_bytes_that_are_there_are_no_excuse_under_a_copy() -> None:
    watch = Watch(peek=b"\0" * 64)
    watch.do("store", 0, [0], phase="issue", **CP)
    with pytest.raises(FaultError, match="race"):
        watch.do("store", 0, [1], values=(np.int32([[0]]),))


def test_reading_what_a_copy_has_not_brought() -> None:
    for reader in (0, 1):  # the issuing thread as well
        watch = Watch()
        watch.do("store", 0, [0], phase="issue", **CP)
        watch.barrier()  # a barrier does not wait for copies
        with pytest.raises(FaultError, match="not been waited for") as caught:
            watch.do("load", 4, [reader])
        assert (caught.value.details["line"], caught.value.details["other_line"]) == (2, 1)
        assert "wait" in str(caught.value.fix)


def test_after_the_wait_the_issuing_thread_may_read_and_others_after_a_barrier() -> None:
    watch = Watch()
    watch.do("store", 0, [0], phase="issue", **CP)
    watch.do("store", 0, [0], phase="land", **CP)
    watch.do("load", 4, [0])
    with pytest.raises(FaultError, match="asynchronous copy"):
        watch.do("load", 4, [1])
    watch.barrier()
    watch.do("load", 4, [1])


def test_a_copy_into_what_others_still_read() -> None:
    watch = Watch()
    watch.do("load", 0, [9])
    with pytest.raises(FaultError) as caught:
        watch.do("store", 0, [0], phase="issue", **CP)
    assert caught.value.details["hazard"] == "write-after-read"
    watch = Watch()
    watch.do("load", 0, [9])
    watch.barrier()
    watch.do("store", 0, [0], phase="issue", **CP)


def test_two_copies_to_one_place() -> None:
    watch = Watch()
    watch.do("store", 0, [0], phase="issue", **CP)
    with pytest.raises(FaultError):
        watch.do("store", 0, [0], phase="issue", **CP)


MB = {"nbytes": 8, "order": "acq_rel"}
ARRIVE, WAIT = "mbarrier.arrive.shared.b64", "mbarrier.test_wait.shared.b64"


def test_an_mbarrier_orders_arrivals_before_waits() -> None:
    watch = Watch()
    watch.do("store", 512, [0], nbytes=8, opcode="mbarrier.init.shared.b64")
    watch.barrier()
    watch.do("store", 4 * LANE, range(32))
    watch.do("atomic", 512, range(32), opcode=ARRIVE, **MB)
    watch.do("load", 512, [40], opcode=WAIT, nbytes=8)
    watch.do("load", 4 * LANE - 160, [40])
    watch.do("store", 128, [3])  # after its arrival: not covered
    with pytest.raises(FaultError, match="no barrier"):
        watch.do("load", 128, [40])
    with pytest.raises(FaultError, match="no barrier"):
        watch.do("load", 0, [41])  # has not waited


def test_later_arrivals_do_not_hide_earlier_ones() -> None:
    watch = Watch()
    watch.do("store", 0, [0])
    watch.do("atomic", 512, [0], opcode=ARRIVE, **MB)
    watch.do("load", 512, [40], opcode=WAIT, nbytes=8)
    watch.do("atomic", 520, [0], opcode=ARRIVE, **MB)
    watch.do("load", 0, [40])


def test_one_lane_may_arrive_or_wait_for_its_warp() -> None:
    watch = Watch()
    watch.do("store", 4 * LANE, range(32))
    watch.syncwarp(range(32))
    watch.do("atomic", 512, [0], opcode=ARRIVE, **MB)
    watch.do("load", 512, [32], opcode=WAIT, nbytes=8)
    with pytest.raises(FaultError):
        watch.do("load", 20, [40])
    watch.syncwarp(range(32, 64))
    watch.do("load", 20, [40])


def test_an_mbarrier_must_be_set_up_before_it_is_used() -> None:
    watch = Watch()
    watch.do("store", 512, [0], nbytes=8, opcode="mbarrier.init.shared.b64")
    with pytest.raises(FaultError, match="race"):
        watch.do("atomic", 512, [1], opcode=ARRIVE, **MB)


def test_races_are_found_where_blocks_part() -> None:
    watch = Watch()
    watch.do("store", 4 * LANE)  # all blocks alike
    watch.watcher.barrier(np.arange(1), None)  # block 0 only
    watch.do("load", 4 * (LANE ^ 32), blocks=[0])
    with pytest.raises(FaultError) as caught:
        watch.do("load", 4 * (LANE ^ 32), blocks=[1, 2])
    assert caught.value.details["block"] == (1, 0, 0)


def test_local_memory_is_nobody_elses() -> None:
    watch = Watch()
    watch.do("store", 0, space="local")
    watch.do("load", 0, range(T), space="local")
    assert watch.watcher.end() == {"races": 0}
