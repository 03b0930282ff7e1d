"""Local memory of a chunk's lanes: 32-bit words by (word, thread, block).

What nobody stored is no error to load, since a compiler loads early what it may not need; it holds
what a register holds before its first instruction, so that a result made of it is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulab.emulator import elements
from gpulab.emulator.access import settled
from gpulab.emulator.faults import fault
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import Array, Mask

if TYPE_CHECKING:
    from gpulab.emulator.state import State

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64


class LocalMemory:
    """``size`` bytes for each lane of ``shape`` = (threads, blocks), ``unset`` in each word."""

    def __init__(self, size: int, shape: tuple[int, int], unset: int) -> None:
        self.size = size
        self.shape = shape
        self.data = np.full((-(-size // 4), *shape), unset & 0xFFFFFFFF, U32)
        self.lanes = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(shape)

    def check(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        nbytes: int,
        write: bool,
    ) -> None:
        """Bounds and alignment.

        Raises:
            FaultError: out of bounds or misaligned.
        """
        outside = (address < 0) | (address + nbytes > self.size)
        skewed = (address & (nbytes - 1)) != 0
        for kind, bad, word in (
            ("out_of_bounds", outside, "out-of-bounds"),
            ("misaligned", skewed, "misaligned"),
        ):
            if bad.any():
                lanes = bad if mask is None else bad & mask
                t, b = state.first(lanes)
                where = int(np.broadcast_to(address, state.shape)[t, b])
                raise fault(
                    kind,
                    f"{word} {'store to' if write else 'load from'} local memory of {nbytes} "
                    f"bytes at offset {where} (a thread has {self.size} bytes)",
                    instr,
                    thread=state.thread_xyz(t),
                    block=state.block_xyz(b),
                    space="local",
                    offset=where,
                    nbytes=nbytes,
                    lanes=state.count(lanes),
                )

    def load(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        width: int,
        count: int,
    ) -> list[Array]:
        """Read ``count`` elements of ``width`` bytes at frame offsets ``address`` (int64).

        Raises:
            FaultError: out of bounds or misaligned.
        """
        address = settled(address, mask)
        self.check(state, instr, mask, address, width * count, False)
        if state.observers:
            state.report("local", "load", address, width * count, mask, instr)
        return elements.gather(self._word, address, width, count)

    def _word(self, address: Array) -> Array:
        if address.size == 1:
            words: Array = self.data[int(address[0, 0]) >> 2].copy()
            return words
        return self.data.ravel().take((address >> 2) * self.lanes.size + self.lanes)

    def store(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        width: int,
        values: list[Array],
    ) -> None:
        """Write elements of ``width`` bytes (unsigned arrays) at frame offsets ``address``.

        Raises:
            FaultError: out of bounds or misaligned.
        """
        address = settled(address, mask)
        nbytes = width * len(values)
        self.check(state, instr, mask, address, nbytes, True)
        if state.observers:
            state.report("local", "store", address, nbytes, mask, instr, values=tuple(values))
        values, width = elements.pieces(values, width)
        for k, value in enumerate(values):
            at = address + k * width
            if at.size == 1 and mask is None and width == 4:
                self.data[int(at[0, 0]) >> 2] = value
                continue
            per_word = 4 // width
            cells = self.data.view(f"u{width}").ravel()
            index = ((at >> 2) * self.lanes.size + self.lanes) * per_word
            index = index + ((at // width) & (per_word - 1))
            full = np.broadcast_to(value, self.shape)
            if mask is None:
                cells[index] = full
            else:
                chosen = np.broadcast_to(mask, self.shape)
                cells[index[chosen]] = full[chosen]
