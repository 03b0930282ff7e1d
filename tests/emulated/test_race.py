"""What the race detector takes for a race, and how it tells it."""

import numpy as np
import pytest
from race_watch import BASE, LANE, B, T, Watch

from gpulab.emulator.happens import Clock
from gpulab.emulator.observe import Access, Lanes, lanes_of
from gpulab.errors import FaultError


@pytest.mark.parametrize(
    ("first", "second", "hazard"),
    [
        ("store", "load", "read-after-write"),
        ("load", "store", "write-after-read"),
        ("store", "store", "write-after-write"),
        ("store", "atomic", "atomic-after-write"),
        ("atomic", "load", "read-after-atomic"),
        ("load", "atomic", "atomic-after-read"),
        ("atomic", "store", "write-after-atomic"),
    ],
)
@pytest.mark.parametrize("space", ["shared", "global"])
def test_a_pair_of_accesses(first: str, second: str, hazard: str, space: str) -> None:
    watch = Watch()
    watch.do(first, 8, [33], space=space, blocks=[1])
    watch.barrier()
    watch.do(second, 8, [2], space=space, blocks=[1])  # ordered: no race
    watch = Watch()
    watch.do(first, 8, [33], space=space, blocks=[1])
    with pytest.raises(FaultError, match="race in k") as caught:
        watch.do(second, 8, [2], space=space, blocks=[1])
    told = caught.value.details
    assert told["fault"] == "race"
    assert (told["space"], told["hazard"]) == (space, hazard)
    assert (told["file"], told["line"], told["other_file"], told["other_line"]) == (
        "k.cu", 2, "k.cu", 1)  # fmt: skip
    assert (told["thread"], told["other_thread"]) == ((2, 0, 0), (1, 2, 0))
    assert told["block"] == told["other_block"] == (1, 0, 0)
    assert caught.value.exit_code == 6


def test_loads_and_atomics_among_themselves() -> None:
    watch = Watch()
    for kind, address in (("load", 0), ("load", 0), ("atomic", 64), ("atomic", 64)):
        watch.do(kind, address)
        watch.do(kind, address, space="global")


def test_the_first_access_after_a_barrier_is_not_ordered_by_it() -> None:
    for first in (0, 63):
        watch = Watch()
        watch.barrier()
        watch.do("store", 0, [first])
        with pytest.raises(FaultError, match="race"):
            watch.do("load", 0, [1])


def test_own_accesses_never_race() -> None:
    watch = Watch()
    for kind in ("store", "load", "store", "atomic", "store", "load"):
        watch.do(kind, 4 * LANE)


def test_blocks_have_shared_memory_of_their_own() -> None:
    watch = Watch()
    watch.do("store", 0, [0])
    watch.watcher.chunk(np.arange(B, 2 * B))
    watch.do("load", 0, [5])  # the next blocks' memory is another


def test_global_memory_between_blocks() -> None:
    watch = Watch()
    watch.do("store", 16, [3], space="global", blocks=[0])
    watch.barrier()  # barriers order nothing between blocks
    with pytest.raises(FaultError) as caught:
        watch.do("load", 16, [3], space="global", blocks=[2])
    told = caught.value.details
    assert (told["block"], told["other_block"]) == ((2, 0, 0), (0, 0, 0))
    assert (told["buffer"], told["address"]) == ("c", BASE + 16)
    assert "byte 16 of c" in caught.value.message
    assert "two blocks" in caught.value.message


def test_global_memory_between_chunks_of_blocks() -> None:
    watch = Watch()
    watch.do("load", 16, [3], space="global", blocks=[0])
    watch.watcher.chunk(np.arange(B, 2 * B))
    lanes = lanes_of(T, [3], [B])
    with pytest.raises(FaultError, match="race"):
        watch.watcher.access(
            Access("global", "store", np.int64([[BASE + 16]]), 4, lanes, "st", None)
        )


def test_all_blocks_storing_to_one_place_race_in_one_instruction() -> None:
    with pytest.raises(FaultError) as caught:
        Watch().do("store", 0, [0], space="global")
    assert caught.value.details["line"] == caught.value.details["other_line"] == 1


def test_syncwarp_orders_a_warp_and_nothing_else() -> None:
    watch = Watch()
    watch.do("store", 4 * LANE)
    watch.syncwarp()
    watch.do("load", 4 * (LANE ^ 1))  # neighbours in the warp: ordered
    with pytest.raises(FaultError, match="no barrier"):
        watch.do("load", 4 * (LANE ^ 32))  # the other warp's


