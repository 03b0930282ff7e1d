"""Shared memory of other blocks of a cluster.

``mapa`` gives an address in the ``shared::cluster`` window: the offset in a block's memory, and in
the bits above it the block's rank plus one (nothing there: the lane's own block).

Source: PTX ISA, "mapa", "st", "ld" (.shared::cluster). Observers are not told of accesses to
other blocks' memory: they have no place for the owner, and hear of the cluster barrier instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulab.emulator.faults import fault
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import Array, Mask

if TYPE_CHECKING:
    from gpulab.emulator.state import State

RANK_SHIFT = 24


def mapped(address: Array, rank: Array) -> Array:
    """The address that ``address`` of the own block has in the block of rank ``rank``."""
    kind = address.dtype.type
    low = address & kind((1 << RANK_SHIFT) - 1)
    high = address & ~kind(0xFFFFFFFF) if address.dtype.itemsize == 8 else kind(0)
    place: Array = high | low | ((rank.astype(address.dtype) + kind(1)) << kind(RANK_SHIFT))
    return place


def decoded(
    state: State, instr: Instr, mask: Mask | None, address: Array
) -> tuple[Array, Array | None]:
    """(offset, column of the owning block) of window addresses (int64); None = all own.

    Raises:
        FaultError: a rank outside the cluster.
    """
    rank = (address >> RANK_SHIFT) - 1
    if bool((rank < 0).all()):
        return address, None
    bad = rank >= state.cluster
    bad = bad if mask is None else bad & mask
    if bad.any():
        t, b = state.first(bad)
        raise fault(
            "out_of_bounds",
            f"access to shared memory of block {int(np.broadcast_to(rank, state.shape)[t, b])} "
            f"of a cluster of {state.cluster}",
            instr,
            thread=state.thread_xyz(t),
            block=state.block_xyz(b),
            space="shared",
        )
    own = state.shared.columns
    first = own // state.cluster * state.cluster
    column = np.where(rank < 0, own, first + np.minimum(rank, state.cluster - 1))
    return address & ((1 << RANK_SHIFT) - 1), column


def store(
    state: State, instr: Instr, mask: Mask | None, address: Array, width: int, values: list[Array]
) -> None:
    """Store to the memory of the block that each address names.

    Raises:
        FaultError: out of bounds, misaligned, a rank outside the cluster.
    """
    offset, columns = decoded(state, instr, mask, address)
    if columns is None:
        state.shared.store(state, instr, mask, offset, width, values)
        return
    shared = state.shared
    offset = shared.place(state, instr, mask, offset, width * len(values), True)
    if width == 8:
        low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
        values = [p.astype(np.uint32) for v in values for p in (v & low, v >> half)]
        width = 4
    for k, value in enumerate(values):
        shared.put(mask, offset + k * width, width, value, columns)


def load(
    state: State, instr: Instr, mask: Mask | None, address: Array, width: int, count: int
) -> list[Array]:
    """Load from the memory of the block that each address names.

    Raises:
        FaultError: out of bounds, misaligned, uninitialised, a rank outside the cluster.
    """
    offset, columns = decoded(state, instr, mask, address)
    if columns is None:
        return state.shared.load(state, instr, mask, offset, width, count)
    shared = state.shared
    offset = shared.place(state, instr, mask, offset, width * count, False)
    out = []
    for k in range(count):
        pieces = [
            shared.fetch(state, instr, mask, offset + k * width + i, min(width, 4), columns)
            for i in range(0, width, 4)
        ]
        if width == 8:
            wide = pieces[1].astype(np.uint64) << np.uint64(32)
            pieces = [pieces[0].astype(np.uint64) | wide]
        out.append(pieces[0])
    return out
