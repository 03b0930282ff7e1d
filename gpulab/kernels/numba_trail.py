"""Going over rows of which one is summed while the one before is written, in Numba.

The counterpart of ``raw_kernels/common/behind.cuh``. A thread's ring has room for two rows and for
what is coming. A thread that asks for more than can be on its way is held up until it may go on: so
one row is asked for at first, and a batch of what follows with each that is summed, until the ring
is full; from then on a batch whenever one has been written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.kernels import numba_async
from gpulab.kernels.numba_function import NOTHING, Function, device
from gpulab.kernels.numba_row import Tools
from gpulab.kernels.numba_sweep import Sweeps


class Trail(Sweeps):
    """As ``Sweeps``, of packs of 16 bytes of x. The first two rows go through ``fill``."""

    def __init__(self, kit: Tools) -> None:
        super().__init__(kit, kit.plain)
        batches = self.layout.batches
        self._ring = self.layout.ring // self.layout.batch
        self._at_first = max(batches, self._ring - 2 * batches)
        # Not yet for those of the row before, which is written later.
        self._asked = self._ring - batches

    def fill(self, take: Function) -> Function:
        """``fill(state, rows, here, kept)``: as ``first``, of one of the first two rows."""
        ready, ask = numba_async.wait(self._at_first - 1), self._ask(self._at_first)
        return self._slowly(take, ready, ask)

    def slowly(self, take: Function) -> Function:
        """``slowly(state, rows, here, kept)``: as ``again``, once in a while, with little code."""
        return self._slowly(take, None, None)

    def _slowly(self, take: Function, ready: Function | None, ask: Function | None) -> Function:
        from numba import cuda, uint32

        batch, batches = self._batch(take, None), np.uint32(self.layout.batches)

        @device
        def slowly(state: Any, rows: Any, here: Any, kept: Any) -> Any:
            # gridDim.y is 1, which no compiler knows: the loop is not unrolled.
            i, end = uint32(0), uint32(batches * uint32(cuda.gridDim.y))
            while i < end:
                if ready is not None:
                    ready()
                state = batch(state, (rows, here, kept, NOTHING), i)
                if ask is not None:
                    ask(NOTHING, (rows, here, kept, NOTHING), i)
                i = uint32(i + uint32(1))
            return state

        return slowly

    def _ask(self, ahead: int) -> Function:
        """As of ``Sweeps``; a group of none where there is no such batch or no place yet, so that
        groups can be counted. The row that comes first is there."""
        from numba import cuda, uint32, uint64

        layout, where = self.layout, self._where
        sure, full = ahead == 0, ahead >= self._ring
        batches, cluster = np.uint32(layout.batches), np.uint32(layout.cluster)
        step, some, whole = np.uint32(layout.step), np.uint32(layout.batch), self._whole
        copies = numba_async.copies(layout.threads, layout.step, layout.batch, whole)
        more, ring = np.uint32(ahead), np.uint32(self._ring)
        further = np.uint32(0 if full else ahead)  # places: a whole ring on is the same place

        @device
        def ask(state: Any, what: Any, i: Any) -> Any:
            rows, here, kept, _ = what
            row, turn, slot, count, packs = here
            number = uint32(i + more)
            row = uint32(row + number // batches * (uint32(cuda.gridDim.x) // cluster))
            here = (row, turn, slot, count, packs)
            start, at, to, end = where(here, uint32(i + further), uint32(number % batches))
            several = uint32(0)
            if sure or (row < count and (full or uint32(slot + number) < ring)):
                several = some
                if not whole:
                    several = (end - at - uint32(1)) // step + uint32(1) if at < end else uint32(0)
            copies(kept, uint64(to), rows, start, uint64(several))
            return state

        return ask
