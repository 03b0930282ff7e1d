"""wgmma: a warpgroup's product of matrices in shared memory, added to its registers.

Warp w of the four holds rows 16 w to 16 w + 15; with lane = 4 g + t, register 4 j + 2 h + e is the
element of row g + 8 h, column 8 j + 2 t + e. A may come from registers, which hold it as those of
mma.sync do.

The product is made when it is issued: reading the sums before the wait goes unnoticed. Operands in
shared memory are those of the 128-byte swizzle.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions": "Register fragments", "Matrix
descriptor", "Strides"; CUTLASS, canonical GMMA layouts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.faults import fault
from gpulab.emulator.ops.registry import (
    Env,
    Op,
    effect,
    elements,
    family,
    literal,
    result_registers,
    spelled,
    stop,
)
from gpulab.emulator.ops.tensor import WHOLE_WARP, whole_warps
from gpulab.emulator.ops.warp import tell
from gpulab.emulator.products import WARPGROUP, products_of
from gpulab.emulator.ptx.nodes import Imm, Instr, Operand, Vec
from gpulab.emulator.tensormap import swizzle_bits
from gpulab.emulator.values import U32, Array, Mask
from gpulab.errors import UsageError
from gpulab.numerics import tensorcore

Ints = NDArray[np.int64]

M = 64
_NAME = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(f32|s32)\.(\w+)\.(\w+)(\.satfinite)?"
)
_STEP_BYTES = 32
"""Of k that one instruction multiplies."""
_ROW, _ROWS = 128, 8
"""Operands lie in groups of 8 rows of 128 bytes."""
_SWIZZLE_128 = 1


@dataclass(frozen=True)
class Form:
    """One wgmma instruction.

    Args:
        name: as ``gpulab.numerics.tensorcore`` spells it.
        n, k: shape; m is 64.
        turned: A, B lie along m, n instead of along k.
    """

    name: str
    n: int
    k: int
    turned: tuple[bool, bool]

    @property
    def size(self) -> int:
        """Bytes of an element of A and B."""
        return _STEP_BYTES // self.k


@family("wgmma")
def _wgmma(instr: Instr, env: Env) -> Op:
    if instr.modifiers[0] == "mma_async":
        return _product(instr, env)
    spelled(instr, r"wgmma\.(fence|commit_group|wait_group)\.sync\.aligned")
    if instr.modifiers[0] == "fence":
        return effect(instr, lambda state, _i, mask: None, (), ())
    if instr.modifiers[0] == "commit_group":
        return effect(instr, lambda state, _i, mask: products_of(state).commit(mask), (), ())
    count = literal(instr)
    return effect(instr, lambda state, _i, mask: products_of(state).wait(mask, count), (), ())


def _product(instr: Instr, env: Env) -> Op:
    found = _NAME.fullmatch(instr.opcode)
    if found is None:
        stop(instr, "types or shape")
    n, k, d_type, a_type, b_type, saturates = found.groups()
    name = f"wgmma.m64n{n}k{k}.{d_type}.{a_type}.{b_type}{saturates or ''}"
    try:
        tensorcore.model(name, env.capability)
    except UsageError as error:
        stop(instr, error.message)
    d, a, b, add, *more = instr.operands
    results = result_registers(instr, d)
    from_registers = isinstance(a, Vec)
    form = Form(name, int(n), int(k), _turned(instr, more, from_registers))
    sums, given = elements(d), elements(a)
    if len(sums) != form.n // 2 or len(given) != (4 if from_registers else 1):
        stop(instr, "fragment lengths")

    def function(state: Any, _instr: Instr, mask: Mask | None, *values: Array) -> Any:
        whole_warps(state, instr, mask)
        tell(state, instr, mask, WHOLE_WARP)
        groups, columns = _active(state, instr, mask)
        held, first = values[: len(sums)], values[len(sums) : -2]
        second, adds = values[-2:]
        c = _gathered(state, held, groups, columns)
        c[~_at(state, adds, groups, columns)] = 0
        if from_registers:
            left = _fragment(state, first, groups, columns, form)
        else:
            where = _at(state, first[0], groups, columns)
            left = _matrix(state, instr, where, (groups, columns), M, form, form.turned[0])
        where = _at(state, second, groups, columns)
        right = _matrix(state, instr, where, (groups, columns), form.n, form, form.turned[1])
        product = tensorcore.mma_batch(left, right.transpose(0, 2, 1), c, form.name, env.capability)
        return _scattered(state, product, groups, columns)

    reads = ("u32",) * len(sums) + (("u32",) * 4 if from_registers else ("u64",)) + ("u64", "p")
    operands: tuple[Operand, ...] = (*sums, *given, b, add)
    return Op(function, reads, ("u32",) * len(results), operands, results, context=True)


def _turned(instr: Instr, more: list[Operand], from_registers: bool) -> tuple[bool, bool]:
    """What the literals behind the predicate say: signs must be plus, then who lies turned."""
    literals = [item.bits for item in more if isinstance(item, Imm)]
    if len(literals) != len(more) or len(literals) not in (0, 2, 3, 4):
        stop(instr, "literals")
    if any(sign != 1 for sign in literals[:2]):
        stop(instr, "a negated operand")
    turns = [bit != 0 for bit in literals[2:]]
    if from_registers:
        turns.insert(0, False)
    turns += [False] * (2 - len(turns))
    return turns[0], turns[1]


def _active(state: Any, instr: Instr, mask: Mask | None) -> tuple[Ints, Ints]:
    """(warpgroup, column) of the groups that take part.

    Raises:
        FaultError: a warpgroup of fewer than four warps.
    """
    chosen = np.broadcast_to(True if mask is None else mask, state.shape)
    if state.live is not None:
        chosen = chosen & state.live
    if state.shape[0] % WARPGROUP:
        whole = state.shape[0] // WARPGROUP * WARPGROUP
        if chosen[whole:].any():
            t, b = state.first(chosen & (np.arange(state.shape[0]) >= whole)[:, None])
            raise fault(
                "warp_divergence",
                f"{instr.opcode} is executed by a part of a warpgroup: a block of "
                f"{state.launch.threads} threads has none of four warps here",
                instr,
                thread=state.thread_xyz(t),
                block=state.block_xyz(b),
            )
        chosen = chosen[:whole]
    groups, columns = np.nonzero(chosen[::WARPGROUP])
    return groups, columns


def _at(state: Any, value: Array, groups: Ints, columns: Ints) -> Array:
    """What the first thread of each group has."""
    found: Array = np.broadcast_to(value, state.shape)[groups * WARPGROUP, columns]
    return found


def _lanes(state: Any, value: Array, groups: Ints, columns: Ints) -> Array:
    """A register of the groups, (groups, warp, g, t)."""
    rows = groups[:, None] * WARPGROUP + np.arange(WARPGROUP)
    found: Array = np.broadcast_to(value, state.shape)[rows, columns[:, None]]
    return found.reshape(-1, 4, 8, 4)


def _gathered(state: Any, held: tuple[Array, ...], groups: Ints, columns: Ints) -> Array:
    """C as codes (groups, 64, n)."""
    out = np.empty((len(groups), 4, 2, 8, len(held) // 4, 4, 2), U32)  # warp, h, g, j, t, e
    for r, value in enumerate(held):
        out[:, :, r // 2 % 2, :, r // 4, :, r % 2] = _lanes(state, value, groups, columns)
    return out.reshape(len(groups), M, -1)


def _scattered(state: Any, product: Array, groups: Ints, columns: Ints) -> tuple[Array, ...]:
    """D as registers; lanes that take no part get what nobody reads."""
    parts = product.view(U32).reshape(len(groups), 4, 2, 8, -1, 4, 2)
    rows = groups[:, None] * WARPGROUP + np.arange(WARPGROUP)
    out = []
    for r in range(2 * product.shape[2] // 4):
        value = np.zeros(state.shape, U32)
        part = parts[:, :, r // 2 % 2, :, r // 4, :, r % 2]
        value[rows, columns[:, None]] = part.reshape(len(groups), WARPGROUP)
        out.append(value)
    return tuple(out)


def _fragment(
    state: Any, held: tuple[Array, ...], groups: Ints, columns: Ints, form: Form
) -> Array:
    """A from registers as codes (groups, 64, k): register 2 q + h holds row g + 8 h, and the
    elements of bytes 16 q + 4 t to 16 q + 4 t + 3."""
    out = np.empty((len(groups), 4, 2, 8, 2, 4), U32)  # warp, h, g, q, t
    for r, value in enumerate(held):
        out[:, :, r % 2, :, r // 2, :] = _lanes(state, value, groups, columns)
    return out.reshape(len(groups), M, _STEP_BYTES // 4).view(f"u{form.size}")


def _matrix(
    state: Any,
    instr: Instr,
    descriptor: Array,
    who: tuple[Ints, Ints],
    rows: int,
    form: Form,
    turned: bool,
) -> Array:
    """An operand in shared memory as codes (groups, rows, k).

    Raises:
        FaultError: outside of shared memory, not written, not yet landed.
        BuildError: another layout than that of the 128-byte swizzle.
    """
    start, leading, stride = (
        ((descriptor >> np.uint64(shift)) & np.uint64(0x3FFF)).astype(np.int64)[:, None, None] << 4
        for shift in (0, 16, 32)
    )
    if (descriptor >> np.uint64(62) != _SWIZZLE_128).any() or (
        (descriptor >> np.uint64(49)) & np.uint64(7)
    ).any():
        stop(instr, "a matrix descriptor without the 128-byte swizzle, or with a base offset")
    if turned:  # a row is one k, across m or n; then pairs of columns
        k = np.arange(form.k)[None, :, None]
        across = form.size * np.arange(0, rows, 4 // form.size)[None, None, :]
        at = start + k // _ROWS * stride + k % _ROWS * _ROW
        at = at + across // _ROW * leading + across % _ROW
    else:
        row = np.arange(rows)[None, :, None]
        along = 4 * np.arange(_STEP_BYTES // 4)[None, None, :]
        at = start + row // _ROWS * stride + row % _ROWS * _ROW + along
    at = at ^ ((at >> 3) & swizzle_bits(_ROW))
    words = _words(state, instr, at, who[1])
    products_of(state).add(*who, at >> 2)
    codes = np.ascontiguousarray(words).view(f"u{form.size}")
    return codes.transpose(0, 2, 1) if turned else codes


def _words(state: Any, instr: Instr, at: Ints, columns: Ints) -> Array:
    shared = state.shared
    outside = (at < 0) | (at + 4 > shared.size)
    if outside.any():
        raise _fault(
            state, instr, columns, outside, at, "out_of_bounds",
            f"out-of-bounds operand of {instr.opcode} in shared memory",
            f" (the block has {shared.size} bytes)",
        )  # fmt: skip
    row = at >> 2
    if shared.track:
        good = shared.row_valid.view(U32)[row] == 0xFFFFFFFF
        cell = columns[:, None, None]
        if shared.cell_valid is not None:
            good = good | (shared.cell_valid[row, cell] == 0xFFFFFFFF)
        if not good.all():
            flying = shared.in_flight is not None and bool(shared.in_flight[row, cell][~good].any())
            raise _fault(
                state, instr, columns, ~good, at,
                "async_in_flight" if flying else "uninitialised",
                "a copy not waited for:" if flying else "uninitialised",
                f" is an operand of {instr.opcode}",
            )  # fmt: skip
    found: Array = shared.data[row, columns[:, None, None]]
    return found


def _fault(
    state: Any, instr: Instr, columns: Ints, bad: Array, at: Ints, kind: str, head: str, tail: str
) -> Any:
    group, *_ = index = np.unravel_index(int(bad.argmax()), bad.shape)
    where = int(np.broadcast_to(at, bad.shape)[index])
    return fault(
        kind, f"{head} at offset {where} of shared memory{tail}", instr,
        thread=(0, 0, 0), block=state.block_xyz(int(columns[group])), space="shared", offset=where,
    )  # fmt: skip
