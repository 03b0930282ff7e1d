"""Race detection: two threads, the same byte, at least one store, and nothing that orders them.

What counts as a race:

* load and store, store and load, store and store of different threads that are not ordered
  (``gpulab.emulator.happens`` says what orders). Shared memory, and global memory within a block
  and between blocks; also when the two are lanes of one instruction.
* Two stores of the same value are no race: every outcome is the same (NVIDIA's racecheck tool
  lists such pairs as information only). A later load is then compared with the last of them.
* Atomics do not race with atomics, and strong loads and stores (``.relaxed``, ``.acquire``,
  ``.release``, ``.volatile``) do not race with those; an atomic and a plain access of different
  threads do, unless an atomic (or strong load) at that place, which is ordered before the plain
  access, came after the other and so read what it left: the last block to count may set the
  counter back. Volatile orders nothing: a volatile store to shared memory counts as a plain one.
* Bytes on their way by ``cp.async`` belong to nobody until the copy is waited for: any access to
  them before, the issuing thread's own included, is a race with the copy.

What meets: ``bar.sync`` and its kin order the block. An ``mbarrier`` orders what came before an
arrival with what comes after a wait. ``bar.warp.sync`` orders the lanes of its member mask. The
other ``.sync`` exchanges of a warp (``shfl``, ``vote``, ``match``, ``redux``, ``elect``, ``mma``,
``ldmatrix``) make lanes wait for each other and order no memory: the CUDA guide says so of
shuffles, votes, matches and reductions, and promises ordering for ``__syncwarp()`` alone.
``activemask`` and running in step order nothing either.

The first race stops the launch with a ``FaultError`` that names both threads and both lines.
Source: CUDA C++ Programming Guide, "Memory Fence Functions", "Synchronization Functions" and those
on warp votes, matches, reductions and shuffles; PTX ISA, "Memory Consistency Model",
``bar.warp.sync``, ``cp.async``; compute-sanitizer manual, racecheck.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.arrivals import Arrivals, of_mbarrier
from gpulab.emulator.happens import Clock
from gpulab.emulator.observe import Access, Lanes, LaunchInfo, Location, Observer, Scope
from gpulab.emulator.racereport import Event
from gpulab.emulator.racevisit import LaneIds, Visit, Watch
from gpulab.emulator.shadow import (
    HIGH_ATOMIC,
    HIGH_LOAD,
    LOW_ATOMIC,
    LOW_LOAD,
    PENDING,
    SHIFT,
    STORE,
    Ints,
    Shadow,
)


class RaceDetector(Observer):
    """Raises ``FaultError(fault="race")`` at the first race of a launch."""

    def begin(self, info: LaunchInfo) -> None:
        """Forget everything; global memory is watched buffer by buffer."""
        nobody = np.zeros(1, np.int64)
        self._watch = Watch(info, Clock(info.threads, nobody, 0), nobody, [None])
        self._buffers = sorted(info.allocations, key=lambda a: a.address)
        self._bases = [a.address for a in self._buffers]
        self._global: list[Shadow | None] = [None] * len(self._buffers)
        self._shared = Shadow(info.shared_bytes)

    def chunk(self, blocks: NDArray[np.int64]) -> None:
        """Other blocks run now, with shared memory of their own."""
        watch = self._watch
        watch.blocks, watch.clock = blocks, Clock(watch.info.threads, blocks, self._tick(None))
        self._shared = Shadow(watch.info.shared_bytes)

    def _tick(self, event: Event | None) -> int:
        self._watch.events.append(event)
        return len(self._watch.events) - 1

    def barrier(
        self, blocks: NDArray[np.int64], location: Location, participants: Lanes | None = None
    ) -> None:
        """Everything these blocks did is ordered before what they do next."""
        self._watch.clock.barrier(blocks, participants, self._tick(None))
        self._align()

    def arrive(self, barrier: int, lanes: Lanes) -> None:
        """What these lanes did is ordered before what those do who wait at the barrier."""
        self._watch.clock.arrive(barrier, lanes, self._tick(None))
        self._align()

    def arrived(self, barrier: int, blocks: NDArray[np.int64], participants: Lanes) -> None:
        """See ``arrive``."""
        self._watch.clock.told(barrier, blocks, participants)
        self._align()

    def warp_sync(
        self, lanes: Lanes, members: NDArray[np.uint32], opcode: str, location: Location
    ) -> None:
        """Lanes of a warp have met; only ``bar.warp.sync`` orders their memory accesses."""
        if opcode != "bar.warp.sync":
            return
        self._watch.clock.meet(lanes, members, self._tick(None))
        self._align()

    def fence(self, lanes: Lanes, scope: Scope, location: Location) -> None:
        """A fence that other blocks can see publishes what came before, with the next atomic."""
        if scope != "cta":
            self._watch.published.fence(_blocks_of(lanes), self._tick(None))

    def _align(self) -> None:
        if self._shared.columns < self._watch.clock.columns:
            self._shared.spread(self._watch.clock.columns)

    def access(self, access: Access) -> None:
        """Compare with earlier accesses, then remember this one.

        Raises:
            FaultError: a race.
        """
        if access.space == "local" or access.lanes.count == 0:
            return
        now = self._tick(Event(access.kind, access.opcode, access.location))
        if access.space == "shared":
            if of_mbarrier(access) and access.kind == "load":
                access = replace(access, kind="atomic")  # a wait looks, and does no harm
            lane = self._shared_lanes(access)
            self._visit(self._shared, access, lane, lane.address, now)
            if of_mbarrier(access) and access.kind == "atomic":
                self._meet_later(access, now)
            return
        lane = self._global_lanes(access)
        strong = _strong(access)
        if access.kind == "atomic" or strong:
            releases = access.order in ("release", "acq_rel")
            self._watch.published.atomic(_blocks_of(access.lanes), now, releases=releases)
        for index, part in self._by_buffer(lane):
            shadow = self._global[index]
            if shadow is None:
                shadow = self._global[index] = Shadow(self._buffers[index].nbytes)
            self._visit(shadow, access, part, part.address - self._bases[index], now)

    def _meet_later(self, access: Access, now: int) -> None:
        """An arrival at an mbarrier, or a wait."""
        clock = self._watch.clock
        if clock.arrivals is None:
            clock.arrivals = Arrivals(clock.threads, len(clock.blocks))
        clock.arrivals.note(access, now, clock.meetings)

    def _shared_lanes(self, access: Access) -> LaneIds:
        """Active lanes, thread-major; one column while all blocks do the same."""
        address, mask = np.atleast_2d(access.address), access.lanes.mask
        mask = None if mask is None or access.lanes.everyone else np.atleast_2d(mask)
        if max(address.shape[1], 1 if mask is None else mask.shape[1]) > 1:
            self._watch.clock.spread()
            self._align()
        threads, columns = access.lanes.threads, self._watch.clock.columns
        full = np.broadcast_to(address, (threads, columns))
        if mask is None:
            ids = np.arange(threads * columns)
            thread, column = (ids, np.zeros_like(ids)) if columns == 1 else divmod(ids, columns)
            return LaneIds(full.ravel(), thread, column, thread)
        thread, column = np.nonzero(np.broadcast_to(mask, (threads, columns)))
        return LaneIds(full[thread, column], thread, column, thread)

    def _global_lanes(self, access: Access) -> LaneIds:
        """Active lanes, block-major, so that launch-wide thread ids ascend."""
        lanes = access.lanes
        full = np.broadcast_to(access.address, lanes.shape).T
        if lanes.everyone:
            column, thread = divmod(np.arange(full.size), lanes.threads)
            address = full.ravel()
        else:
            column, thread = np.nonzero(lanes.full.T)
            address = full[column, thread]
        ident = lanes.blocks[column] * lanes.threads + thread
        own = column if self._watch.clock.columns > 1 else np.zeros_like(column)
        return LaneIds(address, thread, own, ident)

    def _by_buffer(self, lane: LaneIds) -> list[tuple[int, LaneIds]]:
        """The lanes by the buffer they touch; accesses outside every buffer are not ours."""
        first = bisect_right(self._bases, int(lane.address.min())) - 1
        last = bisect_right(self._bases, int(lane.address.max())) - 1
        if first == last:
            return [(first, lane)] if first >= 0 else []
        index = np.searchsorted(self._bases, lane.address, side="right") - 1
        parts = ((int(i), np.flatnonzero(index == i)) for i in np.unique(index) if i >= 0)
        return [(i, LaneIds(*(field[chosen] for field in lane))) for i, chosen in parts]

    def _visit(self, shadow: Shadow, access: Access, lane: LaneIds, offset: Ints, now: int) -> None:
        column = lane.column if shadow.columns > 1 else 0
        cells, k = shadow.cells(offset, access.nbytes, column)
        stamps = (now << SHIFT) | lane.ident
        repeated = stamps if k == 1 else np.repeat(stamps, k)
        visit = Visit(self._watch, shadow, access, lane, cells, k, repeated)
        strong = _strong(access)
        if access.phase == "land":
            shadow.stored(cells, repeated)
            return
        visit.compare(STORE)
        if access.kind == "load":
            if strong:
                shadow.observed(cells, repeated)
                return
            visit.compare(LOW_ATOMIC)
            visit.compare(HIGH_ATOMIC)
            shadow.touched(LOW_LOAD, cells, repeated, visit.unordered)
        elif access.kind == "atomic" or strong:
            visit.compare(LOW_LOAD)
            visit.compare(HIGH_LOAD)
            shadow.touched(LOW_ATOMIC, cells, repeated, visit.unordered)
            if access.kind == "atomic":
                shadow.observed(cells, repeated)
        else:
            for which in (LOW_LOAD, HIGH_LOAD, LOW_ATOMIC, HIGH_ATOMIC):
                visit.compare(which)
            flag = PENDING if access.phase == "issue" else 0
            losers = shadow.stored(cells, repeated | flag)
            if len(losers):
                visit.clash(losers)

    def end(self) -> dict[str, Any]:
        """No race was found."""
        return {"races": 0}


def _strong(access: Access) -> bool:
    """Whether a load or store does not race with atomics.

    In shared memory a volatile store is a plain one: that lanes which run in step may exchange
    values through volatile variables is no longer true.
    """
    volatile = ".volatile" in access.opcode
    if access.kind == "store" and access.space == "shared":
        volatile = False
    return access.kind != "atomic" and (access.order != "weak" or volatile)


def _blocks_of(lanes: Lanes) -> Ints:
    if lanes.everyone:
        return lanes.blocks
    return lanes.blocks[lanes.full.any(axis=0)]
