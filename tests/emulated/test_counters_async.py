"""Counters of asynchronous copies, fed with accesses whose cost was worked out or recorded."""

import numpy as np
import pytest
from numpy.typing import NDArray
from test_counters import LANE, REQUESTS, SECTORS, ST, T, count, everyone, shared

from gpulab.emulator.observe import Access, Lanes, lanes_of


def test_cp_async_counts_among_the_loads_and_every_lane_of_its_writes() -> None:
    opcode = "cp.async.ca.shared.global"
    read = Access("global", "load", 4 * LANE, 4, everyone(), opcode)
    issue = shared(0 * LANE, 4, "store", opcode=opcode, phase="issue")
    land = shared(0 * LANE, 4, "store", opcode=opcode, phase="land")
    found = count(read, issue, land)
    assert (found[REQUESTS], found[SECTORS]) == (1, 4)
    assert (found["async_copy_requests"], found["async_copy_sectors"]) == (1, 4)
    assert found["global_sector_bytes"] == 4 * 32
    assert found["async_copy_bank_conflicts"] == 31  # one word, 32 writers: no merging
    assert found["smsp__inst_executed_op_ldgsts.sum"] == 1
    assert found[ST] == 0


@pytest.mark.parametrize(
    ("read", "written", "live", "sectors"),
    [
        *((LANE, LANE * step, 32, 16 if step == 1 else 32) for step in (1, 2, 3, 5, 8)),
        *((13 * (LANE // 8) + LANE % 8, LANE ^ (LANE // 8), live, sectors)
          for live, sectors in ((5, 14), (6, 14), (8, 18))),
    ],
)  # fmt: skip
def test_copies_of_16_bytes_meet_in_a_sector_where_they_fill_whole_ones(
    read: NDArray[np.int64], written: NDArray[np.int64], live: int, sectors: int
) -> None:
    """As ncu counted scripts/counter_probes.cu on an H200; lanes from ``live`` of 8 fill zeros."""
    opcode = "cp.async.cg.shared.global"
    lanes = [lane for lane in range(32) if lane % 8 < live] if live < 32 else list(range(32))
    asked = Access("global", "load", 16 * read, 16, lanes_of(T, lanes, [0] * len(lanes)), opcode)
    issue = shared(16 * written, 16, "store", opcode=opcode, phase="issue")
    assert count(asked, issue)["async_copy_sectors"] == sectors


def test_a_copy_of_part_of_its_lanes_is_one_request() -> None:
    # Lanes 0 to 7 read 16 bytes each, lane 8 only 4 (byte by byte), the others nothing.
    opcode = "cp.async.ca.shared.global"
    whole = Access("global", "load", 16 * LANE, 16, lanes_of(T, range(8), [0] * 8), opcode)
    rest = [
        Access("global", "load", 16 * LANE + k, 1, lanes_of(T, [8], [0]), opcode) for k in range(4)
    ]
    issue = shared(16 * LANE, 16, "store", opcode=opcode, phase="issue")
    found = count(whole, *rest, issue)
    assert (found["async_copy_requests"], found["async_copy_sectors"]) == (1, 5)
    assert found["async_copy_bytes"] == 8 * 16 + 4


def test_a_copy_that_only_fills_with_zeros_is_no_request() -> None:
    # Two warps issue; only lane 3 of the second warp reads.
    opcode = "cp.async.cg.shared.global"
    where = np.arange(64)[:, None] * 16
    read = Access("global", "load", where, 16, lanes_of(64, [35], [0]), opcode)
    lanes = Lanes(64, np.arange(1))
    issue = Access("shared", "store", where, 16, lanes, opcode, phase="issue")
    found = count(read, issue)
    assert (found["async_copy_requests"], found["async_copy_sectors"]) == (1, 1)
    assert (found[REQUESTS], found[SECTORS]) == (1, 1)
    assert found["smsp__inst_executed_op_ldgsts.sum"] == 2
    assert (found := count(issue))["async_copy_requests"] == found[REQUESTS] == 0
