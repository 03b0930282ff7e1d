"""wmma: fragments whose layout the instruction set leaves open, and the products of mma.sync.

Here the 32 lanes hold a fragment in one row after the other, B in one column after the other, and
lanes with nothing left hold it once more, as the fragments of float16 operands do. A kernel may
treat the elements of a fragment alike, and may not know where they are. Products are those of the
mma.sync instructions that a card does them with.

Source: PTX ISA, sections "wmma.load", "wmma.store", "wmma.mma".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.emulator.ops.memory import SPACE_WORDS, address_of, load_from, space_of, store_to
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
from gpulab.emulator.ptx.nodes import Imm, Instr
from gpulab.emulator.values import U8, U16, U32, Array, Mask
from gpulab.numerics import tensorcore
from gpulab.numerics.contract import Capability

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s8": 8, "u8": 8, "s32": 32}
_CODES: dict[int, np.dtype[Any]] = {8: U8, 16: U16, 32: U32}
_DEPTHS = {"f16": (16, 8), "bf16": (16, 8), "tf32": (8, 4), "s8": (16,), "u8": (16,)}
"""K of the mma.sync instructions with these operands, the deepest first."""


@dataclass(frozen=True)
class Fragment:
    """A matrix in the registers of a warp.

    Args:
        rows, columns: its shape.
        bits: of an element.
        registers: of a lane.
        turned: one column after the other.
    """

    rows: int
    columns: int
    bits: int
    registers: int
    turned: bool

    @classmethod
    def of(cls, instr: Instr, which: str, kind: str, registers: int) -> Fragment:
        """Fragment a, b, c or d of an instruction.

        Raises:
            BuildError: a shape or type that is not emulated.
        """
        shape = next((s for w in instr.modifiers if (s := _SHAPE.match(w))), None)
        if shape is None or kind not in _BITS:
            stop(instr, "shape or type")
        m, n, k = (int(x) for x in shape.groups())
        rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
        found = cls(rows, columns, _BITS[kind], registers, which == "b")
        if 32 * registers * found.each % (rows * columns):
            stop(instr, "fragment length")
        return found

    @property
    def each(self) -> int:
        """Elements of a register."""
        return 32 // self.bits

    @property
    def size(self) -> int:
        """Elements of the matrix."""
        return self.rows * self.columns

    def place(self, threads: int, register: int, i: int) -> tuple[Array, Array]:
        """Row and column of element i of a register, (threads, 1) each."""
        lane = np.arange(threads, dtype=np.int64)[:, None] % 32
        at = ((lane * self.registers + register) * self.each + i) % self.size
        if self.turned:
            return at % self.rows, at // self.rows
        return at // self.columns, at % self.columns

    def codes(self, registers: list[Array]) -> Array:
        """Registers (threads, blocks) as codes (warps, rows, columns)."""
        threads, blocks = registers[0].shape
        out = np.empty((threads, self.registers, self.each, blocks), _CODES[self.bits])
        for r, register in enumerate(registers):
            for i in range(self.each):
                np.copyto(out[:, r, i], register >> np.uint32(self.bits * i), casting="unsafe")
        warps = threads // 32
        flat = out.reshape(warps, -1, blocks)[:, : self.size].transpose(0, 2, 1)
        flat = flat.reshape(warps * blocks, self.size)
        if self.turned:
            return flat.reshape(-1, self.columns, self.rows).transpose(0, 2, 1)
        return flat.reshape(-1, self.rows, self.columns)

    def spread(self, codes: Array, threads: int, blocks: int) -> tuple[Array, ...]:
        """Codes (warps, rows, columns) of a matrix that is not turned, as registers."""
        warps = threads // 32
        flat = codes.reshape(warps, blocks, self.size).transpose(0, 2, 1)
        times = 32 * self.registers * self.each // self.size
        every = np.tile(flat, (1, times, 1)).reshape(threads, self.registers, self.each, blocks)
        found = []
        for r in range(self.registers):
            value = np.zeros((threads, blocks), U32)
            for i in range(self.each):
                value |= every[:, r, i].astype(U32) << np.uint32(self.bits * i)
            found.append(value)
        return tuple(found)


def _layout(instr: Instr) -> tuple[str, str, str]:
    """(fragment, layout, type) of a load or a store."""
    _, which, *rest = instr.modifiers
    *words, kind = rest
    shapes = [w for w in words if _SHAPE.match(w)]
    only(instr, tuple(words), "sync", "aligned", "row", "col", *shapes, *SPACE_WORDS)
    layout = next((w for w in words if w in ("row", "col")), None)
    if layout is None:
        stop(instr, "layout")
    return which, layout, kind


def _stride(instr: Instr, fragment: Fragment, layout: str) -> Any:
    """The operand that gives the distance of rows or columns, in elements."""
    if len(instr.operands) == 3:
        return instr.operands[2]
    return Imm(fragment.columns if layout == "row" else fragment.rows)


def _at(fragment: Fragment, layout: str, base: Array, stride: Array, register: int, i: int) -> Any:
    """Addresses of element i of a register."""
    row, column = fragment.place(max(base.shape[0], 32), register, i)
    step = stride.astype(np.int64)
    linear = row * step + column if layout == "row" else column * step + row
    return base + (linear * (fragment.bits // 8)).astype(base.dtype)


def _together(fragment: Fragment, layout: str) -> bool:
    """Whether the elements of a register are neighbours in memory."""
    return fragment.each == 1 or (layout == "col") == fragment.turned


@family("wmma")
def _wmma(instr: Instr, env: Env) -> Op:
    action = instr.modifiers[0]
    if action == "load":
        return _load(instr, env)
    if action == "store":
        return _store(instr, env)
    if action == "mma":
        return _mma(instr, env)
    return stop(instr)


def _load(instr: Instr, env: Env) -> Op:
    which, layout, kind = _layout(instr)
    results = result_registers(instr, instr.operands[0])
    fragment = Fragment.of(instr, which, kind, len(results))
    space = space_of(instr.modifiers)
    base, base_kind, offset = address_of(instr, instr.operands[1], env)
    base_kind = "u64" if space == "generic" else base_kind
    whole = _together(fragment, layout)

    def function(state: Any, _instr: Instr, mask: Mask | None, at: Array, stride: Array) -> Any:
        whole_warps(state, instr, mask)
        tell(state, instr, mask, WHOLE_WARP)
        at = np.broadcast_to(at, (state.shape[0], at.shape[1]))

        def read(register: int, i: int, width: int) -> Array:
            where = _at(fragment, layout, at, stride, register, i)
            return load_from(state, space, instr, mask, where, offset, width, 1)[0]

        found = []
        for register in range(fragment.registers):
            if whole:
                found.append(read(register, 0, 4))
                continue
            value = np.zeros(state.shape, U32)
            for i in range(fragment.each):
                part = read(register, i, fragment.bits // 8).astype(U32)
                value = value | (part << np.uint32(fragment.bits * i))
            found.append(value)
        return tuple(found) if len(found) > 1 else found[0]

    reads = (base_kind, "u32")
    sources = (base, _stride(instr, fragment, layout))
    return Op(function, reads, ("u32",) * len(results), sources, results, context=True)


def _store(instr: Instr, env: Env) -> Op:
    which, layout, kind = _layout(instr)
    values = elements(instr.operands[1])
    fragment = Fragment.of(instr, which, kind, len(values))
    space = space_of(instr.modifiers)
    base, base_kind, offset = address_of(instr, instr.operands[0], env)
    base_kind = "u64" if space == "generic" else base_kind
    whole = _together(fragment, layout)
    raw = _CODES[fragment.bits]

    def function(
        state: Any, _instr: Instr, mask: Mask | None, at: Array, stride: Array, *registers: Array
    ) -> None:
        whole_warps(state, instr, mask)
        tell(state, instr, mask, WHOLE_WARP)
        at = np.broadcast_to(at, (state.shape[0], at.shape[1]))
        for number, register in enumerate(registers):
            for i in range(1 if whole else fragment.each):
                where = _at(fragment, layout, at, stride, number, i)
                part = register if whole else (register >> np.uint32(fragment.bits * i)).astype(raw)
                width = 4 if whole else fragment.bits // 8
                store_to(state, space, instr, mask, where, offset, width, [part])

    reads = (base_kind, "u32", *("u32",) * len(values))
    sources = (base, _stride(instr, fragment, layout), *values)
    return Op(function, reads, (), sources, (), context=True)


def _products(instr: Instr, kinds: tuple[str, str, str, str], capability: Capability) -> Any:
    """The mma.sync that a card multiplies with: its name and its K.

    Raises:
        BuildError: none is modelled.
    """
    d, a, b, c = kinds
    for depth in _DEPTHS.get(a, ()):
        name = f"mma.sync.m16n8k{depth}.{d}.{a}.{b}.{c}"
        if tensorcore.is_modelled(name, capability):
            return name, depth
    return stop(instr, "types")


def _mma(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    shapes = [w for w in words if _SHAPE.match(w)]
    only(instr, tuple(words[1:]), "sync", "aligned", "row", "col", *shapes, *_BITS)
    types = [w for w in words if w in _BITS]
    kinds = (types[0], "f16", "f16", types[1]) if len(types) == 2 else tuple(types)
    if len(kinds) != 4 or kinds[0] != kinds[3]:
        stop(instr, "types")
    name, depth = _products(instr, (kinds[0], kinds[1], kinds[2], kinds[3]), env.capability)
    operands = [elements(o) for o in instr.operands]
    results = result_registers(instr, instr.operands[0])
    d, a, b, c = (
        Fragment.of(instr, which, kind, len(held))
        for which, kind, held in zip("dabc", kinds, operands, strict=True)
    )
    if a.columns % depth:
        stop(instr, "shape")

    def function(state: Any, _instr: Instr, mask: Mask | None, *registers: Array) -> Any:
        whole_warps(state, instr, mask)
        tell(state, instr, mask, WHOLE_WARP)
        threads, blocks = state.shape[0], max(r.shape[1] for r in registers)
        full = [np.broadcast_to(r, (threads, blocks)) for r in registers]
        first, second = a.registers, a.registers + b.registers
        left, right = a.codes(full[:first]), b.codes(full[first:second])
        total = c.codes(full[second:])
        for k in range(0, a.columns, depth):
            total = tensorcore.mma_batch(
                left[:, :, k : k + depth], right[:, k : k + depth], total, name, env.capability
            )
        found = d.spread(total, threads, blocks)
        return found if len(found) > 1 else found[0]

    sources = (*operands[1], *operands[2], *operands[3])
    return Op(
        function, ("u32",) * len(sources), ("u32",) * len(results), sources, results, context=True
    )
