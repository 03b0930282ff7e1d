"""Which accesses of a launch are ordered: time, barriers, warp meetings, fences.

Every event gets a time, 1, 2, 3, ... An access by thread u at time x happens before what thread t
does now if t = u, or if u and t have met since: a meeting at time y orders all that its members did
before y. Kept as times, that is one comparison an access:

* block barrier: one time a block;
* a meeting of all lanes of a warp: one time a warp;
* a meeting of some lanes (a member mask): a 32 x 32 table a warp, made when the first one comes,
  row t, column u = up to when t knows what u did; members take over each other's rows;
* a named barrier of some warps: a warp x warp table a block, likewise; those who only arrived
  (``bar.arrive``) tell what they knew when they did, and are told nothing;
* an mbarrier: ``gpulab.emulator.arrivals``.

Lanes of a warp are NOT ordered by running in step: since sm_70 they may drift apart.

Between blocks only this orders: the first block writes, fences (or its atomic releases), then
does an atomic; later the other block does an atomic. Which address the atomics meet at is not
looked at, so code synchronised through a wrong address passes; correct code never alarms.
Source: PTX ISA, "Memory Consistency Model"; CUDA C++ Programming Guide, "Independent Thread
Scheduling", "Warp Synchronization" and "Memory Fence Functions".
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.arrivals import Arrivals
from gpulab.emulator.observe import WARP, Lanes, places

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Clock:
    """Times of the last meetings of the blocks of one chunk.

    While all blocks of the chunk behave alike one column stands for all of them; ``spread`` gives
    each its own when they part.

    Args:
        threads: threads of a block.
        blocks: linear ids of the chunk's blocks.
        now: the time at which the chunk starts.
    """

    def __init__(self, threads: int, blocks: Ints, now: int) -> None:
        self.threads, self.blocks, self.columns = threads, blocks, 1
        self.warps = -(-threads // WARP)
        self.barriers: Ints = np.full(1, now, np.int64)
        self.meetings: Ints = np.full((self.warps, 1), now, np.int64)
        self.met = False
        self.known: Ints | None = None
        self.named: Ints | None = None
        self.arrivals: Arrivals | None = None
        self._pending: dict[int, Ints] = {}
        self._starts = np.arange(0, threads, WARP)
        self._born = np.minimum(WARP, threads - self._starts)[:, None]

    def spread(self) -> None:
        """Give every block of the chunk a column of its own."""
        if self.columns == 1 and (count := len(self.blocks)) > 1:
            self.columns = count
            self.barriers = np.repeat(self.barriers, count)
            self.meetings = np.repeat(self.meetings, count, axis=1)
            self.known = None if self.known is None else np.repeat(self.known, count, axis=3)
            self.named = None if self.named is None else np.repeat(self.named, count, axis=2)
            self._pending = {k: np.repeat(v, count, axis=1) for k, v in self._pending.items()}

    def barrier(self, blocks: Ints, participants: Lanes | None, now: int) -> None:
        """These blocks (or the named lanes of each of them) meet."""
        if len(blocks) < len(self.blocks):
            self.spread()
        mine = slice(None) if self.columns == 1 else places(self.blocks, blocks)
        if participants is None or participants.everyone:
            self.barriers[mine] = now
            return
        here, named = self._warps(participants)
        rows = np.where(here[:, None], named, 0).max(axis=0)
        both = here[:, None] & here[None]
        self.named = np.where(here[:, None], np.maximum(named, rows[None]), named)
        self.named[both] = now

    def _warps(self, lanes: Lanes) -> tuple[Bools, Ints]:
        """Warps of these lanes (warp, column), and the table of named barriers."""
        here = lanes.per_warp > 0
        if here.shape[1] > 1:
            self.spread()
        if self.named is None:
            self.named = np.zeros((self.warps, self.warps, self.columns), np.int64)
        return np.broadcast_to(here, (self.warps, self.columns)), self.named

    def arrive(self, barrier: int, lanes: Lanes, now: int) -> None:
        """These lanes come to a named barrier and go on."""
        here, named = self._warps(lanes)
        known = np.where(here[:, None], named, 0).max(axis=0)
        known = np.where(here, now, known)
        self._pending[barrier] = np.maximum(self._pending.get(barrier, 0), known)

    def told(self, barrier: int, blocks: Ints, participants: Lanes) -> None:
        """Those who waited at a named barrier are told what those who had arrived knew."""
        if len(blocks) < len(self.blocks):
            self.spread()
        here, named = self._warps(participants)
        pending = self._pending[barrier]
        self.named = np.where(here[:, None], np.maximum(named, pending[None]), named)
        mine = slice(None) if self.columns == 1 else places(self.blocks, blocks)
        pending[:, mine] = 0

    def meet(self, lanes: Lanes, members: NDArray[np.uint32], now: int) -> None:
        """Lanes meet inside their warps, each with those its member mask names."""
        self.met = True
        if self.arrivals is not None:
            self.arrivals.meet(lanes.full)
        bits = np.atleast_2d(np.asarray(members, np.uint32))
        born = ((np.uint64(1) << self._born.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
        if bits.size == 1:
            covers = (born & ~bits) == 0
        else:
            bits = np.broadcast_to(bits, (self.threads, bits.shape[1]))
            lane_covers = (born[np.arange(self.threads) // WARP] & ~bits) == 0
            covers = np.logical_and.reduceat(lane_covers, self._starts, axis=0)
        full = (lanes.per_warp == self._born) & covers
        part = (lanes.per_warp > 0) & ~full
        if full.shape[1] > 1:
            self.spread()
        shape = (self.warps, self.columns)
        self.meetings[np.broadcast_to(full, shape)] = now
        if part.any():
            self._meet_partly(lanes, bits, np.broadcast_to(part, shape), now)

    def _meet_partly(self, lanes: Lanes, bits: NDArray[np.uint32], part: Bools, now: int) -> None:
        if max(bits.shape[1], 1 if lanes.mask is None else np.atleast_2d(lanes.mask).shape[1]) > 1:
            self.spread()
        if self.known is None:
            self.known = np.zeros((self.warps, WARP, WARP, self.columns), np.int64)
        warp, column = np.nonzero(np.broadcast_to(part, (self.warps, self.columns)))
        thread = warp[:, None] * WARP + np.arange(WARP)
        inside, safe = thread < self.threads, np.minimum(thread, self.threads - 1)
        here = lanes.full[safe, column[:, None]] & inside
        mask = np.broadcast_to(bits, (self.threads, max(bits.shape[1], self.columns)))
        mask = mask[safe, column[:, None]]
        named = (mask[:, :, None] >> np.arange(WARP, dtype=np.uint32)) & 1
        together = here[:, :, None] & here[:, None, :] & (named == 1)
        old = self.known[warp, :, :, column]
        new = old.copy()
        for u in range(WARP):
            new = np.maximum(new, np.where(together[:, :, u, None], old[:, u, None, :], 0))
        self.known[warp, :, :, column] = np.where(together, now, new)

    def ordered(self, other: Ints, time: Ints, thread: Ints, column: Ints) -> Bools:
        """Whether what thread ``other`` did at ``time`` happens before ``thread``'s now.

        All arguments int64[n]; threads are linear ids of one block, ``column`` its column.
        """
        done: Bools = (other == thread) | (time < self.barriers[column])
        if self.arrivals is not None:
            own = column if self.columns > 1 else np.zeros_like(column)
            done |= self.arrivals.ordered(other, time, thread, own)
        if not self.met and self.named is None:
            return done
        warp, other_warp = thread // WARP, other // WARP
        same = warp == other_warp
        done |= same & (time < self.meetings[warp, column])
        if self.known is not None:
            done |= same & (time < self.known[warp, thread % WARP, other % WARP, column])
        if self.named is not None:
            done |= time < self.named[warp, other_warp, column]
        return done


class Publications:
    """Ordering between blocks by fences and atomics; see the module text."""

    def __init__(self) -> None:
        self._fenced: dict[int, int] = {}
        self._published: dict[int, tuple[list[int], list[int]]] = {}
        self._acquired: dict[int, int] = {}

    def fence(self, blocks: Ints, now: int) -> None:
        """Some lane of these blocks executes a device-wide fence."""
        self._fenced.update(dict.fromkeys(blocks.tolist(), now))

    def atomic(self, blocks: Ints, now: int, *, releases: bool) -> None:
        """Some lane of these blocks touches global memory atomically."""
        for block in blocks.tolist():
            self._acquired[block] = now
            since = now if releases else self._fenced.pop(block, None)
            if since is not None:
                covers, at = self._published.setdefault(block, ([], []))
                covers.append(since)
                at.append(now)

    def ordered(self, block: Ints, time: Ints, reader: Ints) -> Bools:
        """Whether what ``block`` did at ``time`` happens before ``reader``'s now (int64[n])."""
        out: Bools = np.zeros(len(block), np.bool_)
        if self._published:
            pairs = zip(block.tolist(), time.tolist(), reader.tolist(), strict=True)
            for i, (b, x, r) in enumerate(pairs):
                covers, at = self._published.get(b, ([], []))
                first = bisect_right(covers, x)
                out[i] = first < len(at) and at[first] <= self._acquired.get(r, 0)
        return out
