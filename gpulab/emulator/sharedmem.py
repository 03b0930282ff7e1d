"""Shared memory of a chunk of blocks, 32-bit words by (word, block), with validity by byte.

An address that is the same in every block (the usual case: it depends on the thread alone) reads
and writes whole rows. Validity is kept twice: ``row_valid`` for bytes valid in every block, and,
once a kernel uses addresses that differ between blocks, ``cell_valid`` for single blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from gpulab.emulator import elements, inflight
from gpulab.emulator.access import settled
from gpulab.emulator.faults import fault
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import Array, Mask

if TYPE_CHECKING:
    from gpulab.emulator.state import State

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
_FULL = {1: U8(0xFF), 2: U16(0xFFFF), 4: U32(0xFFFFFFFF)}


class SharedMemory:
    """``size`` bytes for each of ``blocks`` blocks; ``track`` = look for uninitialised reads."""

    def __init__(self, size: int, blocks: int, track: bool) -> None:
        self.size = size
        self.blocks = blocks
        self.track = track
        self.rows = -(-size // 4)
        self.data = np.zeros((self.rows, blocks), U32)
        self.row_valid = np.zeros(self.rows * 4, U8)
        self.cell_valid: Array | None = None
        self.in_flight: Array | None = None
        self.columns = np.arange(blocks, dtype=np.int64)[None, :]

    # -- checks -------------------------------------------------------------------------------

    def _out(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        bad: Array,
        nbytes: int,
        write: bool,
        kind: str,
        text: str,
    ) -> NoReturn:
        lanes = bad if mask is None else bad & mask
        t, b = state.first(lanes)
        where = int(np.broadcast_to(address, state.shape)[t, b])
        verb = "store to" if write else "load from"
        raise fault(
            kind,
            f"{text} {verb} shared memory of {nbytes} bytes at offset {where} "
            f"(the block has {self.size} bytes)",
            instr,
            thread=state.thread_xyz(t),
            block=state.block_xyz(b),
            space="shared",
            offset=where,
            nbytes=nbytes,
            lanes=state.count(lanes),
            variable=state.shared_name(where),
        )

    def _fits(self, address: Array, nbytes: int) -> bool:
        return (
            int(address.min()) >= 0
            and int(address.max()) + nbytes <= self.size
            and not (nbytes > 1 and int(np.bitwise_or.reduce(address, axis=None)) & (nbytes - 1))
        )

    def place(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        nbytes: int,
        write: bool,
    ) -> Array:
        """Check bounds and alignment; addresses that are in bounds for every lane.

        Raises:
            FaultError: out of bounds or misaligned.
        """
        if self._fits(address, nbytes):
            return address
        address = settled(address, mask)
        if int(address.min()) < 0 or int(address.max()) + nbytes > self.size:
            bad = (address < 0) | (address + nbytes > self.size)
            self._out(
                state, instr, mask, address, bad, nbytes, write, "out_of_bounds", "out-of-bounds"
            )
        if nbytes > 1 and int(np.bitwise_or.reduce(address, axis=None)) & (nbytes - 1):
            bad = (address & (nbytes - 1)) != 0
            self._out(state, instr, mask, address, bad, nbytes, write, "misaligned", "misaligned")
        return address

    def _check_valid(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        nbytes: int,
        columns: Array | None = None,
    ) -> None:
        unit = min(nbytes, 4)
        rows = self.row_valid.view(f"u{unit}")
        index = address // unit
        for k in range(nbytes // unit):
            good = rows.take(index + k) == _FULL[unit]
            if good.all():
                continue
            if self.cell_valid is not None:
                cells = self.cell_valid.view(f"u{unit}").ravel()
                good = good | (
                    cells.take(self._cells(address + k * unit, unit, columns)) == _FULL[unit]
                )
            bad = ~good if mask is None else ~good & mask
            if bad.any():
                flying = inflight.touches(self, address + k * unit, bad)
                self._out(
                    state,
                    instr,
                    mask,
                    address + k * unit,
                    bad,
                    unit,
                    False,
                    "async_in_flight" if flying else "uninitialised",
                    "cp.async not waited for:" if flying else "uninitialised",
                )

    def _cells(self, address: Array, unit: int, columns: Array | None = None) -> Array:
        """Flat index of elements of ``unit`` bytes, in the own block or in given columns."""
        column = self.columns if columns is None else columns
        word: Array = (address >> 2) * self.blocks + column
        if unit == 4:
            return word
        per_word = 4 // unit
        cell: Array = word * per_word + ((address // unit) & (per_word - 1))
        return cell

    # -- loads and stores ---------------------------------------------------------------------

    def load(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        width: int,
        count: int,
    ) -> list[Array]:
        """Read ``count`` elements of ``width`` bytes at window offsets ``address`` (int64).

        Raises:
            FaultError: out of bounds, misaligned, uninitialised, not yet arrived.
        """
        nbytes = width * count
        address = self.place(state, instr, mask, address, nbytes, False)
        if self.track:
            self._check_valid(state, instr, mask, address, nbytes)
        if state.observers:
            state.report("shared", "load", address, nbytes, mask, instr)
        return elements.gather(self._word, address, width, count)

    def _word(self, address: Array, columns: Array | None = None) -> Array:
        row = address >> 2
        if columns is None:
            if row.shape[1] == 1:
                return self.data.take(row[:, 0], axis=0)
            columns = self.columns
        return self.data.ravel().take(row * self.blocks + columns)

    def store(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        width: int,
        values: list[Array],
        *,
        phase: str = "now",
    ) -> None:
        """Write elements of ``width`` bytes (unsigned arrays) at window offsets ``address``.

        Raises:
            FaultError: out of bounds, misaligned.
        """
        nbytes = width * len(values)
        address = self.place(state, instr, mask, address, nbytes, True)
        if state.observers:
            state.report(
                "shared", "store", address, nbytes, mask, instr, values=tuple(values), phase=phase
            )
        values, width = elements.pieces(values, width)
        for k, value in enumerate(values):
            self.put(mask, address + k * width, width, value)

    def fetch(
        self,
        state: State,
        instr: Instr,
        mask: Mask | None,
        address: Array,
        width: int,
        columns: Array | None = None,
    ) -> Array:
        """One element of 1, 2 or 4 bytes at addresses that were checked; validity is looked at.

        ``columns`` names the block to read from where it is not the lane's own.

        Raises:
            FaultError: uninitialised, not yet arrived.
        """
        address = settled(address, mask)
        if self.track:
            self._check_valid(state, instr, mask, address, width, columns)
        word = self._word(address & ~3, columns)
        if width == 4:
            return word
        part: Array = (word >> ((address & 3) << 3).astype(U32)).astype(f"u{width}")
        return part

    def put(
        self,
        mask: Mask | None,
        address: Array,
        width: int,
        value: Array,
        columns: Array | None = None,
    ) -> None:
        """Write one element of 1, 2 or 4 bytes at addresses that were checked.

        ``columns`` names the block to write to where it is not the lane's own.
        """
        if mask is not None and address.shape[1] == 1 < mask.shape[1]:
            address = settled(address, mask)
        whole = mask is None or mask.shape[1] == 1
        if address.shape[1] == 1 and whole and columns is None:
            self._put_rows(mask, address, width, value)
            return
        if self.cell_valid is None:
            self.cell_valid = np.zeros((self.rows, self.blocks), U32)
        index = self._cells(address, width, columns)
        shape = np.broadcast_shapes(index.shape, value.shape, () if mask is None else mask.shape)
        index = np.broadcast_to(index, shape)
        value = np.broadcast_to(value, shape)
        if mask is not None:
            chosen = np.broadcast_to(mask, shape)
            index, value = index[chosen], value[chosen]
        self.data.view(f"u{width}").ravel()[index] = value
        self.cell_valid.view(f"u{width}").ravel()[index] = _FULL[width]

    def _put_rows(self, mask: Mask | None, address: Array, width: int, value: Array) -> None:
        shape = (max(address.shape[0], value.shape[0], 1 if mask is None else mask.shape[0]), 1)
        at = np.broadcast_to(address, shape)[:, 0]
        value = np.broadcast_to(value, (shape[0], value.shape[1]))
        if mask is not None:
            chosen = np.broadcast_to(mask, shape)[:, 0]
            at, value = at[chosen], value[chosen]
        if width == 4:
            self.data[at >> 2] = value
        else:
            cells = self.data.view(f"u{width}").reshape(self.rows, self.blocks, 4 // width)
            cells[at >> 2, :, (at // width) & (4 // width - 1)] = value
        if self.track:
            self.row_valid.view(f"u{width}")[at // width] = _FULL[width]
