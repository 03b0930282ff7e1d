"""The truncating fused dot-add over whole batches: one block of products and an addend.

For each output: E is the largest exponent among the live terms (products and addend), every term
is cut toward zero to F fraction bits below 2^E, the cut terms are summed as integers, and the sum
is rounded once. The cut and the sum make the order of the terms irrelevant.

Two carriers hold the terms. ``_narrow``: float32 products scaled by 2^(F-E) and cut by the
conversion to int32; it serves every case whose exponents fit, and is the fast one. ``_wide``:
float64 throughout; it serves the rest. Both are exact, so they agree to the last bit.

Arrays lie as (k, m, 1 or n, batch): the batch is the contiguous axis of every operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import encode
from gpulab.numerics._operands import F32_BIAS, F32_MANTISSA, Operand

Result = Literal["rz_f32", "rne_f32", "rz_e8m13", "rne_f16", "rz_f16", "int32"]
F32_NAN = np.uint32(0x7FFFFFFF)
F16_NAN = np.uint16(0x7FFF)

_F64_MANTISSA = 52
_F64_BIAS = 1023
_INT32_BITS = 31
_F32_EXPONENT_MASK = np.int32(0xFF)
_NO_TERM = -600  # E where no term is live: below every exponent, and 2^-E is a float64
_KEPT_BITS = {"rz_f32": 23, "rz_e8m13": 13}
_DEAD_SUM = np.int8(-128)


@dataclass(frozen=True)
class Rule:
    """What one block does: F and the rounding of its result."""

    fraction_bits: int
    result: Result

    @property
    def half(self) -> bool:
        """Whether C and D are float16."""
        return self.result.endswith("f16")


def dot_add(a: Operand, b: Operand, c: NDArray[Any], rule: Rule) -> NDArray[Any]:
    """One block for every output.

    Args:
        a: operands (k, m, batch).
        b: operands (k, n, batch).
        c: float32 or, where ``rule.half``, float16 values (m, n, batch).
        rule: F and rounding.

    Returns:
        float32 or float16 (m, n, batch); NaN results are the canonical ones.
    """
    special = a.raw is not None or b.raw is not None
    finite = np.isfinite(c)
    addend = c
    if not finite.all():
        special = True
        addend = np.where(finite, c, c.dtype.type(0))
    result = _narrow(a, b, addend, rule)
    if result is None:
        result = _wide(a, b, addend, rule)
    if special:
        _put_specials(result, a, b, c)
    return result


def _narrow(a: Operand, b: Operand, c: NDArray[Any], rule: Rule) -> NDArray[Any] | None:
    """The float32/int32 carrier, or None where some exponent does not fit it."""
    fraction = rule.fraction_bits
    depth = a.values.shape[0]
    group = 1 << max(_INT32_BITS - (fraction + 2), 0)  # products whose cut sum fits an int32
    if fraction < 1 or fraction + 2 > _INT32_BITS:
        return None
    floor = fraction + 2  # smallest biased E for which 2^(F-E) and 2^(E-F) are normal float32
    if not (a.narrow and b.narrow):
        (a_low, a_high), (b_low, b_high) = a.live_range(), b.live_range()
        if a_low + b_low < floor - F32_BIAS or a_high + b_high > F32_BIAS - 2:
            return None
    largest = _largest_exponent(a, b).astype(np.int32)
    largest += np.int32(F32_BIAS)
    np.maximum(largest, _biased_exponents(c), out=largest)
    np.maximum(largest, np.int32(floor), out=largest)
    if np.any((largest == floor) & (c != 0)):
        return None
    scale = np.left_shift(np.int32(2 * F32_BIAS + fraction) - largest, F32_MANTISSA)
    up = scale.view(np.float32)  # 2^(F-E)
    total = np.zeros(c.shape, dtype=np.float64)
    product = np.empty(c.shape, dtype=np.float32)
    cut = np.empty(c.shape, dtype=np.int32)
    for start in range(0, depth, group):
        partial = np.zeros(c.shape, dtype=np.int32)
        for k in range(start, min(start + group, depth)):
            np.multiply(a.values[k][:, None], b.values[k][None], out=product)
            np.multiply(product, up, out=product)
            np.copyto(cut, product, casting="unsafe")
            np.add(partial, cut, out=partial)
        total += partial
    np.multiply(c, up, out=product)
    np.copyto(cut, product, casting="unsafe")
    total += cut
    np.subtract(largest, np.int32(fraction), out=largest)
    np.left_shift(largest, F32_MANTISSA, out=largest)
    down = largest.view(np.float32)  # 2^(E-F)
    return _round(total, down, rule.result)


def _largest_exponent(a: Operand, b: Operand) -> NDArray[Any]:
    kind = a.exponents.dtype
    shape = (a.exponents.shape[1], *b.exponents.shape[1:])
    largest = np.empty(shape, dtype=kind)
    one = np.empty(shape, dtype=kind)
    np.add(a.exponents[0][:, None], b.exponents[0][None], out=largest)
    for k in range(1, a.exponents.shape[0]):
        np.add(a.exponents[k][:, None], b.exponents[k][None], out=one)
        np.maximum(largest, one, out=largest)
    if a.narrow:
        largest[largest < -32] = _DEAD_SUM
    return largest


def _biased_exponents(c: NDArray[Any]) -> NDArray[np.int32]:
    """Exponent fields (as float32) of the addend; a float16 subnormal has float16's smallest."""
    bits = c.astype(np.float32).view(np.int32) if c.dtype.itemsize == 2 else c.view(np.int32)
    field = np.right_shift(bits, F32_MANTISSA)
    field &= _F32_EXPONENT_MASK
    if c.dtype.itemsize == 2:
        np.maximum(field, np.int32(F32_BIAS - 14), out=field, where=c != 0)
    return field


