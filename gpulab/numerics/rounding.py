"""Rounding of values to fewer significand bits, and which format comes next below another."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpulab.errors import UsageError
from gpulab.formats import FORMATS, Format, decode, encode
from gpulab.formats.threads import spread
from gpulab.numerics._results import F64_MANTISSA

_ONE = np.uint64(1)
_MAGNITUDE = np.uint64((1 << 63) - 1)
_CHUNK = 1 << 15
"""Values rounded at a time: a chunk stays in the L2 cache."""


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
    if fmt.block is not None or fmt.is_integer or not fmt.signed:
        return decode(fmt, encode(fmt, values))
    source = np.asarray(values, np.float64)
    flat = np.ascontiguousarray(source).reshape(-1)
    rounded = np.empty(flat.size)
    dropped = np.uint64(F64_MANTISSA - fmt.mantissa_bits)
    half = (_ONE << (dropped - _ONE)) - _ONE
    lowest, highest = np.array([fmt.min_normal, fmt.max_finite]).view(np.uint64)

    def some(where: slice) -> None:
        for first in range(where.start, where.stop, _CHUNK):
            part = slice(first, min(first + _CHUNK, where.stop))
            bits = flat[part].view(np.uint64)
            kept = rounded[part].view(np.uint64)
            np.right_shift(bits, dropped, out=kept)
            kept &= _ONE  # half of the last kept bit, less one where that bit is even
            kept += bits
            kept += half
            kept >>= dropped
            kept <<= dropped
            magnitude = bits & _MAGNITUDE
            magnitude -= lowest  # wraps where small
            other = magnitude > highest - lowest  # neither normal there nor certain to stay finite
            if other.any():
                other &= flat[part] != 0.0
                rounded[part][other] = decode(fmt, encode(fmt, flat[part][other]))

    spread(some, flat.size, flat.size, _CHUNK)
    return rounded.reshape(source.shape)
