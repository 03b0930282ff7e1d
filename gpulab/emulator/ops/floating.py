"""float32 and float64 arithmetic, and the opcodes that floats share with integers and halves.

Source: PTX ISA, section "Floating Point Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import exact
from gpulab.emulator.ops import half, integer
from gpulab.emulator.ops.edges import UNROUNDED, payload_kept, signed64, wrapped
from gpulab.emulator.ops.registry import Env, Op, family, only, simple, stop
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import DTYPE, Array, constant

ROUNDINGS = ("rn", "rz", "rm", "rp")


def float_kind(instr: Instr) -> str:
    """``f32`` or ``f64``.

    Raises:
        BuildError: another type.
    """
    kind = instr.modifiers[-1]
    if kind not in ("f32", "f64"):
        stop(instr)
    return kind


def rounding(words: tuple[str, ...]) -> str:
    """The rounding mode that ``words`` name; rn where they name none."""
    found = [w for w in words if w in ROUNDINGS]
    return found[0] if found else "rn"


def _binary(instr: Instr, f32: Any, f64: Any) -> Op:
    words = instr.modifiers
    kind = float_kind(instr)
    only(instr, words, *ROUNDINGS, "ftz", "sat", kind)
    mode = rounding(words)
    return _finished(instr, (f32 if kind == "f32" else f64)(mode), kind, 2)


def _finished(
    instr: Instr, function: Callable[..., Array], kind: str, count: int, base: str = ""
) -> Op:
    """``function`` of ``count`` operands with what .ftz and .sat ask for, and the card's NaNs."""
    base = base or instr.base
    if kind == "f64":
        function = payload_kept(base, function)
    whole = wrapped(function, instr.modifiers, UNROUNDED.get(base))
    return simple(instr, whole, (kind,) * count, kind)


def _adder(mode: str) -> Any:
    return np.add if mode == "rn" else lambda a, b: exact.add_f32_mode(a, b, mode)


def _adder64(mode: str) -> Any:
    return np.add if mode == "rn" else lambda a, b: exact.add_f64_mode(a, b, mode)


@family("add", "sub")
def _add_sub(instr: Instr, env: Env) -> Op:
    kind = integer.integer_kind(instr)
    if kind is not None:
        return integer.add_sub(instr, kind)
    if half.is_half(instr):
        return _widening(instr) if "f32" in instr.modifiers else half.binary(instr)
    if "cc" in instr.modifiers:
        return integer.add_sub(instr, instr.modifiers[-1].replace("b", "u"))
    if instr.base == "add":
        return _binary(instr, _adder, _adder64)

    def minus(adder: Any) -> Any:
        def choose(mode: str) -> Any:
            if mode == "rn":
                return np.subtract
            add = adder(mode)
            return lambda a, b: add(a, np.negative(b))

        return choose

    return _binary(instr, minus(_adder), minus(_adder64))


_WIDENING: dict[str, Any] = {"add": np.add, "sub": np.subtract, "fma": exact.fma_f32}


def _widening(instr: Instr) -> Op:
    """Halves before a last float32 (from 10.0): widened, which is exact, then rounded once."""
    words, form = instr.modifiers, instr.modifiers[-1]
    only(instr, words, "rn", "sat", "f32", form)
    operation = _WIDENING[instr.base]
    widen = half.reader(form)
    whole = wrapped(lambda *x: operation(*map(widen, x[:-1]), x[-1]), words[:-1], None)
    halves = 2 if instr.base == "fma" else 1
    return simple(instr, whole, ("u16",) * halves + ("f32",), "f32")


@family("mul")
def _mul(instr: Instr, env: Env) -> Op:
    kind = integer.integer_kind(instr)
    if kind is not None:
        return integer.product(instr, kind)
    if half.is_half(instr):
        return half.binary(instr)

    def f32(mode: str) -> Any:
        return np.multiply if mode == "rn" else lambda a, b: exact.mul_f32_mode(a, b, mode)

    def f64(mode: str) -> Any:
        return np.multiply if mode == "rn" else lambda a, b: exact.mul_f64_mode(a, b, mode)

    return _binary(instr, f32, f64)


@family("fma")
def _fma(instr: Instr, env: Env) -> Op:
    if half.is_half(instr):
        return _widening(instr) if "f32" in instr.modifiers else half.fused(instr)
    return fused(instr)


def fused(instr: Instr) -> Op:
    """Fma (and mad) of float32 or float64."""
    words = instr.modifiers
    kind = float_kind(instr)
    only(instr, words, *ROUNDINGS, "ftz", "sat", kind)
    mode = rounding(words)
    function: Callable[..., Array]
    if kind == "f64":

        def function(a: Array, b: Array, c: Array) -> Array:
            return exact.fma_f64_mode(a, b, c, mode)

    elif mode == "rn":
        function = exact.fma_f32
    else:

        def function(a: Array, b: Array, c: Array) -> Array:
            return exact.fma_f32_mode(a, b, c, mode)

    return _finished(instr, function, kind, 3, "fma")


