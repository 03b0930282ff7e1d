"""Read-modify-write of many lanes at once, with the result of doing it one lane at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import access
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.spaces import GLOBAL_BASE
from gpulab.emulator.values import Array, Mask

_SHIFT = {2: 1, 4: 2, 8: 3}
_ORDERS = ("acquire", "release", "acq_rel")


def run(
    state: Any,
    instr: Instr,
    space: str,
    mask: Mask | None,
    address: Array,
    width: int,
    step: Callable[..., Array],
    values: tuple[Array, ...],
    *,
    integer_add: bool,
    returns: bool,
) -> Array:
    """Apply ``new = step(old, *values)`` at ``address`` for each lane in order.

    Args:
        state: the chunk.
        instr: for faults.
        space: ``global`` or ``shared``.
        mask: lanes that take part.
        address: int64 offsets in the space's window.
        width: bytes of the element.
        step: on arrays of raw bits.
        values: raw operand bits.
        integer_add: ``step`` is a wrapping addition (a prefix sum does it at once).
        returns: the old values are wanted.

    Returns:
        The value each lane found, (threads, blocks); meaningless for other lanes.

    Raises:
        FaultError: out of bounds, misaligned, uninitialised.
    """
    cells, index, address = _cells(state, instr, space, mask, address, width)
    if state.observers:
        shown = address + GLOBAL_BASE if space == "global" else address
        order = next((w for w in instr.modifiers if w in _ORDERS), "relaxed")
        state.report(space, "atomic", shown, width, mask, instr, order=order, values=values[-1:])
    # Lane order: block-major. Every lane counts, even where all share one operand.
    chosen = np.broadcast_to(True if mask is None else mask, state.shape).T
    if state.live is not None:
        chosen = chosen & np.broadcast_to(state.live, state.shape).T
    keys = np.broadcast_to(index, state.shape).T[chosen]
    flat = [np.broadcast_to(v, state.shape).T[chosen] for v in values]
    old = _apply(cells, keys, step, flat, integer_add, returns)
    out = np.zeros((state.shape[1], state.shape[0]), cells.dtype)
    out[chosen] = old
    return np.ascontiguousarray(out.T)


def _cells(
    state: Any, instr: Instr, space: str, mask: Mask | None, address: Array, width: int
) -> tuple[Any, Array, Array]:
    """(flat elements of the memory, index of each lane, addresses in bounds)."""
    if space == "global":
        memory = state.memory
        address, block = access.place(state, instr, mask, address, width, True)
        if memory.track and not (block is not None and block.all_valid):
            access._check_valid(state, instr, mask, address, width, 1)
        return memory.by_width[width], address >> _SHIFT[width], address
    shared = state.shared
    address = shared.place(state, instr, mask, address, width, True)
    if shared.track:
        shared._check_valid(state, instr, mask, address, width)
    if width == 8:
        return _Pairs(shared), (address >> 2) * shared.blocks + shared.columns, address
    return shared.data.view(f"u{width}").ravel(), shared._cells(address, width), address


class _Pairs:
    """64-bit elements of shared memory, whose two words lie in different rows."""

    dtype = np.dtype(np.uint64)

    def __init__(self, shared: Any) -> None:
        self.words = shared.data.ravel()
        self.step = shared.blocks

    def __getitem__(self, index: Array) -> Array:
        low, high = self.words[index], self.words[index + self.step]
        word: Array = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
        return word

    def __setitem__(self, index: Array, value: Array) -> None:
        self.words[index] = (value & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        self.words[index + self.step] = (value >> np.uint64(32)).astype(np.uint32)


def _apply(
    cells: Any,
    keys: Array,
    step: Callable[..., Array],
    values: list[Array],
    integer_add: bool,
    returns: bool,
) -> Array:
    """Sequential semantics over equal keys; the old value for each position."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    old = np.empty(len(keys), cells.dtype)
    if len(starts) == len(keys):
        old[:] = cells[keys]
        cells[keys] = step(old, *values)
        return old
    group = np.cumsum(first) - 1
    rank = np.arange(len(ordered)) - starts[group]
    sorted_values = [v[order] for v in values]
    if integer_add:
        total = np.cumsum(sorted_values[0], dtype=cells.dtype)
        before = total - sorted_values[0]
        base = cells[ordered[starts]]
        old[order] = base[group] + before - before[starts][group]
        ends = np.append(starts[1:], len(ordered)) - 1
        cells[ordered[starts]] = base + total[ends] - before[starts]
        return old
    by_rank = np.argsort(rank, kind="stable")
    edges = np.flatnonzero(np.diff(rank[by_rank], prepend=-1))
    for begin, end in zip(edges, [*edges[1:], len(by_rank)], strict=True):
        at = by_rank[begin:end]
        found = cells[ordered[at]]
        old[order[at]] = found
        cells[ordered[at]] = step(found, *(v[at] for v in sorted_values))
    return old
