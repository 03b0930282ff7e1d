"""Moves, selection and comparison: mov, selp, slct, set, setp, cvta, isspacep.

Source: PTX ISA, sections "Comparison and Selection" and "Data Movement and Conversion".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import spaces
from gpulab.emulator.ops import half
from gpulab.emulator.ops.registry import (
    Env,
    Op,
    elements,
    family,
    only,
    result_registers,
    simple,
    spelled,
    stop,
)
from gpulab.emulator.ptx.nodes import Instr, Reg, Sink, Vec
from gpulab.emulator.values import BYTES, DTYPE, UNSIGNED, Array, as_raw, kind_of


def _same(a: Array) -> Array:
    return a


@family("mov")
def _mov(instr: Instr, env: Env) -> Op:
    (word,) = instr.modifiers
    target, source = instr.operands
    if isinstance(target, Vec):
        return _unpack(instr, word)
    if isinstance(source, Vec):
        return _pack(instr, word)
    kind = kind_of(word)
    # Between registers as wide as the type the value is handed on as it is, canonical or not.
    if isinstance(source, Reg) and isinstance(target, Reg) and kind != "p":
        widths = [env.kernel.registers[r.name] for r in (source, target)]
        if all(w != "pred" and BYTES[kind_of(w)] == BYTES[kind] for w in widths):
            return Op(_same, ("*",), ("*",), (source,), (target,))
    return simple(instr, _same, (kind,), kind)


def _pack(instr: Instr, word: str) -> Op:
    items = elements(instr.operands[1])
    total = kind_of(word)
    width = BYTES[total] // len(items)
    part, dtype = UNSIGNED[width], DTYPE[total]

    def function(*pieces: Array) -> Array:
        out = pieces[0].astype(dtype)
        for i, piece in enumerate(pieces[1:], 1):
            out = out | (piece.astype(dtype) << dtype.type(8 * width * i))
        return out

    (result,) = result_registers(instr, instr.operands[0])
    return Op(function, (part,) * len(items), (total,), items, (result,))


def _unpack(instr: Instr, word: str) -> Op:
    results = result_registers(instr, instr.operands[0])
    total = kind_of(word)
    width = BYTES[total] // len(results)
    part = UNSIGNED[width]
    wanted = [i for i, r in enumerate(results) if not isinstance(r, Sink)]
    dtype, narrow = DTYPE[total], DTYPE[part]

    def function(a: Array) -> Any:
        pieces = tuple((a >> dtype.type(8 * width * i)).astype(narrow) for i in wanted)
        return pieces if len(pieces) > 1 else pieces[0]

    kept = tuple(results[i] for i in wanted)
    return Op(function, (total,), (part,) * len(kept), (instr.operands[1],), kept)


@family("selp")
def _selp(instr: Instr, env: Env) -> Op:
    (word,) = instr.modifiers
    typed = kind_of(word)

    def function(a: Array, b: Array, p: Array) -> Array:
        if a.dtype is not b.dtype:
            a, b = as_raw(a), as_raw(b)
        return np.where(p, a, b)

    a, b, _ = instr.operands[1:]
    reads = tuple("*" if isinstance(o, Reg) else typed for o in (a, b))
    return simple(instr, function, (*reads, "p"), "*" if "*" in reads else typed)


@family("slct")
def _slct(instr: Instr, env: Env) -> Op:
    from gpulab.emulator.ops.edges import flush as flushed

    *flush, kind, test = instr.modifiers
    only(instr, tuple(flush), "ftz")
    kind = UNSIGNED[BYTES[kind_of(kind)]]

    def function(a: Array, b: Array, c: Array) -> Array:
        if flush:
            c = flushed(c)
        return np.where(c >= 0, a, b)

    return simple(instr, function, (kind, kind, test), kind)


_COMPARE: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def comparison(name: str, floating: bool) -> Callable[[Array, Array], Array]:
    """A comparison by its PTX name; for floats, ``ltu`` and its like are true of NaN.

    Raises:
        KeyError: no such comparison.
    """
    if not floating:
        found: Callable[[Array, Array], Array] = _COMPARE[name]
        return found
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name == "ne":  # ordered: false of NaN, unlike NumPy's
        return lambda a, b: (a < b) | (a > b)
    if name == "neu":
        return np.not_equal
    if name.endswith("u"):
        opposite = {"equ": "ne", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}[name]
        if opposite == "ne":
            return lambda a, b: ~((a < b) | (a > b))
        ufunc = _COMPARE[opposite]
        return lambda a, b: ~ufunc(a, b)
    plain: Callable[[Array, Array], Array] = _COMPARE[name]
    return plain


_COMBINE: dict[str, Any] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


@family("setp")
def _setp(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    if half.is_half(instr):
        return half.compared(instr)
    kind = words[-1].replace("b", "u") if words[-1][0] == "b" else words[-1]
    floating = kind in ("f32", "f64")
    compare = comparison(words[0], floating)
    boolean = next((w for w in words[1:-1] if w in _COMBINE), None)
    only(instr, words[1:-1], "ftz", *_COMBINE)
    results = result_registers(instr, instr.operands[0])
    if "ftz" in words:
        from gpulab.emulator.ops.edges import flush

        plain = compare

        def compare(a: Array, b: Array) -> Array:
            return plain(flush(a), flush(b))

    if boolean is None and len(results) == 1:
        return simple_compare(instr, compare, kind)
    return _combined(instr, compare, kind, boolean, results)


def simple_compare(instr: Instr, compare: Callable[..., Array], kind: str) -> Op:
    """Setp with one result and no third operand."""
    return simple(instr, compare, (kind, kind), "p")


def _combined(
    instr: Instr,
    compare: Callable[..., Array],
    kind: str,
    boolean: str | None,
    results: tuple[Reg | Sink, ...],
) -> Op:
    sources = instr.operands[1:]
    combine = _COMBINE[boolean] if boolean else None

    def function(a: Array, b: Array, *c: Array) -> Any:
        p = compare(a, b)
        q = ~p
        if combine is not None:
            p, q = combine(p, c[0]), combine(q, c[0])
        return p if len(results) == 1 else (p, q)

    reads = (kind, kind, "p")[: len(sources)]
    return Op(function, reads, ("p",) * len(results), sources, results)


@family("set")
def _set(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    if half.is_half(instr):
        return half.compared(instr)
    source, target = words[-1], words[-2]
    kind = source.replace("b", "u") if source[0] == "b" else source
    only(instr, words[1:-2], "ftz", *_COMBINE)
    boolean = next((w for w in words[1:-2] if w in _COMBINE), None)
    compare = comparison(words[0], kind in ("f32", "f64"))
    if "ftz" in words:
        stop(instr)

    def function(a: Array, b: Array, *c: Array) -> Array:
        p = compare(a, b)
        if boolean is not None:
            p = _COMBINE[boolean](p, c[0])
        if target == "f32":
            return p.astype(np.float32)
        return np.where(p, DTYPE[target].type(-1 if target == "s32" else 0xFFFFFFFF), 0).astype(
            DTYPE[target]
        )

    reads = (kind, kind, "p")[: len(instr.operands) - 1]
    return simple(instr, function, reads, target)


@family("cvta")
def _cvta(instr: Instr, env: Env) -> Op:
    spelled(instr, r"cvta(\.to)?\.[a-z]+(::cta)?\.u(32|64)")
    words = instr.modifiers
    space = words[-2]
    kind = words[-1]
    base = {
        "global": 0,
        "const": 0,
        "param": 0,
        "shared": spaces.SHARED_BASE,
        "shared::cta": spaces.SHARED_BASE,
        "local": spaces.LOCAL_BASE,
    }[space]
    if not base:
        return simple(instr, _same, (kind,), kind)
    shift = np.full((1, 1), base, DTYPE[kind])
    ufunc: Any = np.subtract if words[0] == "to" else np.add
    return simple(instr, lambda a: ufunc(a, shift), (kind,), kind)


@family("isspacep")
def _isspacep(instr: Instr, env: Env) -> Op:
    (space,) = instr.modifiers
    space = space.partition("::")[0]
    if space not in ("global", "shared", "local", "const", "param"):
        stop(instr)
    wanted = {"const": "global", "param": "global"}.get(space, space)

    def function(a: Array) -> Array:
        inside: Array = spaces.window(a) == spaces.WINDOWS[wanted]
        return inside

    return simple(instr, function, ("u64",), "p")