@pytest.mark.parametrize(
    "opcode",
    ["shfl.sync.bfly.b32", "vote.sync.ballot.b32", "match.any.sync.b32", "redux.sync.add.s32",
     "elect.sync", "ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
)  # fmt: skip
def test_exchanges_of_a_warp_order_no_memory(opcode: str) -> None:
    watch = Watch()
    watch.do("store", 4 * LANE, range(32))
    watch.syncwarp(range(32), opcode=opcode)
    with pytest.raises(FaultError, match="race"):
        watch.do("load", 4 * (LANE ^ 1), range(32))


def test_running_in_step_orders_nothing() -> None:
    watch = Watch()
    watch.do("store", 4 * LANE)
    with pytest.raises(FaultError) as caught:
        watch.do("load", 4 * (LANE ^ 1))
    assert "__syncwarp()" in str(caught.value.fix)


def test_member_masks() -> None:
    low = np.uint32([[0x0000FFFF]])
    watch = Watch()
    watch.do("store", 0, [0])
    watch.do("store", 128, [20])
    watch.syncwarp(range(16), low)
    watch.do("load", 0, [15])
    with pytest.raises(FaultError):
        watch.do("load", 0, [16])
    with pytest.raises(FaultError):
        watch.do("load", 128, [15])


def test_lanes_of_one_instruction_may_meet_in_groups() -> None:
    watch = Watch()
    watch.do("store", 4 * LANE)
    watch.syncwarp(None, np.where(LANE % 32 < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32))
    watch.do("load", 4 * (LANE ^ 8))  # inside the halves
    with pytest.raises(FaultError):
        watch.do("load", 4 * (LANE ^ 16))


def test_meetings_carry_on_what_members_knew() -> None:
    watch = Watch()
    watch.do("store", 0, [0])
    watch.syncwarp([0, 1], np.uint32([[0b11]]))
    watch.syncwarp([1, 2], np.uint32([[0b110]]))
    watch.do("load", 0, [2])
    with pytest.raises(FaultError):
        watch.do("load", 0, [3])


def test_a_warp_whose_other_lanes_have_left() -> None:
    watch = Watch()
    watch.do("store", 4 * LANE, range(10))
    watch.syncwarp(range(10))  # full mask, ten lanes still there
    watch.do("load", 4 * (LANE ^ 1), range(10))


def test_a_named_barrier_of_some_warps() -> None:
    watch = Watch()
    watch.do("store", 0, [0])
    watch.watcher.barrier(np.arange(B), None, watch.lanes(range(32)))
    watch.do("load", 0, [31])
    with pytest.raises(FaultError):
        watch.do("load", 0, [32])


def test_named_barriers_carry_on_what_their_warps_knew() -> None:
    one = np.zeros(1, np.int64)
    clock, all_lanes = Clock(96, one, 0), np.arange(96)[:, None]
    for now, warps in ((2, (0, 1)), (4, (1, 2))):
        clock.barrier(one, Lanes(96, one, np.isin(all_lanes // 32, warps)), now)

    def ordered(other: int, time: int, thread: int) -> bool:
        args = (np.array([x], np.int64) for x in (other, time, thread))
        return bool(clock.ordered(*args, one)[0])

    assert ordered(0, 1, 95), "warp 1 knew of it when it met warp 2"
    assert not ordered(0, 3, 95), "it came after warp 0 had met anybody"
    assert ordered(32, 3, 95)
    assert not ordered(95, 3, 0)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("load", "store"), ("load", "atomic"), ("atomic", "store"), ("atomic", "load")],
)
@pytest.mark.parametrize(("own", "seen"), [(0, (15, 3, 0)), (62, (0, 0, 0)), (40, (0, 0, 0))])
def test_no_reader_is_lost_among_many(
    earlier: str, later: str, own: int, seen: tuple[int, int, int]
) -> None:
    watch = Watch()
    watch.do(earlier, 0, [0, 5, 40, 62])
    watch.do(earlier, 0, [63, 30])
    with pytest.raises(FaultError) as caught:
        watch.do(later, 0, [own])
    assert caught.value.details["other_thread"] == seen


def test_a_reader_between_two_others_hides_neither() -> None:
    for own, seen in ((5, (3, 0, 0)), (3, (9, 0, 0)), (9, (3, 0, 0))):
        watch = Watch()
        watch.do("load", 0, [3, 9])
        watch.do("load", 0, [5])
        with pytest.raises(FaultError) as caught:
            watch.do("store", 0, [own])
        assert caught.value.details["other_thread"] == seen


def test_old_readers_make_room_for_new_ones() -> None:
    watch = Watch()
    watch.do("load", 0, [3, 9])
    watch.syncwarp()
    watch.do("load", 0, [7])
    with pytest.raises(FaultError) as caught:
        watch.do("store", 0, [5])
    assert caught.value.details["other_thread"] == (7, 0, 0)


@pytest.mark.parametrize(("nbytes", "threads"), [(1, 16), (2, 8), (4, 4), (8, 2)])
def test_neighbours_in_one_word_do_not_race(nbytes: int, threads: int) -> None:
    watch = Watch()
    watch.do("store", 0, [60], nbytes=16)
    watch.barrier()
    watch.do("store", nbytes * LANE, range(threads), nbytes=nbytes)
    watch.do("load", nbytes * LANE, range(threads), nbytes=nbytes)
    with pytest.raises(FaultError):
        watch.do("load", 0, [60], nbytes=16)


def test_vector_accesses_overlap_narrow_ones() -> None:
    watch = Watch()
    watch.do("load", 12, [1])
    with pytest.raises(FaultError) as caught:
        watch.do("store", 0, [2], nbytes=16)
    assert caught.value.details["address"] == 12
