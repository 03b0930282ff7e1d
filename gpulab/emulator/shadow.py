"""Who touched each byte last: the memory of the race detector.

A shadow covers one stretch of memory in *granules*: 16 bytes at first, halved whenever a narrower
access comes, so that two threads' neighbouring halves are never taken for one. A granule has up
to six *stamps*, each an int64 ``time << 32 | thread`` (0 = nobody yet):

* the last plain store (while an asynchronous copy is on its way to the granule, with ``PENDING``);
* the lowest and the highest thread among the plain loads that nothing later stands for: a load
  that happens before another one is dropped, as whoever races with it races with the later one.
  Loads by two threads race with any store that neither happens before; the two ends of the range
  are enough to notice, because barriers order whole blocks and warps are runs of threads;
* the same two for atomics, and the last one that read what the ones before it left.

Where several lanes of one event touch a granule, NumPy's rule that the last of equal indices wins
makes the highest lane (or, assigned in reverse, the lowest) stay.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SHIFT = 32
THREAD = (1 << SHIFT) - 1
PENDING = 1 << 62
"""Set in the stamp of a store whose bytes are still on their way; it is later than any time."""
COARSEST = 16

STORE, LOW_LOAD, HIGH_LOAD, LOW_ATOMIC, HIGH_ATOMIC, LAST_ATOMIC = range(6)

Unordered = Callable[[Ints, Ints], Bools]
"""``unordered(stamps[n], lanes[n])``: whether the stamped accesses race with the lanes' now.
``lanes`` are positions in the event; nobody's stamp (0) never races."""


class Shadow:
    """Stamps of ``nbytes`` bytes in each of ``columns`` copies (blocks, for shared memory)."""

    def __init__(self, nbytes: int, columns: int = 1) -> None:
        self.granule, self.columns = COARSEST, columns
        self._rows = -(-max(nbytes, 1) // COARSEST)
        self._slots: list[Ints | None] = [None] * 6

    def spread(self, columns: int) -> None:
        """From one column that stands for all blocks to one a block."""
        self.columns = columns
        for i, slot in enumerate(self._slots):
            self._slots[i] = None if slot is None else np.repeat(slot, columns)

    def _refine(self, granule: int) -> None:
        factor = self.granule // granule
        self.granule, self._rows = granule, self._rows * factor
        for i, slot in enumerate(self._slots):
            if slot is not None:
                table = slot.reshape(-1, self.columns)
                self._slots[i] = np.repeat(table, factor, axis=0).ravel()

    def cells(self, offset: Ints, nbytes: int, column: Ints | int) -> tuple[Ints, int]:
        """Granules of an access, int64[n * k] in the order of the lanes, and k."""
        if nbytes < self.granule:
            self._refine(nbytes)
        k = nbytes // self.granule
        first = offset // self.granule
        if k == 1:
            return first * self.columns + column, 1
        spread = (first[:, None] + np.arange(k)) * self.columns
        return (spread + np.reshape(column, (-1, 1))).ravel(), k

    def slot(self, which: int) -> Ints | None:
        """The stamps of one kind, or None if there are none yet."""
        return self._slots[which]

    def _made(self, which: int) -> Ints:
        slot = self._slots[which]
        if slot is None:
            slot = self._slots[which] = np.zeros(self._rows * self.columns, np.int64)
        return slot

    def stored(self, cells: Ints, stamps: Ints) -> Ints:
        """Stamp a store (stamps int64[n * k]).

        Returns:
            Positions whose granule another lane of the same event has stamped as well (it won).
        """
        slot = self._made(STORE)
        slot[cells] = stamps
        return np.flatnonzero(slot[cells] != stamps)

    def observed(self, cells: Ints, stamps: Ints) -> None:
        """Stamp atomics that read (stamps ascending for equal granules)."""
        self._made(LAST_ATOMIC)[cells] = stamps

    def touched(self, low: int, cells: Ints, stamps: Ints, unordered: Unordered) -> None:
        """Stamp loads (``low=LOW_LOAD``) or atomics (``LOW_ATOMIC``).

        Args:
            low: the slot of the lowest thread; the next one holds the highest.
            cells: int64[n * k], granules.
            stamps: int64[n * k], threads ascending for equal granules.
            unordered: tells old stamps that stay from those the new ones stand for.
        """
        thread = stamps & THREAD
        for which, sign in ((low, 1), (low + 1, -1)):
            slot = self._slots[which]
            if slot is None:
                slot = self._made(which)
                kept = stamps
            else:
                old = slot[cells]
                beyond = np.flatnonzero((old != 0) & (sign * (old & THREAD) < sign * thread))
                kept = stamps
                if len(beyond):
                    stays = beyond[unordered(old[beyond], beyond)]
                    if len(stays):
                        kept = stamps.copy()
                        kept[stays] = old[stays]
            if sign > 0:
                slot[cells[::-1]] = kept[::-1]
            else:
                slot[cells] = kept
