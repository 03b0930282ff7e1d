"""Integer arithmetic: add, sub, mul, mad, div, rem, min, max, neg, abs, sad, carry.

Source: PTX ISA, section "Integer Arithmetic Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator.ops.registry import Env, Op, family, only, simple, stop
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import BYTES, DTYPE, S64, U64, Array, kind_of

_INTEGER = {"u16", "s16", "u32", "s32", "u64", "s64"}


def integer_kind(instr: Instr) -> str | None:
    """The kind of an integer instruction, None for a floating one."""
    word = instr.modifiers[-1] if instr.modifiers else ""
    return word if word in _INTEGER else None


def multiply_high(a: Array, b: Array, kind: str) -> Array:
    """The upper half of the double-width product."""
    width = BYTES[kind]
    if width < 8:
        wide = DTYPE[kind[0] + str(16 * width)]
        product = np.multiply(a, b, dtype=wide)
        result: Array = (product >> wide.type(8 * width)).astype(DTYPE[kind])
        return result
    return _high64(a, b, kind)


def _high64(a: Array, b: Array, kind: str) -> Array:
    ua, ub = a.view(U64), b.view(U64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = ua & low, ua >> half, ub & low, ub >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & low)
    high: Array = a1 * b1 + (middle >> half) + (other >> half)
    if kind == "s64":
        zero = np.uint64(0)
        high = high - np.where(a.view(S64) < 0, ub, zero) - np.where(b.view(S64) < 0, ua, zero)
        high = high.view(S64)
    return high


def multiply_wide(kind: str) -> tuple[Callable[[Array, Array], Array], str]:
    """The double-width product of 16 or 32 bit integers, and its kind."""
    wide = kind[0] + str(16 * BYTES[kind])
    dtype = DTYPE[wide]

    def function(a: Array, b: Array) -> Array:
        result: Array = a.astype(dtype) * b.astype(dtype)
        return result

    return function, wide


def low24(kind: str) -> Callable[[Array, Array], Array]:
    """Product of the low 24 bits, bits 0 to 31 of it."""
    shift = DTYPE[kind].type(8)

    def function(a: Array, b: Array) -> Array:
        result: Array = ((a << shift) >> shift) * ((b << shift) >> shift)
        return result

    return function


def _saturating(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """s32 with the exact result in s64, clamped."""

    def run(a: Array, b: Array) -> Array:
        exact = function(a.astype(S64), b.astype(S64))
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

    return run


def _carry(instr: Instr, kind: str) -> Op:
    """add, sub and mad with carry in (``addc``) or out (``.cc``): one flag a lane, in the state."""
    words, base = instr.modifiers, instr.base
    only(instr, words, "cc", "lo", "hi", kind)
    sets, uses = "cc" in words, base in ("addc", "subc", "madc")
    unsigned = "u" + kind[1:]
    high = "hi" in words

    def function(state: Any, _instr: Instr, _mask: Any, a: Array, b: Array, *c: Array) -> Array:
        incoming = state.carry.astype(a.dtype) if uses else a.dtype.type(0)
        if c:
            product = (
                multiply_high(a.view(DTYPE[kind]), b.view(DTYPE[kind]), kind) if high else a * b
            )
            a, b = product.view(DTYPE[unsigned]), c[0]
        if base.startswith("sub"):
            first = a - b
            out = first - incoming
            carry = (a < b) | (first < incoming)
        else:
            first = a + b
            out = first + incoming
            carry = (first < a) | (out < first)
        if sets:
            state.carry = carry
        result: Array = out
        return result

    reads = (unsigned,) * (3 if base.startswith("mad") else 2)
    return simple(instr, function, reads, unsigned, context=True)


def add_sub(instr: Instr, kind: str) -> Op:
    """Integer add and sub, called by the shared builder of those opcodes."""
    words = instr.modifiers
    if "cc" in words or instr.base in ("addc", "subc"):
        return _carry(instr, kind)
    only(instr, words, "sat", kind)
    function: Any = np.add if instr.base == "add" else np.subtract
    if "sat" in words:
        return simple(instr, _saturating(function), ("s32", "s32"), "s32")
    # Wrapping is the same for signed and unsigned; one kind for all avoids views.
    kind = "u" + kind[1:]
    return simple(instr, function, (kind, kind), kind)


@family("addc", "subc", "madc")
def _addc(instr: Instr, env: Env) -> Op:
    return _carry(instr, instr.modifiers[-1].replace("b", "u"))


def product(instr: Instr, kind: str) -> Op:
    """Mul of integers, called by the shared builder."""
    words = instr.modifiers
    only(instr, words, "lo", "hi", "wide", kind)
    if "wide" in words:
        function, wide = multiply_wide(kind)
        return simple(instr, function, (kind, kind), wide)
    if "hi" in words:
        return simple(instr, lambda a, b: multiply_high(a, b, kind), (kind, kind), kind)
    kind = "u" + kind[1:]
    return simple(instr, np.multiply, (kind, kind), kind)


@family("mad")
def _mad(instr: Instr, env: Env) -> Op:
    found = integer_kind(instr)
    if found is None:
        from gpulab.emulator.ops.floating import fused

        return fused(instr)
    kind = found
    words = instr.modifiers
    if "cc" in words:
        return _carry(instr, kind)
    only(instr, words, "lo", "hi", "wide", kind)
    if "wide" in words:
        multiply, wide = multiply_wide(kind)
        return simple(instr, lambda a, b, c: multiply(a, b) + c, (kind, kind, wide), wide)
    if "hi" in words:
        return simple(
            instr, lambda a, b, c: multiply_high(a, b, kind) + c, (kind, kind, kind), kind
        )
    kind = "u" + kind[1:]
    return simple(instr, lambda a, b, c: a * b + c, (kind, kind, kind), kind)


@family("mul24", "mad24")
def _mul24(instr: Instr, env: Env) -> Op:
    form, kind = instr.modifiers
    only(instr, (form,), "lo")
    multiply = low24(kind)
    if instr.base == "mul24":
        return simple(instr, multiply, (kind, kind), kind)
    return simple(instr, lambda a, b, c: multiply(a, b) + c, (kind, kind, kind), kind)


def _magnitude(a: Array) -> Array:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.where(a < 0, np.subtract(a.dtype.type(0), a), a).view(unsigned)


def divide(a: Array, b: Array) -> Array:
    """Quotient toward zero; a zero divisor gives all ones, as the device's routine does."""
    if a.dtype.kind == "u":
        zero = b == 0
        if zero.any():
            return np.where(zero, ~a.dtype.type(0), a // np.where(zero, a.dtype.type(1), b))
        return a // b
    quotient = divide(_magnitude(a), _magnitude(b)).view(a.dtype)
    out = np.where((a < 0) != (b < 0), np.subtract(a.dtype.type(0), quotient), quotient)
    return np.where(b == 0, a.dtype.type(-1), out)


def remainder(a: Array, b: Array) -> Array:
    """A - b * divide(a, b), with the sign of a; all ones where b is zero."""
    result: Array = a - b * divide(a, b)
    zero = b == 0
    return np.where(zero, ~a.dtype.type(0), result) if zero.any() else result


@family("div")
def _div(instr: Instr, env: Env) -> Op:
    kind = integer_kind(instr)
    if kind is None:
        from gpulab.emulator.ops.floating import divided

        return divided(instr, env)
    only(instr, instr.modifiers, kind)
    return simple(instr, divide, (kind, kind), kind)


@family("rem")
def _rem(instr: Instr, env: Env) -> Op:
    (kind,) = instr.modifiers
    return simple(instr, remainder, (kind, kind), kind)


def extremum(instr: Instr, kind: str) -> Op:
    """Integer min and max (``.relu`` clamps at zero)."""
    only(instr, instr.modifiers, "relu", kind)
    function: Any = np.minimum if instr.base == "min" else np.maximum
    if "relu" in instr.modifiers:
        zero = DTYPE[kind].type(0)
        return simple(instr, lambda a, b: np.maximum(function(a, b), zero), (kind, kind), kind)
    return simple(instr, function, (kind, kind), kind)


@family("sad")
def _sad(instr: Instr, env: Env) -> Op:
    (kind,) = instr.modifiers

    def function(a: Array, b: Array, c: Array) -> Array:
        return c + np.where(a < b, b - a, a - b)

    return simple(instr, function, (kind, kind, kind), kind)


def negated(instr: Instr, kind: str) -> Op:
    """Integer neg."""
    only(instr, instr.modifiers, kind)
    return simple(instr, np.negative, (kind,), kind)


def absolute(instr: Instr, kind: str) -> Op:
    """Integer abs."""
    only(instr, instr.modifiers, kind)
    return simple(instr, np.absolute, (kind,), kind)


def shift_type(instr: Instr) -> str:
    """The kind of a one-type bit instruction.

    Raises:
        BuildError: more than one modifier.
    """
    if len(instr.modifiers) != 1:
        stop(instr, "modifiers")
    return kind_of(instr.modifiers[0])
