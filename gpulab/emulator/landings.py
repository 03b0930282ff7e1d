"""Tensor copies to shared memory that have not landed: they do when somebody waits for them.

Until then their bytes must not be read; then their mbarrier counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.values import U32, Array, Mask

Ints = NDArray[np.int64]


@dataclass
class Landing:
    """A load on its way: words (n, C) to ``rows`` of the memory of the blocks in ``columns``."""

    rows: Ints
    columns: Ints
    words: Array
    nbytes: int


class Landings:
    """Loads of a chunk that have not landed, by the offset of their mbarrier."""

    def __init__(self) -> None:
        self._open: dict[int, list[Landing]] = {}

    def add(self, state: Any, barrier: int, landing: Landing) -> None:
        """Until it has landed, the bytes must not be read."""
        shared = state.shared
        state.signals += 1
        if shared.track:
            if shared.in_flight is None:
                shared.in_flight = np.zeros((shared.rows, shared.blocks), bool)
            _take_over(shared, landing.rows)
            where = landing.rows[:, None], landing.columns[None]
            shared.cell_valid[where] = 0
            shared.in_flight[where] = True
        self._open.setdefault(barrier, []).append(landing)

    def land(self, state: Any, address: Array, mask: Mask | None) -> None:
        """Somebody waits at these addresses: what was to come there comes, and is counted."""
        if not self._open:
            return
        shared = state.shared
        asked = np.broadcast_to(address, np.broadcast_shapes(address.shape, (state.shape[0], 1)))
        if mask is not None:
            shape = np.broadcast_shapes(asked.shape, mask.shape)
            asked = np.broadcast_to(asked, shape)[np.broadcast_to(mask, shape)]
        for barrier in {int(x) for x in np.unique(asked)} & self._open.keys():
            for landing in self._open.pop(barrier):
                where = landing.rows[:, None], landing.columns[None]
                shared.data[where] = landing.words
                if shared.track:
                    shared.cell_valid[where] = 0xFFFFFFFF
                    shared.in_flight[where] = False
                _count(state, barrier, landing)


def _take_over(shared: Any, rows: Ints) -> None:
    """Validity of single blocks from now on, for these rows."""
    if shared.cell_valid is None:
        shared.cell_valid = np.zeros((shared.rows, shared.blocks), U32)
    whole = shared.row_valid.view(U32)
    shared.cell_valid[rows] |= whole[rows][:, None]
    whole[rows] = 0


def _count(state: Any, barrier: int, landing: Landing) -> None:
    from gpulab.emulator.ops.mbarrier import after

    data, row = state.shared.data, barrier >> 2
    for column in landing.columns.tolist():
        word = int(data[row, column]) | int(data[row + 1, column]) << 32
        new = after(word, "complete_tx", landing.nbytes, False)
        assert new is not None
        data[row, column], data[row + 1, column] = new & 0xFFFFFFFF, new >> 32


def landings_of(state: Any) -> Landings:
    """The chunk's loads, made when first needed."""
    if state.boxes is None:
        state.boxes = Landings()
    found: Landings = state.boxes
    return found
