"""Shared bytes that an asynchronous copy will write: until it lands they must not be read.

Issuing a copy takes the validity of its destination away, whatever was there before, so that the
usual check of a load finds a read that comes too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulab.emulator.values import Array, Mask

if TYPE_CHECKING:
    from gpulab.emulator.sharedmem import SharedMemory

U32 = np.uint32


def touches(shared: SharedMemory, address: Array, bad: Array) -> bool:
    """Whether a byte that lanes ``bad`` read at ``address`` belongs to a copy in flight."""
    if shared.in_flight is None:
        return False
    flags = shared.in_flight.ravel().take((address >> 2) * shared.blocks + shared.columns)
    return bool((flags & bad).any())


def depart(
    shared: SharedMemory, mask: Mask | None, address: Array, nbytes: int, shape: tuple[int, int]
) -> None:
    """A copy to these bytes was issued: until it lands they must not be read."""
    if not shared.track:
        return
    if shared.in_flight is None:
        shared.in_flight = np.zeros((shared.rows, shared.blocks), bool)
    if shared.cell_valid is None:
        shared.cell_valid = np.zeros((shared.rows, shared.blocks), U32)
    words = np.arange(max(nbytes // 4, 1))
    chosen = np.broadcast_to(True if mask is None else mask, shape)
    if address.shape[1] == 1 and (mask is None or mask.shape[1] == 1):
        at = np.broadcast_to(address, (shape[0], 1))[chosen[:, 0], 0]
        rows = ((at >> 2)[:, None] + words).ravel()
        shared.in_flight[rows] = True
        shared.cell_valid[rows] = 0
        shared.row_valid.view(U32)[rows] = 0
        return
    full = np.broadcast_to(address, shape)[chosen]
    column = np.broadcast_to(shared.columns, shape)[chosen]
    rows = (full >> 2)[:, None] + words
    touched = np.unique(rows)
    shared.cell_valid[touched] |= shared.row_valid.view(U32)[touched][:, None]
    shared.row_valid.view(U32)[touched] = 0
    shared.cell_valid[rows, column[:, None]] = 0
    shared.in_flight[rows, column[:, None]] = True


def arrive(
    shared: SharedMemory, mask: Mask | None, address: Array, nbytes: int, shape: tuple[int, int]
) -> None:
    """These bytes have landed (their store follows)."""
    if shared.in_flight is None:
        return
    words = np.arange(max(nbytes // 4, 1))
    chosen = np.broadcast_to(True if mask is None else mask, shape)
    if address.shape[1] == 1 and (mask is None or mask.shape[1] == 1):
        at = np.broadcast_to(address, (shape[0], 1))[chosen[:, 0], 0]
        shared.in_flight[((at >> 2)[:, None] + words).ravel()] = False
        return
    full = np.broadcast_to(address, shape)[chosen]
    column = np.broadcast_to(shared.columns, shape)[chosen]
    shared.in_flight[(full >> 2)[:, None] + words, column[:, None]] = False