def divided(instr: Instr, env: Env) -> Op:
    """Div of float32 or float64."""
    words = instr.modifiers
    kind = float_kind(instr)
    if "approx" in words or "full" in words:
        from gpulab.emulator.ops import approximate

        return approximate.quotient(instr, env)
    only(instr, words, *ROUNDINGS, "ftz", kind)
    mode = rounding(words)
    function = exact.div_f32_mode if kind == "f32" else exact.div_f64_mode
    return _finished(instr, lambda a, b: function(a, b, mode), kind, 2)


@family("rcp", "sqrt")
def _unary(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    kind = float_kind(instr)
    if "approx" in words:
        from gpulab.emulator.ops import approximate

        return approximate.unary(instr, env)
    only(instr, words, *ROUNDINGS, "ftz", kind)
    mode = rounding(words)
    function: Callable[[Array], Array]
    if instr.base == "sqrt":
        root = exact.sqrt_f32_mode if kind == "f32" else exact.sqrt_f64_mode

        def function(a: Array) -> Array:
            return root(a, mode)

    else:
        divide = exact.div_f32_mode if kind == "f32" else exact.div_f64_mode
        one: Array = np.ones((1, 1), DTYPE[kind])

        def function(a: Array) -> Array:
            return divide(one, a, mode)

    return _finished(instr, function, kind, 1)


@family("neg", "abs")
def _sign(instr: Instr, env: Env) -> Op:
    kind = integer.integer_kind(instr)
    if kind is not None:
        return (
            integer.negated(instr, kind) if instr.base == "neg" else integer.absolute(instr, kind)
        )
    if half.is_half(instr):
        return half.unary(instr)
    words = instr.modifiers
    kind = float_kind(instr)
    only(instr, words, "ftz", kind)
    function: Any = np.negative if instr.base == "neg" else np.absolute
    if kind == "f64":
        function = signed64(function)
    return simple(instr, wrapped(function, words), (kind,), kind)


def float_extremum(base: str, nan: bool = False, xorsign: bool = False) -> Callable[..., Array]:
    """Min or max of floats: a number beats NaN (unless ``nan``), -0 is below +0."""
    largest = base == "max"
    pick: Any = np.fmax if largest else np.fmin

    def function(a: Array, b: Array) -> Array:
        signs = np.signbit(a) ^ np.signbit(b) if xorsign else None
        if xorsign:
            a, b = np.abs(a), np.abs(b)
        out: Array = pick(a, b)
        equal = a == b
        if equal.any():
            raw = np.dtype(f"u{a.dtype.itemsize}")
            av, bv = a.view(raw), b.view(raw)
            # Equal numbers differ in the sign of zero at most.
            both = (av & bv if largest else av | bv).view(a.dtype)
            out = np.where(equal, both, out)
        if nan:
            out = np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), out)
        if signs is not None:
            out = np.where(signs, -np.abs(out), np.abs(out))
        return out

    return function


@family("min", "max")
def _extremum(instr: Instr, env: Env) -> Op:
    kind = integer.integer_kind(instr)
    if kind is not None:
        return integer.extremum(instr, kind)
    if half.is_half(instr):
        return half.binary(instr)
    words = instr.modifiers
    kind = float_kind(instr)
    only(instr, words, "ftz", "NaN", "xorsign", "abs", kind)
    function = float_extremum(instr.base, "NaN" in words, "xorsign" in words)
    if len(instr.operands) == 4:
        two = function
        return simple(instr, wrapped(lambda a, b, c: two(two(a, b), c), words), (kind,) * 3, kind)
    return _finished(instr, function, kind, 2)


@family("copysign")
def _copysign(instr: Instr, env: Env) -> Op:
    (kind,) = instr.modifiers
    raw, top = ("u32", 31) if kind == "f32" else ("u64", 63)
    sign = constant(1 << top, raw)

    def function(a: Array, b: Array) -> Array:
        return (a & sign) | (b & ~sign)

    return simple(instr, function, (raw, raw), raw)


@family("testp")
def _testp(instr: Instr, env: Env) -> Op:
    what, kind = instr.modifiers
    tiny = np.finfo(np.float32 if kind == "f32" else np.float64).tiny
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= tiny) | (a == 0)),
        "subnormal": lambda a: (np.abs(a) < tiny) & (a != 0),
    }
    return simple(instr, tests[what], (kind,), "p")


@family("ex2", "lg2", "rsqrt", "sin", "cos", "tanh")
def _approximate(instr: Instr, env: Env) -> Op:
    from gpulab.emulator.ops import approximate

    return approximate.unary(instr, env)
