"""atom and red: read-modify-write in lane order, block by block.

Lanes that hit the same address act one after the other: lowest block first, then lowest thread.
That order is one that a card may show; for floats another order rounds differently.

Source: PTX ISA, sections "atom", "red".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import spaces
from gpulab.emulator.atomics import run
from gpulab.emulator.ops import half
from gpulab.emulator.ops.edges import flush, payload_kept
from gpulab.emulator.ops.memory import ORDER_WORDS, _generic_parts, address_of, offsets, space_of
from gpulab.emulator.ops.registry import Env, Op, family, only, result_registers, stop
from gpulab.emulator.ptx.nodes import Instr, Mem
from gpulab.emulator.smallfloat import decode
from gpulab.emulator.values import BYTES, DTYPE, F32, F32_NAN, F64, UNSIGNED, Array, Mask, kind_of

_OPERATIONS = (
    "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec",
)  # fmt: skip


def _double_add(space: str) -> Callable[..., Array]:
    """A shared float64 sum is a loop around ``add``; a global one passes a NaN on as it is."""
    summed = payload_kept("add", np.add)

    def add(old: Array, value: Array) -> Array:
        a, b = old.view(F64), value.view(F64)
        if space == "shared":
            return summed(b, a).view(np.uint64)
        bits = summed(a, b).view(np.uint64)
        return np.where(np.isnan(b), value, np.where(np.isnan(a), old, bits))

    return add


def _float_add(to_zero: bool) -> Callable[..., Array]:

    def add(old: Array, value: Array) -> Array:
        a, b = old.view(F32), value.view(F32)
        if to_zero:
            a, b = flush(a), flush(b)
        out = a + b
        if to_zero:
            out = flush(out)
        return np.where(np.isnan(out), F32_NAN, out.view(np.uint32))

    return add


choose: Callable[..., Array] = np.where


def _step(instr: Instr, name: str, word: str, space: str) -> Callable[..., Array]:
    """``new = step(old, value[, second])`` on raw bits."""
    if name == "exch":
        return lambda old, value: value
    if name == "cas":
        return lambda old, expected, value: choose(old == expected, value, old)
    if name == "inc":
        return lambda old, top: choose(old >= top, old.dtype.type(0), old + old.dtype.type(1))
    if name == "dec":
        return lambda old, top: choose((old == 0) | (old > top), top, old - old.dtype.type(1))
    if word in half.TYPES:
        form, pair = word.removesuffix("x2"), word.endswith("x2")
        if name != "add":
            stop(instr)

        def one(a: Array, b: Array) -> Array:
            return half.encode32(form, decode(form, a) + decode(form, b))

        return half.pairwise(one) if pair else one
    if word in ("f32", "f64"):
        if name != "add":
            stop(instr)
        if word == "f64":
            return _double_add(space)
        # Global float32 additions flush subnormals on the card, shared ones do not.
        return _float_add(space == "global")
    kind = kind_of(word)
    dtype = DTYPE[kind]
    ufunc: Any = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[name]  # fmt: skip
    return lambda old, value: ufunc(old.view(dtype), value.view(dtype)).view(old.dtype)


@family("atom", "red")
def _atom(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    name = next((w for w in words if w in _OPERATIONS), None)
    if name is None:
        stop(instr)
    word = words[-1]
    only(
        instr, words[:-1], *ORDER_WORDS, name, "global", "shared", "shared::cta", "noftz",
        "L2::cache_hint",
    )  # fmt: skip
    space = space_of(words)
    returns = instr.base == "atom"
    operands = list(instr.operands)
    results = result_registers(instr, operands.pop(0)) if returns else ()
    address = operands.pop(0)
    if not isinstance(address, Mem):
        stop(instr)
    if "L2::cache_hint" in words:
        operands.pop()
    kind = UNSIGNED[BYTES[kind_of(word)]]
    width = BYTES[kind]
    base, base_kind, offset = address_of(instr, address, env)
    if space == "generic":
        base_kind = "u64"
    steps = {s: _step(instr, name, word, s) for s in ("global", "shared")}
    if len(operands) != (2 if name == "cas" else 1):
        stop(instr, "operand count")
    integer_add = name == "add" and word in ("u32", "s32", "u64", "s64")

    def function(state: Any, _instr: Instr, mask: Mask | None, at: Array, *values: Array) -> Any:
        if space != "generic":
            origin = spaces.GLOBAL_BASE if space == "global" else 0
            parts: Any = [(space, mask, offsets(at, offset, origin))]
        else:
            parts = _generic_parts(state, instr, mask, at, offset)
        out = None
        for where, lanes, place in parts:
            if where == "local":
                stop(instr, "atomic on local memory")
            old = run(
                state, instr, where, lanes, place, width, steps[where], values,
                integer_add=integer_add, returns=returns,
            )  # fmt: skip
            out = old if out is None or lanes is None else np.where(lanes, old, out)
        return out if returns else None

    writes = (kind,) if returns else ()
    return Op(
        function, (base_kind, *(kind,) * len(operands)), writes, (base, *operands), results,
        context=True,
    )  # fmt: skip
