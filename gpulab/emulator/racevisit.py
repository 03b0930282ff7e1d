"""One access against the shadow of the memory it touches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.happens import Clock, Publications
from gpulab.emulator.observe import Access, LaunchInfo, places
from gpulab.emulator.racereport import Event, race_fault, stored_bytes
from gpulab.emulator.shadow import (
    HIGH_ATOMIC,
    LAST_ATOMIC,
    LOW_ATOMIC,
    PENDING,
    SHIFT,
    STORE,
    THREAD,
    Bools,
    Ints,
    Shadow,
)


class LaneIds(NamedTuple):
    """The active lanes of an event: int64[n] each; ``ident`` is what stamps carry."""

    address: Ints
    thread: Ints
    column: Ints
    ident: Ints


@dataclass
class Watch:
    """What a launch has come to: shared by the detector and its visits.

    Args:
        info: the launch.
        clock: meetings inside the blocks of the running chunk.
        blocks: their linear ids.
        events: what happened at each time; None for meetings.
        published: ordering between blocks.
    """

    info: LaunchInfo
    clock: Clock
    blocks: Ints
    events: list[Event | None]
    published: Publications = field(default_factory=Publications)


class Visit:
    """One event on one shadow: finds the lanes that race, and says so."""

    def __init__(
        self,
        watch: Watch,
        shadow: Shadow,
        access: Access,
        lane: LaneIds,
        cells: Ints,
        k: int,
        stamps: Ints,
    ) -> None:
        self.watch, self.shadow, self.access, self.lane = watch, shadow, access, lane
        self.cells, self.k, self.stamps = cells, k, stamps
        self.across = access.space == "global"

    def unordered(self, old: Ints, position: Ints) -> Bools:
        """Whether old stamps race with the lanes at these positions of ``cells``."""
        at = position // self.k
        lane, watch = self.lane, self.watch
        time, other = (old & ~PENDING) >> SHIFT, old & THREAD
        thread, column = lane.thread[at], lane.column[at]
        if self.across:
            threads = watch.info.threads
            block, mine = other // threads, lane.ident[at] // threads
            inside = watch.clock.ordered(other % threads, time, thread, column)
            before = np.where(block == mine, inside, False)
            away = np.flatnonzero((block != mine) & (old != 0))
            if len(away):
                before[away] = watch.published.ordered(block[away], time[away], mine[away])
        else:
            before = watch.clock.ordered(other, time, thread, column)
        racing: Bools = ((old & PENDING) != 0) | ((old != 0) & ~before)
        return racing

    def compare(self, which: int) -> None:
        """Report a race with the accesses stamped in one slot.

        Raises:
            FaultError: there is one.
        """
        slot = self.shadow.slot(which)
        if slot is None:
            return
        old = slot[self.cells]
        suspect = (old ^ self.stamps) & THREAD != 0
        if which == STORE:
            suspect |= old >= PENDING
        if not self.across and self.watch.clock.columns == 1:
            suspect &= old >= self.watch.clock.barriers[0] << SHIFT
        position = np.flatnonzero(suspect & (old != 0))
        if not len(position):
            return
        position = position[self.unordered(old[position], position)]
        if len(position) and which == STORE and self.access.kind == "store":
            position = position[~self._same_value(position, old[position])]
        if len(position) and which in (LOW_ATOMIC, HIGH_ATOMIC):
            position = position[~self._observed(position, old[position])]
        if len(position):
            self._report(int(position[0]), int(old[position[0]]))

    def _observed(self, position: Ints, old: Ints) -> Bools:
        """Whether a later atomic, which is ordered before now, read what the old one left."""
        slot = self.shadow.slot(LAST_ATOMIC)
        if slot is None:
            return np.zeros(len(position), np.bool_)
        last = slot[self.cells[position]]
        return (old <= last) & ~self.unordered(last, position)

    def _same_value(self, position: Ints, old: Ints) -> Bools:
        """Whether the store puts the bytes that are there already."""
        same = np.zeros(len(position), np.bool_)
        peek, access = self.watch.info.peek, self.access
        ours = stored_bytes(access, self._thread(position), self._column(position))
        if peek is None or ours is None or access.phase != "now":
            return same
        blocks = self.watch.blocks[self._column(position)]
        address = self.lane.address[position // self.k]
        there = peek(access.space, blocks, address, access.nbytes)
        width = self.shadow.granule
        first = (position % self.k * width)[:, None] + np.arange(width)
        equal = np.take_along_axis(ours == there, first, axis=1).all(axis=1)
        same[:] = equal & ((old & PENDING) == 0)
        return same

    def clash(self, losers: Ints) -> None:
        """Lanes of one store instruction at one granule: a race unless they store the same.

        Raises:
            FaultError: the values differ or are not known.
        """
        slot = self.shadow.slot(STORE)
        assert slot is not None
        order = np.argsort(self.cells, kind="stable")
        winner = order[np.searchsorted(self.cells[order], self.cells[losers], side="right") - 1]
        mine = self._granule_bytes(losers)
        theirs = self._granule_bytes(winner)
        if mine is not None and theirs is not None and self.access.phase == "now":
            differ = np.flatnonzero((mine != theirs).any(axis=1))
        else:
            differ = np.arange(len(losers))
        if len(differ):
            self._report(int(winner[differ[0]]), int(self.stamps[losers[differ[0]]]))

    def _granule_bytes(self, position: Ints) -> NDArray[np.uint8] | None:
        values = stored_bytes(self.access, self._thread(position), self._column(position))
        if values is None:
            return None
        width = self.shadow.granule
        first = (position % self.k * width)[:, None] + np.arange(width)
        taken: NDArray[np.uint8] = np.take_along_axis(values, first, axis=1)
        return taken

    def _thread(self, position: Ints) -> Ints:
        return self.lane.thread[position // self.k]

    def _column(self, position: Ints) -> Ints:
        """Columns of the chunk (not of the shadow)."""
        if not self.across:
            return self.lane.column[position // self.k]
        blocks = self.lane.ident[position // self.k] // self.watch.info.threads
        return places(self.watch.blocks, blocks)

    def _report(self, position: int, old: int) -> None:
        watch, lane = self.watch, self.lane
        at, threads = position // self.k, watch.info.threads
        time, other = (old & ~PENDING) >> SHIFT, old & THREAD
        column = int(self._column(np.array([position]))[0])
        block = int(watch.blocks[column])
        raise race_fault(
            watch.info,
            self.access,
            address=int(lane.address[at]) + position % self.k * self.shadow.granule,
            thread=(int(lane.thread[at]), block),
            other=(other % threads, other // threads if self.across else block),
            earlier=watch.events[time] or Event("store", "", None),
            pending=bool(old & PENDING),
        )
