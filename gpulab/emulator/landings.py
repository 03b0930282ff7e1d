"""Tensor copies and asynchronous stores on their way: each is made as late as a card may make it.

What an mbarrier counts lands when the block that has it waits there; until then its bytes must not
be read. A store reads shared memory when its thread waits for it, or at the end of the kernel:
what was overwritten meanwhile shows as wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.values import U32, Array, Mask

Ints = NDArray[np.int64]


@dataclass
class Landing:
    """A load, or a store to another block, on its way: words (n, C) to ``rows`` of the shared
    memory of the blocks in ``columns``."""

    rows: Ints
    columns: Ints
    words: Array
    nbytes: int

    def of(self, chosen: NDArray[np.bool_]) -> Landing:
        """That of some of the blocks."""
        return Landing(self.rows, self.columns[chosen], self.words[:, chosen], self.nbytes)


class Landings:
    """What has not landed in a chunk, by the offset of its mbarrier."""

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
        """Somebody waits at these addresses: what was to come there, for the blocks that wait,
        comes, and is counted."""
        if not self._open:
            return
        shape = np.broadcast_shapes(address.shape, () if mask is None else mask.shape)
        shape = np.broadcast_shapes(shape, (1, state.shape[1]))
        asked = np.broadcast_to(address, shape)
        waits = np.broadcast_to(True if mask is None else mask, shape)
        for barrier in {int(x) for x in np.unique(asked[waits])} & self._open.keys():
            here = ((asked == barrier) & waits).any(axis=0)
            on_their_way = self._open.pop(barrier)
            later = []
            for landing in on_their_way:
                now = here[landing.columns]
                if now.any():
                    _land(state, barrier, landing.of(now))
                if not now.all():
                    later.append(landing.of(~now))
            if later:
                self._open[barrier] = later


def _land(state: Any, barrier: int, landing: Landing) -> None:
    shared, where = state.shared, (landing.rows[:, None], landing.columns[None])
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


@dataclass
class Departure:
    """Stores by lanes (threads, columns), each in a group of its thread; ``carry`` makes those of
    some of the lanes."""

    threads: Ints
    columns: Ints
    groups: Ints
    carry: Callable[[NDArray[np.bool_]], None]


class Stores:
    """Stores of a chunk that nobody has waited for."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._closed = np.zeros(shape, np.int64)  # groups a lane has committed
        self._open: list[Departure] = []

    def add(self, threads: Ints, columns: Ints, carry: Callable[[NDArray[np.bool_]], None]) -> None:
        """Into the open groups of these lanes."""
        self._open.append(Departure(threads, columns, self._closed[threads, columns], carry))

    def commit(self, mask: Mask | None) -> None:
        """Close the open groups of these lanes."""
        self._closed += 1 if mask is None else mask.astype(np.int64)

    def wait(self, mask: Mask | None, newest: int) -> None:
        """Make the stores of these lanes but for their ``newest`` newest groups."""
        chosen = np.broadcast_to(True if mask is None else mask, self._closed.shape)
        for one in self._open:
            here = one.threads, one.columns
            ready = chosen[here] & (one.groups < self._closed[here] - newest)
            if ready.any():
                one.carry(ready)
                left = ~ready
                one.threads, one.columns = one.threads[left], one.columns[left]
                one.groups = one.groups[left]
        self._open = [one for one in self._open if len(one.threads)]

    def finish(self) -> None:
        """The kernel has ended: make the rest."""
        for one in self._open:
            one.carry(np.ones(len(one.threads), np.bool_))
        self._open = []


def stores_of(state: Any) -> Stores:
    """The chunk's stores, made when first needed."""
    if state.stores is None:
        state.stores = Stores(state.shape)
    found: Stores = state.stores
    return found
