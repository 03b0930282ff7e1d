"""Rounding of values to fewer significand bits, and which format comes next below another."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpulab.errors import UsageError
from gpulab.formats import FORMATS, Format, decode, encode


def next_lower(fmt: Format) -> Format:
    """The widest floating-point row with fewer mantissa bits: fp32 -> tf32 -> bf16 -> e4m3 -> e5m2.

    Among rows of equal mantissa the one with the largest range is taken.

    Raises:
        UsageError: there is none.
    """
    below = [
        row
        for row in FORMATS.values()
        if row.block is None
        and row.signed
        and not row.is_integer
        and row.mantissa_bits < fmt.mantissa_bits
    ]
    if not below:
        raise UsageError(f"no format below {fmt.name}")
    return max(below, key=lambda row: (row.mantissa_bits, row.max_finite))


def to_significand(values: ArrayLike, bits: int, toward_zero: bool = False) -> NDArray[np.float64]:
    """Round to ``bits`` significand bits with no limit of range.

    Args:
        values: finite float64 values.
        bits: significand bits kept, the leading one included (mantissa_bits + 1).
        toward_zero: cut instead of rounding to nearest even.
    """
    fraction, exponent = np.frexp(np.asarray(values, np.float64))
    units = np.ldexp(fraction, bits)
    whole = np.trunc(units) if toward_zero else np.rint(units)
    rounded: NDArray[np.float64] = np.ldexp(whole, exponent - bits)
    return rounded


def through(fmt: Format, values: ArrayLike) -> NDArray[np.float64]:
    """Values after one rounding to nearest even into the format (overflow as ``encode``)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return decode(fmt, encode(fmt, values))
