"""Arithmetic on f16, bf16 and their pairs.

Sums, differences and products are rounded from float32, which has enough bits (24 >= 2 p + 2) for
the second rounding to be harmless; fused ones from an exact sum rounded to odd.

Source: PTX ISA, section "Half Precision Floating Point Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import exact
from gpulab.emulator.ops.registry import Op, only, result_registers, simple, stop
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.smallfloat import HALF_NAN, beside_ties, bf16_bits, decode, f16_bits
from gpulab.emulator.values import U16, U32, Array

TYPES = ("f16", "f16x2", "bf16", "bf16x2")
ONE = {"f16": 0x3C00, "bf16": 0x3F80}
_TINY = {"f16": np.float32(2.0**-14), "bf16": np.float32(2.0**-126)}
_STAYS = {
    "f16": np.float32(2.0**-14 * (1 - 2.0**-12)),
    "bf16": np.float32(2.0**-126 * (1 - 2.0**-9)),
}
"""The least result that .ftz leaves: its digits and any exponent would hold it as _TINY."""


def is_half(instr: Instr) -> bool:
    """Whether the (last) type of an instruction is a half format."""
    return bool(instr.modifiers) and instr.modifiers[-1] in TYPES


def encode32(form: str, x: Array) -> Array:
    """float32 to codes, to nearest even."""
    return f16_bits(x) if form == "f16" else bf16_bits(x)


def pairwise(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of 16-bit codes applied to both halves of 32-bit words."""

    def run(*words: Array) -> Array:
        low = function(*(w.astype(U16) for w in words))
        high = function(*((w >> U32.type(16)).astype(U16) for w in words))
        return low.astype(U32) | (high.astype(U32) << U32.type(16))

    return run


def form_of(instr: Instr) -> tuple[str, bool]:
    """(format, whether it is a pair)."""
    word = instr.modifiers[-1]
    return word.removesuffix("x2"), word.endswith("x2")


def _finish(form: str, words: tuple[str, ...]) -> Callable[[Array], Array]:
    ftz, sat, relu = "ftz" in words, "sat" in words, "relu" in words

    def run(x: Array) -> Array:
        if sat:
            x = np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0))
        if relu:
            x = np.where(np.isnan(x), x, np.where(x > 0, x, np.float32(0)))
        return encode32(form, _flush(x, _STAYS[form]) if ftz else x)

    return run


def _reader(form: str, words: tuple[str, ...]) -> Callable[[Array], Array]:
    if "ftz" not in words:
        return lambda codes: decode(form, codes)
    return lambda codes: _flush(decode(form, codes), _TINY[form])


def _flush(x: Array, least: np.float32) -> Array:
    """What is smaller than ``least`` to the zero of its sign."""
    return np.where(np.abs(x) < least, np.copysign(x.dtype.type(0), x), x)


def _op(instr: Instr, count: int, one: Callable[..., Array]) -> Op:
    _, pair = form_of(instr)
    kind = "u32" if pair else "u16"
    function = pairwise(one) if pair else one
    return simple(instr, function, (kind,) * count, kind)


def reader(form: str) -> Callable[[Array], Array]:
    """From codes of a half format to float32, exactly."""
    return _reader(form, ())


def binary(instr: Instr) -> Op:
    """add, sub, mul, min, max."""
    form, _ = form_of(instr)
    words = instr.modifiers
    if instr.base in ("min", "max"):
        return _extremum(instr, form)
    only(instr, words, "rn", "ftz", "sat", form, form + "x2")
    ufunc: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[instr.base]
    read, finish = _reader(form, words), _finish(form, words)
    return _op(instr, 2, lambda a, b: finish(ufunc(read(a), read(b))))


def _extremum(instr: Instr, form: str) -> Op:
    from gpulab.emulator.ops.floating import float_extremum

    words = instr.modifiers
    only(instr, words, "ftz", "NaN", "xorsign", "abs", form, form + "x2")
    pick = float_extremum(instr.base, "NaN" in words, "xorsign" in words)
    read, finish = _reader(form, words), _finish(form, words)
    if len(instr.operands) == 4:
        return _op(instr, 3, lambda a, b, c: finish(pick(pick(read(a), read(b)), read(c))))
    return _op(instr, 2, lambda a, b: finish(pick(read(a), read(b))))


