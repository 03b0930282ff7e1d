"""Loads and stores of global memory for all lanes at once, with every check.

Addresses are int64 offsets in the arena that broadcast with the mask to (threads, blocks). Lanes
that take no part are given the address of one that does, so that no value is ever out of range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gpulab.emulator.faults import fault
from gpulab.emulator.globalmem import Block
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.spaces import GLOBAL_BASE
from gpulab.emulator.values import Array, Mask

if TYPE_CHECKING:
    from gpulab.emulator.state import State

_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5}
_VALID = {w: np.array((1 << 8 * w) - 1, f"u{w}")[()] for w in (1, 2, 4, 8)}


def settled(address: Array, mask: Mask | None) -> Array:
    """``address`` with lanes outside ``mask`` moved onto a lane inside it."""
    if mask is None:
        return address
    t, b = divmod(int(mask.argmax()), mask.shape[1])
    safe = address[t if address.shape[0] > 1 else 0, b if address.shape[1] > 1 else 0]
    return np.where(mask, address, safe)


def _single(state: State, offset: Array, nbytes: int) -> Block | None:
    """The one block that holds every lane's bytes, aligned; None if it takes a closer look."""
    block = state.memory.find(int(offset.min()))
    if block is None or int(offset.max()) + nbytes > block.end:
        return None
    if nbytes > 1 and int(np.bitwise_or.reduce(offset, axis=None)) & (nbytes - 1):
        return None
    return block


def place(
    state: State, instr: Instr, mask: Mask | None, offset: Array, nbytes: int, write: bool
) -> tuple[Array, Block | None]:
    """Check bounds and alignment.

    Returns:
        Offsets that are in bounds for every lane, and the block if all lanes hit the same one.

    Raises:
        FaultError: out of bounds, misaligned, a store to constant memory.
    """
    block = _single(state, offset, nbytes)
    if block is None and mask is not None:
        offset = settled(offset, mask)
        block = _single(state, offset, nbytes)
    if block is None:
        _check_each(state, instr, mask, offset, nbytes, write)
    elif write and block.read_only:
        _out(state, instr, mask, offset, np.ones((1, 1), bool), nbytes, write, "read_only")
    return offset, block


def _check_each(
    state: State, instr: Instr, mask: Mask | None, offset: Array, nbytes: int, write: bool
) -> None:
    memory = state.memory
    starts = np.array([*memory.starts, 1 << 62], np.int64)
    ends = np.array([*(b.end for b in memory.blocks), 0], np.int64)
    at = np.searchsorted(starts, offset, side="right") - 1
    bad = (at < 0) | (offset + nbytes > ends[at])
    if bad.any():
        _out(state, instr, mask, offset, bad, nbytes, write, "out_of_bounds")
    bad = (offset & (nbytes - 1)) != 0
    if bad.any():
        _out(state, instr, mask, offset, bad, nbytes, write, "misaligned")
    if write:
        closed = np.array([*(b.read_only for b in memory.blocks), False])[at]
        if closed.any():
            _out(state, instr, mask, offset, closed, nbytes, write, "read_only")


def _out(
    state: State,
    instr: Instr,
    mask: Mask | None,
    offset: Array,
    bad: Array,
    nbytes: int,
    write: bool,
    kind: str,
) -> NoReturn:
    lanes = bad if mask is None else bad & mask
    t, b = state.first(lanes)
    count = state.count(lanes)
    where = int(np.broadcast_to(offset, np.broadcast_shapes(offset.shape, state.shape))[t, b])
    block = state.memory.find(where) or state.memory.nearest(where)
    verb = f"{'store to' if write else 'load from'} global memory"
    details: dict[str, Any] = {"address": where + GLOBAL_BASE}
    text = f"{verb} of {nbytes} bytes"
    if block is not None:
        relative = where - block.start
        details |= {"allocation": block.name, "offset": relative, "allocation_bytes": block.nbytes}
        text += f" at offset {relative} of {block.name} ({block.nbytes} bytes)"
    else:
        text += f" at address {where + GLOBAL_BASE:#x} (nothing is allocated)"
    names = {
        "out_of_bounds": "out-of-bounds",
        "misaligned": "misaligned",
        "read_only": "read-only",
        "uninitialised": "uninitialised",
    }
    raise fault(
        kind,
        f"{names[kind]} {text}",
        instr,
        thread=state.thread_xyz(t),
        block=state.block_xyz(b),
        space="global",
        nbytes=nbytes,
        lanes=count,
        **details,
    )


def _check_valid(
    state: State, instr: Instr, mask: Mask | None, offset: Array, width: int, count: int
) -> None:
    """Every byte read was written before.

    Raises:
        FaultError: uninitialised.
    """
    valid = state.memory.valid_by_width[width]
    index = offset >> _SHIFT[width]
    for k in range(count):
        good = valid.take(index + k) == _VALID[width]
        if not good.all():
            bad = ~good
            if mask is not None:
                bad = bad & mask
            if bad.any():
                _out(state, instr, mask, offset + k * width, bad, width, False, "uninitialised")


def load(
    state: State, instr: Instr, mask: Mask | None, address: Array, width: int, count: int
) -> list[Array]:
    """Read ``count`` elements of ``width`` bytes at arena offsets ``address``.

    Raises:
        FaultError: out of bounds, misaligned, uninitialised.
    """
    memory = state.memory
    nbytes = width * count
    offset, block = place(state, instr, mask, address, nbytes, False)
    if memory.track and not (block is not None and block.all_valid):
        _check_valid(state, instr, mask, offset, width, count)
    if state.observers:
        state.report("global", "load", offset + GLOBAL_BASE, nbytes, mask, instr)
    data = memory.by_width[width]
    if count == 1:
        return [data.take(offset >> _SHIFT[width])]
    rows = data[: data.size // count * count].reshape(-1, count)
    both = rows.take(offset >> _SHIFT[nbytes], axis=0)
    return [np.ascontiguousarray(both[..., k]) for k in range(count)]


def store(
    state: State, instr: Instr, mask: Mask | None, address: Array, width: int, values: list[Array]
) -> None:
    """Write elements of ``width`` bytes (unsigned arrays) at arena offsets ``address``.

    Raises:
        FaultError: out of bounds, misaligned, constant memory.
    """
    memory = state.memory
    nbytes = width * len(values)
    offset, block = place(state, instr, mask, address, nbytes, True)
    if state.observers:
        state.report(
            "global", "store", offset + GLOBAL_BASE, nbytes, mask, instr, values=tuple(values)
        )
    data = memory.by_width[width]
    index = offset >> _SHIFT[width]
    shape = np.broadcast_shapes(
        index.shape, *(v.shape for v in values), () if mask is None else mask.shape
    )
    index = np.broadcast_to(index, shape)
    chosen = None
    if mask is not None:
        chosen = np.broadcast_to(mask, shape)
        index = index[chosen]
    for k, value in enumerate(values):
        full = value if value.shape == shape else np.broadcast_to(value, shape)
        data[index + k if k else index] = full if chosen is None else full[chosen]
    if memory.track and not (block is not None and block.all_valid):
        valid = memory.valid_by_width[width]
        for k in range(len(values)):
            valid[index + k] = _VALID[width]
