"""Half and smaller formats on arrays of codes: decode to float32, encode with one rounding.

Encoders take float32 or float64 values and round once in any mode; NaN becomes the card's
canonical code (all exponent and mantissa bits set, positive).

Source: PTX ISA, section "cvt"; formats as in ``gpulab.formats``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
U16, U32, F32, F64 = np.uint16, np.uint32, np.float32, np.float64

HALF_NAN = np.uint16(0x7FFF)
_F16_VALUES = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)


@dataclass(frozen=True)
class Small:
    """A format: exponent and mantissa bits, bias, NaN code, largest finite value, infinity."""

    exponent: int
    mantissa: int
    bias: int
    nan: int
    largest: float
    infinite: bool

    @property
    def bits(self) -> int:
        """Width with the sign."""
        return 1 + self.exponent + self.mantissa


F16 = Small(5, 10, 15, 0x7FFF, 65504.0, True)
BF16 = Small(8, 7, 127, 0x7FFF, float(2.0**127 * (2 - 2.0**-7)), True)
E4M3 = Small(4, 3, 7, 0x7F, 448.0, False)
E5M2 = Small(5, 2, 15, 0x7F, 57344.0, True)
E2M3 = Small(2, 3, 1, 0, 7.5, False)
E3M2 = Small(3, 2, 3, 0, 28.0, False)
E2M1 = Small(2, 1, 1, 0, 6.0, False)
FORMATS = {
    "f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2, "e2m3": E2M3, "e3m2": E3M2, "e2m1": E2M1,
}  # fmt: skip


def _table(form: Small) -> Array:
    """All values of a format as float32, by code."""
    code = np.arange(1 << form.bits)
    sign = np.where(code >> (form.bits - 1), -1.0, 1.0)
    exponent = (code >> form.mantissa) & ((1 << form.exponent) - 1)
    mantissa = code & ((1 << form.mantissa) - 1)
    subnormal = exponent == 0
    significand = mantissa / (1 << form.mantissa) + ~subnormal
    value = sign * np.ldexp(significand, np.where(subnormal, 1, exponent) - form.bias)
    top = (1 << form.exponent) - 1
    if form.infinite:
        value = np.where((exponent == top) & (mantissa == 0), sign * np.inf, value)
        value = np.where((exponent == top) & (mantissa != 0), np.nan, value)
    elif form.nan:
        value = np.where((code & 0x7F) == form.nan, np.nan, value)
    single: Array = value.astype(F32)
    return single


_TABLES = {name: _table(form) for name, form in FORMATS.items() if form.bits <= 8}


def decode(name: str, codes: Array) -> Array:
    """Codes (uint16, or uint8 for the small ones) as float32, exactly."""
    if name == "f16":
        return _F16_VALUES.take(codes)
    if name == "bf16":
        return (codes.astype(U32) << U32(16)).view(F32)
    return _TABLES[name].take(codes)


def f16_bits(x: Array) -> Array:
    """float32 to float16 codes, to nearest even."""
    bits = x.view(U32)
    size = bits & U32(0x7FFFFFFF)
    rounded = size + U32(0xFFF) + ((size >> U32(13)) & U32(1))
    code = (rounded - U32(112 << 23)) >> U32(13)
    small = size < U32(0x38800000)
    if small.any():
        # Adding 1/2 aligns the last place of a float32 with that of a subnormal float16.
        shifted = (size.view(F32) + F32(0.5)).view(U32) - U32(0x3F000000)
        code = np.where(small, shifted, code)
    large = size >= U32(0x477FF000)
    if large.any():
        code = np.where(large, U32(0x7C00), code)
        code = np.where(size > U32(0x7F800000), U32(0x7FFF), code)
        bits = np.where(size > U32(0x7F800000), U32(0), bits)
    return (code | ((bits >> U32(16)) & U32(0x8000))).astype(U16)


def bf16_bits(x: Array) -> Array:
    """float32 to bfloat16 codes, to nearest even."""
    bits = x.view(U32)
    code = ((bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) >> U32(16)).astype(U16)
    nan = np.isnan(x)
    return np.where(nan, HALF_NAN, code) if nan.any() else code


def beside_ties(s: Array, low_bits: int) -> Array:
    """float64 to float32 such that a further rounding which drops ``low_bits`` + 1 bits is right.

    A float32 that could be a tie of the narrower format is moved one place toward ``s`` where it
    is not equal to it.
    """
    r = s.astype(F32)
    doubtful = (r.view(U32) & U32((1 << low_bits) - 1)) == 0
    if doubtful.any():
        at = np.flatnonzero(doubtful)
        near, true = r.flat[at], s.flat[at]
        away = true - near.astype(F64)
        moved = np.nextafter(near, np.where(away > 0, F32(np.inf), F32(-np.inf)))
        r.flat[at] = np.where((away != 0) & np.isfinite(near), moved, near)
    return r


def encode(name: str, x: Array, mode: str = "rn", satfinite: bool = False) -> Array:
    """float32 or float64 values to codes (uint16; uint8 for formats of 8 bits and fewer).

    Args:
        name: ``f16``, ``bf16``, ``e4m3``, ``e5m2``, ``e2m3``, ``e3m2``, ``e2m1``.
        x: values.
        mode: ``rn``, ``rz``, ``rm``, ``rp``, or ``rna`` (ties away from zero).
        satfinite: values beyond the largest finite one become it, infinities too.
    """
    if mode == "rn" and not satfinite and name in ("f16", "bf16"):
        if x.dtype == F64:
            x = beside_ties(x, 12 if name == "f16" else 15)
        return f16_bits(x) if name == "f16" else bf16_bits(x)
    form = FORMATS[name]
    return _encode(form, x.astype(F64), mode, satfinite or not form.infinite)


_ROUND: dict[str, Callable[[Array], Array]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda v: np.trunc(v + np.copysign(0.5, v)),
}


def _encode(form: Small, x: Array, mode: str, saturate: bool) -> Array:
    nan = np.isnan(x)
    value = np.where(nan, 0.0, x)
    finite = np.isfinite(value)
    safe = np.where(finite, value, 0.0)
    _, exponent = np.frexp(safe)
    quantum = np.maximum(exponent - 1, 1 - form.bias) - form.mantissa
    rounded = np.ldexp(_ROUND[mode](np.ldexp(safe, -quantum)), quantum)
    rounded = np.where(finite, rounded, value)
    size = np.abs(rounded)
    over = size > form.largest
    # Directed modes stop at the largest finite value on the way to zero.
    stays = (mode == "rz") | ((mode == "rm") & (x > 0)) | ((mode == "rp") & (x < 0))
    size = np.where(over, np.where(saturate | (stays & finite), form.largest, np.inf), size)
    _, exponent = np.frexp(np.where(np.isinf(size), 1.0, size))
    biased = np.maximum(exponent - 1 + form.bias, 0)
    scale = np.maximum(biased, 1) - form.bias - form.mantissa
    mantissa = np.ldexp(np.where(np.isinf(size), 0.0, size), -scale).astype(np.int64)
    code = mantissa + (np.maximum(biased - 1, 0) << form.mantissa)
    code = np.where(size == 0, 0, code)
    code = np.where(np.isinf(size), ((1 << form.exponent) - 1) << form.mantissa, code)
    code = code | (np.signbit(rounded).astype(np.int64) << (form.bits - 1))
    if form.nan:
        code = np.where(nan, form.nan, code)
    else:  # formats without NaN: the card stores the largest value
        code = np.where(nan, (1 << (form.bits - 1)) - 1, code)
    return code.astype(U16 if form.bits > 8 else np.uint8)
