"""The one rounding at the end of a block, and float16 codes of what it gives."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import FORMATS
from gpulab.numerics._operands import F32_BIAS, F32_MANTISSA

Result = Literal["rz_f32", "rne_f32", "rz_e8m13", "rne_f16", "rz_f16", "int32"]

F64_MANTISSA = 52
F64_BIAS = 1023
F16_LOWEST = FORMATS["fp16"].min_normal_exponent
_F16_BIAS = FORMATS["fp16"].bias
_F16_MANTISSA = FORMATS["fp16"].mantissa_bits
_F16_MAX = np.float32(FORMATS["fp16"].max_finite)
_F32_LOWEST = FORMATS["fp32"].min_normal_exponent
_KEPT_BITS = {"rz_f32": F32_MANTISSA, "rz_e8m13": 13}


def round_once(
    total: NDArray[np.float64], down: NDArray[Any], result: Result
) -> NDArray[np.float32]:
    """Round total * down (down is a power of two) once, to a float32; a zero result is +0.

    With a float32 ``down`` the result is known not to be subnormal.
    """
    with np.errstate(over="ignore"):
        if result.endswith("f16"):
            out = to_half(total * down, result == "rne_f16")
        elif down.dtype.itemsize == 4:
            if result != "rne_f32":
                _cut_fraction(total, _KEPT_BITS[result])
            out = total.astype(np.float32)
            out *= down
        else:
            value = total * down
            if result != "rne_f32":
                kept = _KEPT_BITS[result]
                step = 2.0 ** (_F32_LOWEST - kept)
                tiny = np.abs(value) < 2.0**_F32_LOWEST
                small = np.trunc(value[tiny] / step) * step
                _cut_fraction(value, kept)
                value[tiny] = small
            out = value.astype(np.float32)
    out += np.float32(0)  # -0 becomes +0
    return out


def to_half(values: NDArray[np.float64], nearest: bool) -> NDArray[np.float32]:
    """Float16 values, rounded once to nearest even or toward zero, held as float32.

    Adding and subtracting 1.5 * 2^52 units of the last place rounds to a multiple of that unit.
    """
    exponent = values.view(np.int64) & np.int64(0x7FF << F64_MANTISSA)
    np.maximum(exponent, np.int64((F64_BIAS + F16_LOWEST) << F64_MANTISSA), out=exponent)
    if nearest:
        exponent += np.int64((F64_MANTISSA - _F16_MANTISSA) << F64_MANTISSA)
        exponent |= np.int64(1 << (F64_MANTISSA - 1))
        magic = exponent.view(np.float64)
        rounded = values + magic
        rounded -= magic
    else:
        exponent -= np.int64(_F16_MANTISSA << F64_MANTISSA)
        unit = exponent.view(np.float64)
        rounded = np.trunc(values / unit) * unit
    out: NDArray[np.float32] = rounded.astype(np.float32)
    beyond = np.abs(out) > _F16_MAX
    if beyond.any():
        out[beyond] = np.copysign(np.float32(np.inf), out[beyond])
    return out


def half_codes(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Codes of float16 values held as float32, canonical NaN included."""
    moved = values * np.float32(2.0 ** (_F16_BIAS - F32_BIAS))  # the exponent field of float16
    bits = moved.view(np.uint32)
    codes = bits >> np.uint32(F32_MANTISSA - _F16_MANTISSA)
    codes &= np.uint32(0x7FFF)
    bits &= np.uint32(1 << 31)
    bits >>= np.uint32(16)
    codes |= bits
    return codes.astype(np.uint16)


def _cut_fraction(values: NDArray[np.float64], kept: int) -> None:
    """Drop fraction bits after the first ``kept``, toward zero, in place."""
    bits = values.view(np.int64)
    bits &= np.int64(-1 << (F64_MANTISSA - kept))
