"""Ordering inside a block through mbarriers: who arrived, and who waited since.

What a thread did before it arrived is ordered before what another does after a wait that comes
later. Which mbarrier and which phase the wait is for is not looked at (a wait that fails is tried
again anyway), so code that waits for the wrong one passes; correct code never alarms.
Source: PTX ISA, "mbarrier" (arrive releases, a successful test_wait acquires, at block scope).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.observe import WARP, Access

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class _Arrival:
    """One event: its time, the lanes, and when each warp last met before it."""

    time: int
    lanes: Bools
    warps: Bools
    meetings: Ints


def of_mbarrier(access: Access) -> bool:
    """Whether an access is an mbarrier operation."""
    return access.opcode.startswith(("mbarrier.", "cp.async.mbarrier."))


class Arrivals:
    """Arrivals and waits of the blocks of one chunk.

    Args:
        threads: threads of a block.
        blocks: blocks of the chunk.
    """

    def __init__(self, threads: int, blocks: int) -> None:
        self._threads, self._blocks = threads, blocks
        self._arrivals: list[_Arrival] = []
        self._waited: Ints | None = None

    def note(self, access: Access, now: int, meetings: Ints) -> None:
        """An mbarrier operation at this time; ``meetings``: last meeting of each warp, (W, C)."""
        lanes = access.lanes.full
        if ".arrive" in access.opcode or "complete_tx" in access.opcode:
            warps = np.add.reduceat(lanes, np.arange(0, self._threads, WARP), axis=0) > 0
            self._arrivals.append(_Arrival(now, lanes, warps, meetings.copy()))
        elif "wait" in access.opcode:
            if self._waited is None:
                self._waited = np.zeros((self._threads, self._blocks), np.int64)
            self._waited[lanes] = now

    def meet(self, lanes: Bools) -> None:
        """Lanes of warps meet: what one has waited for, the others may rely on."""
        if self._waited is None:
            return
        starts = np.arange(0, self._threads, WARP)
        latest = np.maximum.reduceat(np.where(lanes, self._waited, 0), starts, axis=0)
        spread = np.repeat(latest, WARP, axis=0)[: self._threads]
        self._waited = np.where(lanes, np.maximum(self._waited, spread), self._waited)

    def ordered(self, other: Ints, time: Ints, thread: Ints, column: Ints) -> Bools:
        """Whether what ``other`` did at ``time`` happens before ``thread``'s now (int64[n])."""
        done: Bools = np.zeros(len(other), np.bool_)
        if self._waited is None:
            return done
        until = self._waited[thread, column]
        earliest, latest = int(time.min(initial=0)), int(until.max(initial=0))
        for arrival in self._arrivals:
            if not earliest < arrival.time <= latest:
                continue
            told = arrival.lanes[other, column] & (time < arrival.time)
            warp = other // WARP
            met = arrival.meetings[warp, column if arrival.meetings.shape[1] > 1 else 0]
            told |= arrival.warps[warp, column] & (time < met)
            done |= told & (arrival.time <= until)
        return done
