"""The rules that carry the interpolated tables to every argument; see ``approx``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpulab.numerics._interpolate import FRACTION, interpolate, tables
from gpulab.numerics._results import F64_MANTISSA

Bits = NDArray[np.uint32]

_NAN = np.uint32(0x7FFFFFFF)
_INF = np.uint32(0x7F800000)
_SIGN = np.uint32(1 << 31)
_ONE = np.uint32(0x3F800000)
_MIN_NORMAL = np.uint32(1 << 23)
_MANTISSA = 23
_BIAS = 127
_FRACTION_MASK = (1 << _MANTISSA) - 1
_RAISE = np.float32(2.0**24)  # what a subnormal is multiplied by, where it is not flushed
_LG2_FRACTION = 36


def flushed(x: Bits) -> Bits:
    """Subnormals become zeros of their sign."""
    return np.where((x & ~_SIGN) < _MIN_NORMAL, x & _SIGN, x)


def canonical(values: NDArray[np.float32]) -> NDArray[np.float32]:
    values.view(np.uint32)[np.isnan(values)] = _NAN
    return values


def _exponent(x: Bits) -> NDArray[np.int64]:
    return ((x >> np.uint32(_MANTISSA)) & np.uint32(0xFF)).astype(np.int64) - _BIAS


def _fraction(x: Bits) -> NDArray[np.int64]:
    return (x & np.uint32(_FRACTION_MASK)).astype(np.int64)


def _assemble(significand: NDArray[np.int64], exponent: NDArray[np.int64]) -> Bits:
    """Bits of significand * 2^(exponent - 23), 2^23 <= significand <= 2^24; subnormals are 0."""
    field = (exponent + (_BIAS - 1) << _MANTISSA) + significand  # the leading one adds one
    field[field < int(_MIN_NORMAL)] = 0
    np.minimum(field, int(_INF), out=field)
    return field.astype(np.uint32)


def _specials(out: Bits, x: Bits, *, zero: Bits, infinity: Bits, negative_is_nan: bool) -> Bits:
    """Overwrite the results of zeros, infinities, NaN and, where asked, negative numbers."""
    magnitude = x & ~_SIGN
    out = np.where(magnitude == _INF, infinity, out)
    if negative_is_nan:
        out = np.where(x > _SIGN, _NAN, out)
    out = np.where(magnitude == 0, zero, out)
    return np.where(magnitude > _INF, _NAN, out)


def _ex2_ftz(x: Bits) -> Bits:
    """|x| is cut to 23 fraction bits; a negative x takes the one's complement of them."""
    magnitude = np.minimum(np.abs(x.view(np.float32)), np.float32(2.0**9)).astype(np.float64)
    fixed = np.nan_to_num(magnitude * 2.0**_MANTISSA).astype(np.int64)
    negative = ((x & _SIGN) != 0) & (fixed & _FRACTION_MASK != 0)
    whole, position = fixed >> _MANTISSA, fixed & _FRACTION_MASK
    position = np.where(negative, _FRACTION_MASK - position, position)
    exponent = np.where((x & _SIGN) != 0, -whole - negative, whole)
    out = _assemble(interpolate("ex2", position) >> FRACTION, exponent)
    at_infinity = np.where(x >= _SIGN, np.uint32(0), _INF)
    one = np.full_like(x, _ONE)
    return _specials(out, x, zero=one, infinity=at_infinity, negative_is_nan=False)


def _ex2(x: Bits) -> Bits:
    """Below -126 the result is the square of ex2(x / 2), rounded once."""
    value = x.view(np.float32)
    deep = value < np.float32(-126)
    out = _ex2_ftz(np.where(deep, value * np.float32(0.5), value).view(np.uint32))
    root = out.view(np.float32).astype(np.float64)
    return np.where(deep, (root * root).astype(np.float32).view(np.uint32), out)


def _rcp_ftz(x: Bits) -> Bits:
    x = flushed(x)
    sign = x & _SIGN
    position = _fraction(x)
    significand = interpolate("rcp", position) >> FRACTION
    significand[position == 0] = 1 << (_MANTISSA + 1)
    out = _assemble(significand, -_exponent(x) - 1) | sign
    return _specials(out, x, zero=sign | _INF, infinity=sign, negative_is_nan=False)


def _rcp(x: Bits) -> Bits:
    """Arguments that are subnormal, or whose reciprocal is, are scaled before and after."""
    magnitude = x & ~_SIGN
    small = magnitude < _MIN_NORMAL
    large = (magnitude > np.float32(2.0**126).view(np.uint32)) & (magnitude < _INF)
    quarter = np.float32(0.25)
    scale = np.where(small, _RAISE, np.where(large, quarter, np.float32(1)))
    out = _rcp_ftz((x.view(np.float32) * scale).view(np.uint32)).view(np.float32) * scale
    return canonical(out).view(np.uint32)


