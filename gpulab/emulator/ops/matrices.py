"""ldmatrix and stmatrix: 8 x 8 matrices of 16-bit elements between shared memory and registers.

Lane 8 i + r gives the address of row r of matrix i. With g = lane / 4 and t = lane % 4 a lane holds
elements 2 t and 2 t + 1 of row g; with .trans, of column g.

Source: PTX ISA, sections "ldmatrix", "stmatrix".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.emulator.ops.memory import address_of, offsets
from gpulab.emulator.ops.registry import (
    Env,
    Op,
    elements,
    family,
    only,
    result_registers,
    stop,
)
from gpulab.emulator.ops.tensor import WHOLE_WARP, whole_warps
from gpulab.emulator.ops.warp import tell
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import U16, U32, Array, Mask


def _matrix_count(instr: Instr) -> tuple[int, bool]:
    words = instr.modifiers
    only(
        instr, words, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared",
        "shared::cta", "b16",
    )  # fmt: skip
    return next(int(w[1]) for w in words if w in ("x1", "x2", "x4")), "trans" in words


def _rows(state: Any, base: Array, offset: int) -> Array:
    """Row addresses as (warps, 32 lanes, blocks or 1)."""
    at = offsets(base, offset, 0)
    full = np.broadcast_to(at, (state.shape[0], at.shape[1]))
    return full.reshape(-1, 32, at.shape[1])


def _supplying(state: Any, mask: Mask | None, count: int) -> Mask:
    lanes = (np.arange(state.shape[0]) % 32 < 8 * count)[:, None]
    return lanes if mask is None else lanes & mask


_G, _T = np.arange(8)[None, :, None, None], np.arange(4)[None, None, :, None]


def _cells(rows: Array, matrix: int, trans: bool, j: int) -> Array:
    """Address of element j (0, 1) of each lane in a matrix, (threads, blocks or 1)."""
    own = rows[:, 8 * matrix : 8 * matrix + 8]
    # transposed: rows 2 t + j, column g
    at = own[:, j::2][:, None] + 2 * _G if trans else own[:, :, None] + 4 * _T + 2 * j
    warps, _, _, columns = at.shape
    return np.ascontiguousarray(np.broadcast_to(at, (warps, 8, 4, columns))).reshape(-1, columns)


@family("ldmatrix")
def _ldmatrix(instr: Instr, env: Env) -> Op:
    count, trans = _matrix_count(instr)
    results = result_registers(instr, instr.operands[0])
    if len(results) != count:
        stop(instr, "fragment length")
    base, kind, offset = address_of(instr, instr.operands[1], env)

    def function(state: Any, _instr: Instr, mask: Mask | None, at: Array) -> Any:
        whole_warps(state, instr, mask)
        tell(state, instr, mask, WHOLE_WARP)
        rows = _rows(state, at, offset)
        flat = rows.reshape(state.shape[0], -1)
        who = _supplying(state, mask, count)
        shared = state.shared
        shared.place(state, instr, who, flat, 16, False)
        if state.observers:
            state.report("shared", "load", flat, 16, who, instr)
        got = []
        for matrix in range(count):
            if trans:
                low, high = (
                    shared.fetch(state, instr, mask, _cells(rows, matrix, True, j), 2)
                    for j in range(2)
                )
                got.append(low.astype(U32) | (high.astype(U32) << np.uint32(16)))
            else:
                got.append(shared.fetch(state, instr, mask, _cells(rows, matrix, False, 0), 4))
        return tuple(got) if count > 1 else got[0]

    return Op(function, (kind,), ("u32",) * count, (base,), results, context=True)


@family("stmatrix")
def _stmatrix(instr: Instr, env: Env) -> Op:
    count, trans = _matrix_count(instr)
    values = elements(instr.operands[1])
    if len(values) != count:
        stop(instr, "fragment length")
    base, kind, offset = address_of(instr, instr.operands[0], env)

    def function(
        state: Any, _instr: Instr, mask: Mask | None, at: Array, *registers: Array
    ) -> None:
        whole_warps(state, instr, mask)
        tell(state, instr, mask, WHOLE_WARP)
        rows = _rows(state, at, offset)
        flat = rows.reshape(state.shape[0], -1)
        who = _supplying(state, mask, count)
        shared = state.shared
        shared.place(state, instr, who, flat, 16, True)
        if state.observers:
            state.report("shared", "store", flat, 16, who, instr)
        for matrix, register in enumerate(registers):
            if not trans:
                shared.put(mask, _cells(rows, matrix, False, 0), 4, register)
                continue
            for j in range(2):
                half = (register >> np.uint32(16 * j)).astype(U16)
                shared.put(mask, _cells(rows, matrix, True, j), 2, half)

    reads = (kind, *("u32",) * count)
    return Op(function, reads, (), (base, *values), (), context=True)
