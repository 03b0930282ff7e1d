"""mma.sync: which lane holds which element, and the arithmetic of ``numerics.tensorcore``.

Elements sit in 32-bit registers, e = 32 / bits to a register. With g = lane / 4 and t = lane % 4:
register r of A holds rows g + 8 (r % 2), columns 4 e (r / 2) + e t + i; register r of B holds rows
4 e r + e t + i of column g; C and D hold rows g and g + 8, columns 2 t and 2 t + 1. One rule covers
all shapes with m = 8 or 16 and n = 8.

Source: PTX ISA, sections "Matrix Fragments for mma.m16n8k16" and its like.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.emulator.faults import fault
from gpulab.emulator.meetings import packed
from gpulab.emulator.ops.registry import (
    Env,
    Op,
    elements,
    family,
    only,
    result_registers,
    stop,
)
from gpulab.emulator.ops.warp import tell
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import U8, U16, U32, Array, Mask
from gpulab.errors import UsageError
from gpulab.formats.packing import from_containers
from gpulab.numerics import tensorcore

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m3": 8, "e3m2": 8, "e2m1": 8,
         "s8": 8, "u8": 8}  # fmt: skip
_CODES: dict[int, np.dtype[Any]] = {8: U8, 16: U16, 32: U32}
WHOLE_WARP = np.full((1, 1), 0xFFFFFFFF, np.uint32)


@dataclass(frozen=True)
class Form:
    """One mma instruction.

    Args:
        name: as ``gpulab.numerics.tensorcore`` spells it.
        m, n, k: shape.
        bits: width of an element of A and B.
        half: C and D are float16.
    """

    name: str
    m: int
    n: int
    k: int
    bits: int
    half: bool

    @property
    def each(self) -> int:
        """Elements in a register."""
        return 32 // self.bits


def form_of(instr: Instr) -> Form:
    """The form that an mma opcode names.

    Raises:
        BuildError: a shape or type that is not emulated.
    """
    words = list(instr.modifiers)
    only(
        instr, tuple(words[:2]), "sync", "aligned"
    )  # mma.sync.aligned[.kind::f8f6f4].mMnNkK.row.col[.satfinite].d.a.b.c
    rest = words[2:]
    kind = rest.pop(0) if rest[0].startswith("kind::") else None
    if kind not in (None, "kind::f8f6f4"):
        stop(instr, "block scales")
    shape = _SHAPE.match(rest.pop(0))
    if shape is None or rest[:2] != ["row", "col"]:
        stop(instr, "shape or layout")
    rest = rest[2:]
    saturate = rest[0] == "satfinite"
    rest = rest[saturate:]
    if len(rest) != 4:
        stop(instr)
    d, a, b, c = rest
    if saturate and d != "s32":
        stop(instr, "satfinite")
    m, n, k = (int(x) for x in shape.groups())
    if d != c or a not in _BITS or b not in _BITS or n != 8 or m not in (8, 16):
        stop(instr, "types or shape")
    prefix = f"mma.sync.{kind}." if kind else "mma.sync."
    name = f"{prefix}m{m}n{n}k{k}.{d}.{a}.{b}.{c}" + (".satfinite" if saturate else "")
    return Form(name, m, n, k, _BITS[a], d == "f16")


@family("mma")
def _mma(instr: Instr, env: Env) -> Op:
    form = form_of(instr)
    name = form.name
    try:
        tensorcore.model(name, env.capability)
    except UsageError as error:
        if "kind::f8f6f4." not in name:
            stop(instr, error.message)
        name = name.replace("kind::f8f6f4.", "")
        try:
            tensorcore.model(name, env.capability)
        except UsageError:
            stop(instr, error.message)
    d, a, b, c = (elements(o) for o in instr.operands)
    results = result_registers(instr, instr.operands[0])
    lengths = (
        form.m * form.k * form.bits // 1024,
        8 * form.k * form.bits // 1024,
        form.m * 8 * (16 if form.half else 32) // 1024,
    )
    if (len(a), len(b), len(c)) != lengths or len(d) != lengths[2]:
        stop(instr, "fragment lengths")
    na, nb = len(a), len(b)
    a_type, b_type = form.name.removesuffix(".satfinite").split(".")[-3:-1]
    contained = "kind::f8f6f4" in form.name  # narrow codes sit inside their bytes

    def function(state: Any, _instr: Instr, mask: Mask | None, *registers: Array) -> Any:
        whole_warps(state, instr, mask)
        tell(state, instr, mask, WHOLE_WARP)
        columns = max(r.shape[1] for r in registers)
        threads = state.shape[0]
        shape = (threads, columns)
        full = [r if r.shape == shape else np.broadcast_to(r, shape) for r in registers]
        matrix_a = _operand(full[:na], form, rows=form.m)
        matrix_b = _operand(full[na : na + nb], form, rows=8).transpose(0, 2, 1)
        if contained:
            matrix_a = from_containers(a_type, matrix_a)
            matrix_b = from_containers(b_type, matrix_b)
        matrix_c = _accumulator(full[na + nb :], form)
        product = tensorcore.mma_batch(matrix_a, matrix_b, matrix_c, name, env.capability)
        return _scatter(product, form, threads, columns)

    count = len(registers_of := (*a, *b, *c))
    return Op(
        function, ("u32",) * count, ("u32",) * len(results), registers_of, results, context=True
    )


def whole_warps(state: Any, instr: Instr, mask: Mask | None) -> None:
    """An aligned instruction needs every lane of the warp.

    Raises:
        FaultError: some lanes of a warp are elsewhere.
    """
    if mask is None:
        return
    words = packed(mask, state.shape[0])
    existing = (np.arange(state.shape[0]) < state.launch.threads)[:, None]
    partial = (words != 0) & (words != packed(existing, state.shape[0]))
    if partial.any():
        lanes = np.repeat(partial[:, 0], 32, axis=0) & mask
        t, b = state.first(lanes)
        raise fault(
            "warp_divergence",
            f"{instr.opcode} is executed by a part of the warp only",
            instr,
            thread=state.thread_xyz(t),
            block=state.block_xyz(b),
        )


def _operand(registers: list[Array], form: Form, rows: int) -> Array:
    """A (or B transposed) as codes (warps, rows, K), warps last in memory."""
    each, halves = form.each, rows // 8
    threads, columns = registers[0].shape
    warps = threads // 32
    chunks = len(registers) // halves
    out = np.empty((chunks, 4, each, halves, 8, warps, columns), _CODES[form.bits])
    for r, register in enumerate(registers):
        lanes = register.reshape(warps, 8, 4, columns).transpose(2, 1, 0, 3)  # (t, g, warp, block)
        for i in range(each):
            part = lanes if each == 1 else lanes >> np.uint32(form.bits * i)
            np.copyto(out[r // halves, :, i, r % halves], part, casting="unsafe")
    codes: Array = out.reshape(form.k, rows, warps * columns).transpose(2, 1, 0)
    return codes


def _accumulator(registers: list[Array], form: Form) -> Array:
    """C as codes (warps, M, 8), warps last in memory."""
    threads, columns = registers[0].shape
    warps, halves = threads // 32, form.m // 8
    out = np.empty((halves, 8, 4, 2, warps, columns), U16 if form.half else U32)
    for half in range(halves):
        for j in range(2):
            register = registers[half] if form.half else registers[2 * half + j]
            lanes = register.reshape(warps, 8, 4, columns).transpose(1, 2, 0, 3)
            part = lanes >> np.uint32(16 * j) if form.half else lanes
            np.copyto(out[half, :, :, j], part, casting="unsafe")
    return out.reshape(form.m, 8, warps * columns).transpose(2, 0, 1)


def _scatter(product: Array, form: Form, threads: int, columns: int) -> tuple[Array, ...]:
    """D as registers."""
    warps, halves = threads // 32, form.m // 8
    d = product.reshape(warps, columns, halves, 8, 4, 2).transpose(2, 5, 0, 3, 4, 1)
    out = []
    for half in range(halves):
        pair = [np.ascontiguousarray(d[half, j]).reshape(threads, columns) for j in range(2)]
        if form.half:
            low, high = (p.astype(U32) for p in pair)
            out.append(low | (high << np.uint32(16)))
        else:
            out += pair
    return tuple(out)