def _root(name: str, x: Bits) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Significand from the table of [1, 4), and half the even exponent."""
    exponent = _exponent(x)
    position = ((exponent & 1) << _MANTISSA) | _fraction(x)
    significand = interpolate(name, position) >> FRACTION
    if name == "rsqrt":
        significand[position == 0] = 1 << (_MANTISSA + 1)
    return significand, exponent >> 1


def _rsqrt_ftz(x: Bits) -> Bits:
    x = flushed(x)
    significand, exponent = _root("rsqrt", x)
    out = _assemble(significand, -exponent - 1)
    zero = (x & _SIGN) | _INF
    return _specials(out, x, zero=zero, infinity=np.zeros_like(x), negative_is_nan=True)


def _sqrt_ftz(x: Bits) -> Bits:
    x = flushed(x)
    significand, exponent = _root("sqrt", x)
    out = _assemble(significand, exponent)
    infinity = np.full_like(x, _INF)
    return _specials(out, x, zero=x & _SIGN, infinity=infinity, negative_is_nan=True)


def _lg2_ftz(x: Bits) -> Bits:
    """Exponent + table, at 2^-36; a negative sum is complemented, not negated; cut to float32."""
    x = flushed(x)
    position = _fraction(x)
    fixed = interpolate("lg2", position) >> (FRACTION + _MANTISSA + 1 - _LG2_FRACTION)
    fixed += _exponent(x) << _LG2_FRACTION
    fixed[x == _ONE] = 0
    negative = fixed < 0
    magnitude = np.where(negative, ~fixed, fixed).astype(np.float64)
    cut = magnitude.view(np.int64) & np.int64(-1 << (F64_MANTISSA - _MANTISSA))
    out = (cut.view(np.float64) * 2.0**-_LG2_FRACTION).astype(np.float32).view(np.uint32)
    out |= np.where(negative, _SIGN, np.uint32(0))
    zero, infinity = np.full_like(x, _INF | _SIGN), np.full_like(x, _INF)
    return _specials(out, x, zero=zero, infinity=infinity, negative_is_nan=True)


def _raised(
    rule: Callable[[Bits], Bits], back: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> Callable[[Bits], Bits]:
    """The form without .ftz: a subnormal is scaled by 2^24, its result corrected by ``back``."""

    def whole(x: Bits) -> Bits:
        small = ((x & ~_SIGN) < _MIN_NORMAL) & ((x & ~_SIGN) != 0)
        out = rule(np.where(small, x.view(np.float32) * _RAISE, x.view(np.float32)).view(np.uint32))
        corrected = canonical(back(out.view(np.float32))).view(np.uint32)
        return np.where(small, corrected, out)

    return whole


@lru_cache(maxsize=1)
def _ex2_f16() -> NDArray[np.uint16]:
    """ex2.approx.ftz.f32 of the half, cut toward zero to a half."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        value = _ex2_ftz(codes.view(np.float16).astype(np.float32).view(np.uint32))
        nearest = value.view(np.float32).astype(np.float16)
    bits = nearest.view(np.uint16)
    bits -= (nearest.astype(np.float32) > value.view(np.float32)) & np.isfinite(nearest)
    bits[np.isnan(nearest)] = 0x7FFF
    return bits


@lru_cache(maxsize=1)
def _ex2_bf16() -> NDArray[np.uint16]:
    """ex2.approx.ftz.f32 of the bfloat16, cut toward zero: its upper half."""
    codes = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    with np.errstate(all="ignore"):
        return (_ex2_ftz(codes) >> np.uint32(16)).astype(np.uint16)


def _tanh(kind: str) -> Callable[[], NDArray[np.uint16]]:
    @lru_cache(maxsize=1)
    def table() -> NDArray[np.uint16]:
        positive = np.cumsum(tables()[f"tanh_{kind}"]).astype(np.uint16)
        negative = np.where(positive == 0x7FFF, positive, positive | np.uint16(0x8000))
        return np.concatenate([positive, negative])

    return table


RULES: dict[str, Callable[[Bits], Bits]] = {
    "ex2.approx.ftz.f32": _ex2_ftz,
    "ex2.approx.f32": _ex2,
    "rcp.approx.ftz.f32": _rcp_ftz,
    "rcp.approx.f32": _rcp,
    "rsqrt.approx.ftz.f32": _rsqrt_ftz,
    "rsqrt.approx.f32": _raised(_rsqrt_ftz, lambda y: y * np.float32(2.0**12)),
    "sqrt.approx.ftz.f32": _sqrt_ftz,
    "sqrt.approx.f32": _raised(_sqrt_ftz, lambda y: y * np.float32(2.0**-12)),
    "lg2.approx.ftz.f32": _lg2_ftz,
    "lg2.approx.f32": _raised(_lg2_ftz, lambda y: y - np.float32(24)),
}
HALF: dict[str, Callable[[], NDArray[np.uint16]]] = {
    "ex2.approx.f16": _ex2_f16,
    "ex2.approx.ftz.bf16": _ex2_bf16,
    "tanh.approx.f16": _tanh("f16"),
    "tanh.approx.bf16": _tanh("bf16"),
}
