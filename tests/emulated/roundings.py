"""Rounding of exact rationals to binary formats, by integers alone: oracle of the float tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

INF, NAN, NEGATIVE_ZERO = "inf", "nan", "-0"


@dataclass(frozen=True)
class Binary:
    """An IEEE-like format: exponent and mantissa bits."""

    exponent: int
    mantissa: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    def value(self, bits: int) -> Fraction | str:
        """The number with these bits; 'inf', '-inf', 'nan', '-0' for what is not a Fraction."""
        negative = bits >> (self.width - 1) & 1
        exponent = bits >> self.mantissa & ((1 << self.exponent) - 1)
        mantissa = bits & ((1 << self.mantissa) - 1)
        if exponent == (1 << self.exponent) - 1:
            return NAN if mantissa else ("-inf" if negative else INF)
        if exponent == 0 and mantissa == 0 and negative:
            return NEGATIVE_ZERO
        lead = mantissa + (1 << self.mantissa if exponent else 0)
        power = max(exponent, 1) - self.bias - self.mantissa
        return (-1) ** negative * Fraction(lead) * Fraction(2) ** power

    def round(self, value: Fraction, mode: str, zero_sign: int = 0) -> int:
        """The bits nearest to ``value``: rn, rz, rm, rp, rna."""
        if value == 0:
            return zero_sign << (self.width - 1)
        negative, size = value < 0, abs(value)
        power = math.floor(math.log2(size.numerator) - math.log2(size.denominator)) - 2
        while Fraction(2) ** (power + 1) <= size:
            power += 1
        quantum = max(power, 1 - self.bias) - self.mantissa
        scaled = size / Fraction(2) ** quantum
        whole = scaled.numerator // scaled.denominator
        part = scaled - whole
        half = Fraction(1, 2)
        up = {
            "rn": part > half or (part == half and whole % 2 == 1),
            "rna": part >= half,
            "rz": False,
            "rm": part > 0 and negative,
            "rp": part > 0 and not negative,
        }[mode]
        whole += up
        if whole == 0:
            return int(negative) << (self.width - 1)
        top = Fraction(whole) * Fraction(2) ** quantum
        largest = Fraction((2 << self.mantissa) - 1) * Fraction(2) ** (self.bias - self.mantissa)
        if top > largest:
            to_infinity = mode in ("rn", "rna") or ((mode == "rp") != negative and mode != "rz")
            code = ((1 << self.exponent) - 1) << self.mantissa
            code -= 0 if to_infinity else 1
        elif whole < 1 << self.mantissa:
            code = whole
        else:
            while whole >= 2 << self.mantissa:
                whole //= 2  # exact: rounding carried into a power of two
                quantum += 1
            code = (
                ((quantum + self.mantissa + self.bias) << self.mantissa)
                + whole
                - (1 << self.mantissa)
            )
        return code | int(negative) << (self.width - 1)


F16, BF16, F32, F64 = Binary(5, 10), Binary(8, 7), Binary(8, 23), Binary(11, 52)


def number(value: Fraction | str) -> float | Fraction:
    """Fractions as they are, the rest as floats."""
    return value if isinstance(value, Fraction) else float(value)


def negative(value: Fraction | str) -> bool:
    """The sign bit."""
    return value < 0 if isinstance(value, Fraction) else value.startswith("-")


def fused(form: Binary, a: int, b: int, c: int, mode: str = "rn") -> int | None:
    """Bits of a * b + c; None for NaN."""
    x, y, z = (form.value(v) for v in (a, b, c))
    if NAN in (x, y, z):
        return None
    sign = negative(x) != negative(y)
    infinite = "inf" in str(x) or "inf" in str(y)
    exponents = ((1 << form.exponent) - 1) << form.mantissa
    if infinite:
        if 0 in (number(x), number(y)) or ("inf" in str(z) and negative(z) != sign):
            return None
        return exponents | sign << (form.width - 1)
    if "inf" in str(z):
        return exponents | negative(z) << (form.width - 1)
    product = Fraction(number(x)) * Fraction(number(y))
    total = product + Fraction(number(z))
    if product == 0 and z in (0, NEGATIVE_ZERO):
        zero = sign if sign == negative(z) else mode == "rm"
    else:
        zero = mode == "rm"
    return form.round(total, mode, int(zero))
