"""Single float64 operations by rational arithmetic, rounded once in any mode.

Slow and plain: the fallback for the few lanes whose exponents the vector algorithms of ``exact``
do not cover.
"""

from __future__ import annotations

import math
from fractions import Fraction

_PRECISION, _EMIN = 53, -1074


def round_float64(value: Fraction, mode: str, *, negative_zero: bool = False) -> float:
    """The float64 nearest to ``value`` in mode rn, rz, rm or rp.

    Args:
        value: the exact value.
        mode: rounding mode.
        negative_zero: sign of an exact zero.
    """
    if value == 0:
        return -0.0 if negative_zero else 0.0
    sign, size = (-1, -value) if value < 0 else (1, value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    quantum = max(exponent - _PRECISION + 1, _EMIN)
    scaled = size / Fraction(2) ** quantum
    whole, rest = divmod(scaled.numerator, scaled.denominator)
    part = Fraction(rest, scaled.denominator)
    up = {
        "rn": part > Fraction(1, 2) or (part == Fraction(1, 2) and whole & 1 == 1),
        "rz": False,
        "rm": part > 0 and sign < 0,
        "rp": part > 0 and sign > 0,
    }[mode]
    whole += up
    try:
        return sign * math.ldexp(whole, quantum)
    except OverflowError:
        largest = math.ldexp(2**53 - 1, 971)
        infinite = mode == "rn" or (mode == "rp" and sign > 0) or (mode == "rm" and sign < 0)
        return sign * (math.inf if infinite else largest)


def fma_scalar(a: float, b: float, c: float, mode: str) -> float:
    """``a * b + c`` rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)):
        if math.isnan(a) or math.isnan(b) or a == 0 or b == 0:
            return math.nan
        product = math.copysign(math.inf, math.copysign(1, a) * math.copysign(1, b))
        return product + c
    if not math.isfinite(c):
        return c
    value = Fraction(a) * Fraction(b)
    product_negative = math.copysign(1, a) * math.copysign(1, b) < 0
    c_negative = math.copysign(1, c) < 0
    if (value == 0 and c == 0) or value + Fraction(c) == 0:
        negative = product_negative if product_negative == c_negative else mode == "rm"
        return -0.0 if negative else 0.0
    return round_float64(value + Fraction(c), mode, negative_zero=product_negative)


def product_scalar(a: float, b: float, mode: str) -> float:
    """``a * b`` rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return round_float64(Fraction(a) * Fraction(b), mode)


def quotient_scalar(a: float, b: float, mode: str) -> float:
    """``a / b`` rounded once."""
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
        return math.nan
    if math.isinf(a) or b == 0:
        return math.copysign(math.inf, sign)
    if math.isinf(b) or a == 0:
        return math.copysign(0.0, sign)
    return round_float64(Fraction(a) / Fraction(b), mode)


def root_scalar(a: float, mode: str) -> float:
    """The square root rounded once."""
    if math.isnan(a) or a < 0:
        return math.nan
    if a == 0 or math.isinf(a):
        return a
    # 2^(2k) * a as an integer large enough that its integer root has guard bits to spare.
    value = Fraction(a)
    shift = 2 * (200 + _EMIN // -2)
    scaled = value * Fraction(2) ** shift
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = root * root == scaled
    return round_float64(Fraction(2 * root + (not exact), 2) / Fraction(2) ** (shift // 2), mode)