def fused(instr: Instr) -> Op:
    """The fused multiply-add."""
    form, _ = form_of(instr)
    words = instr.modifiers
    only(instr, words, "rn", "ftz", "sat", "relu", "oob", form, form + "x2")
    if "oob" in words:
        stop(instr)
    return _op(instr, 3, fma_codes(form, words))


def fma_codes(form: str, words: tuple[str, ...] = ()) -> Callable[..., Array]:
    """``a * b + c`` on codes, rounded once."""
    read, finish = _reader(form, words), _finish(form, words)

    def run(a: Array, b: Array, c: Array) -> Array:
        product = np.multiply(read(a), read(b), dtype=np.float64)
        addend = read(c).astype(np.float64)
        # A float16 fused sum that float64 cannot hold is never next to a float16 tie: the term
        # that is cut off is at least 2^-21 of a half place away from one.
        total = product + addend if form == "f16" else _odd_where_tied(product, addend)
        if "ftz" in words:
            total = _flush(total, _STAYS[form])
        return finish(beside_ties(total, 12 if form == "f16" else 15))

    return run


def _odd_where_tied(product: Array, addend: Array) -> Array:
    """The float64 sum, rounded to odd where it is a tie of bfloat16 or below its normal range."""
    total = product + addend
    tied = (total.view(np.uint64) << np.uint64(64 - 45)) == np.uint64(1 << 63)
    tied |= np.abs(total) < 2.0**-126
    if tied.any():
        at = np.flatnonzero(tied)
        p, c = (np.broadcast_to(x, total.shape).flat[at] for x in (product, addend))
        total.flat[at] = exact.to_odd(*exact.two_sum(p, c))
    return total


def unary(instr: Instr) -> Op:
    """neg, abs: the sign bit; NaN becomes the canonical one."""
    form, _ = form_of(instr)
    words = instr.modifiers
    only(instr, words, "ftz", form, form + "x2")
    read, finish = _reader(form, words), _finish(form, words)
    signed = signed_codes(instr.base, form)

    def one(a: Array) -> Array:
        return signed(finish(read(a)) if "ftz" in words else a)

    return _op(instr, 1, one)


def signed_codes(base: str, form: str) -> Callable[[Array], Array]:
    """Neg or abs on codes."""
    sign = U16.type(0x8000)
    infinity = U16.type(0x7C00 if form == "f16" else 0x7F80)

    def run(a: Array) -> Array:
        out = a ^ sign if base == "neg" else a & ~sign
        return np.where((a & ~sign) > infinity, HALF_NAN, out)

    return run


def compared(instr: Instr) -> Op:
    """``setp`` and set on half formats."""
    from gpulab.emulator.ops.moves import _COMBINE, comparison

    form, pair = form_of(instr)
    words = instr.modifiers
    rest = words[1:-1] if instr.base == "setp" else words[1:-2]
    only(instr, rest, "ftz", *_COMBINE)
    boolean = next((w for w in rest if w in _COMBINE), None)
    test, read = comparison(words[0], True), _reader(form, words)

    def compare(a: Array, b: Array, *c: Array) -> Array:
        p = test(read(a), read(b))
        return _COMBINE[boolean](p, c[0]) if boolean else p

    extra = ("p",) if boolean else ()
    if instr.base == "setp":
        results = result_registers(instr, instr.operands[0])
        if not pair:
            return simple(instr, compare, ("u16", "u16", *extra), "p")

        def both(a: Array, b: Array, *c: Array) -> Any:
            high = U32.type(16)
            p = compare(a.astype(U16), b.astype(U16), *c)
            q = compare((a >> high).astype(U16), (b >> high).astype(U16), *c)
            return p, q

        return Op(both, ("u32", "u32", *extra), ("p", "p"), instr.operands[1:], results)
    target = words[-2]
    true = {"u32": 0xFFFF, "s32": 0xFFFF, "u16": 0xFFFF, "s16": 0xFFFF}.get(target, ONE[form])

    def one(a: Array, b: Array) -> Array:
        return np.where(compare(a, b), U16.type(true), U16.type(0))

    if boolean:
        stop(instr)
    if pair:
        return simple(instr, pairwise(one), ("u32", "u32"), "u32")
    if target in ("u32", "s32"):
        whole = np.uint32(0xFFFFFFFF)
        return simple(
            instr, lambda a, b: np.where(compare(a, b), whole, np.uint32(0)), ("u16", "u16"), "u32"
        )
    return simple(instr, one, ("u16", "u16"), "u16")