def _wide(a: Operand, b: Operand, c: NDArray[Any], rule: Rule) -> NDArray[Any]:
    """The float64 carrier: every product, scale and sum is exact."""
    fraction = rule.fraction_bits
    largest = _largest_exponent(a, b).astype(np.int64)
    addend = _biased_exponents(c).astype(np.int64) - F32_BIAS
    np.maximum(addend, -126, out=addend)
    addend[c == 0] = _NO_TERM
    np.maximum(largest, addend, out=largest)
    np.maximum(largest, _NO_TERM, out=largest)
    up = ((_F64_BIAS + fraction - largest) << _F64_MANTISSA).view(np.float64)
    total = np.trunc(c.astype(np.float64) * up)
    for k in range(a.values.shape[0]):
        product = a.values[k].astype(np.float64)[:, None] * b.values[k].astype(np.float64)[None]
        product *= up
        total += np.trunc(product, out=product)
    down = ((_F64_BIAS + largest - fraction) << _F64_MANTISSA).view(np.float64)
    return _round(total, down, rule.result)


def _round(total: NDArray[np.float64], down: NDArray[Any], result: Result) -> NDArray[Any]:
    """Round total * down (down is a power of two) once; a zero result is +0.

    With a float32 ``down`` the result is known not to be subnormal.
    """
    with np.errstate(over="ignore"):
        out: NDArray[Any]
        if result == "rne_f16":
            out = (total * down).astype(np.float16)
            out += np.float16(0)  # -0 becomes +0
            return out
        if result == "rz_f16":
            out = encode("fp16", total * down, "toward_zero").view(np.float16)
            out += np.float16(0)
            return out
        if down.dtype.itemsize == 4:
            if result != "rne_f32":
                _cut_fraction(total, _KEPT_BITS[result])
            out = total.astype(np.float32)
            out *= down
            return out
        value = total * down
        if result != "rne_f32":
            kept = _KEPT_BITS[result]
            step = 2.0 ** -(126 + kept)
            tiny = np.abs(value) < 2.0**-126
            small = np.trunc(value[tiny] / step) * step
            _cut_fraction(value, kept)
            value[tiny] = small
        out = value.astype(np.float32)
        out += np.float32(0)
        return out


def _cut_fraction(values: NDArray[np.float64], kept: int) -> None:
    """Drop fraction bits after the first ``kept``, toward zero, in place."""
    bits = values.view(np.int64)
    bits &= np.int64(-1 << (_F64_MANTISSA - kept))


def _put_specials(result: NDArray[Any], a: Operand, b: Operand, c: NDArray[Any]) -> None:
    """Overwrite outputs that a NaN or Inf reaches: IEEE addition of the terms says which."""
    a_raw = a.values if a.raw is None else a.raw
    b_raw = b.values if b.raw is None else b.raw
    touched = ~np.isfinite(a_raw).all(axis=(0, 1))
    touched |= ~np.isfinite(b_raw).all(axis=(0, 1))
    touched |= ~np.isfinite(c).all(axis=(0, 1))
    (batch,) = np.nonzero(touched)
    with np.errstate(invalid="ignore"):
        total = c[:, :, batch].astype(np.float64)
        for k in range(a_raw.shape[0]):
            total += (
                a_raw[k][:, batch].astype(np.float64)[:, None]
                * b_raw[k][:, batch].astype(np.float64)[None]
            )
    unsigned: Any = result.view(f"u{result.dtype.itemsize}")
    part = result[:, :, batch]
    infinite = np.isinf(total)
    part[infinite] = total[infinite]
    codes = part.view(unsigned.dtype)
    codes[np.isnan(total)] = F16_NAN if result.dtype.itemsize == 2 else F32_NAN
    unsigned[:, :, batch] = codes
