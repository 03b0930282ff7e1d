"""The interpolator behind the approximate instructions: one quadratic a segment, in integers.

A result's significand is the integer part of ``C0 + C1 x + C2 s``: the leading bits of the
argument's significand choose the segment and so the coefficients, ``x`` is the rest of it, and
``s`` is the square of ``x`` from a squarer without its lowest columns (the partial products
``x_i x_j`` of weight below 2^19 are left out, with no compensation). Every function has one
rounding constant, which is part of its C0. That is the whole of it: the form reproduces every
value of the recorded sweeps.

Sources: recordings of an H200; S. Oberman and M. Siu, "A High-Performance Area-Efficient
Multifunction Interpolator" (ARITH 2005) for the kind of unit.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

LOW_BITS = 17  # width of x; a function with 128 segments an octave leaves its lowest bit 0
FRACTION = 35  # fraction bits of the integers below one unit of the result's last place
C0_FRACTION, C1_FRACTION, C2_FRACTION = 2, 17, 35
_SQUARE_CUT = 19
_F32_MANTISSA = 23

Coefficients = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@lru_cache(maxsize=1)
def tables() -> dict[str, NDArray[np.int64]]:
    """The arrays of ``data/approx_sm90.npz`` as int64."""
    with (
        files("gpulab.numerics").joinpath("data/approx_sm90.npz").open("rb") as stream,
        np.load(stream) as archive,
    ):
        return {name: archive[name].astype(np.int64) for name in archive.files}


def prepare(table: NDArray[np.int64], constant: int) -> Coefficients:
    """Coefficients in units of 2^-FRACTION from a table (segments, 3) in their own units."""
    c0, c1, c2 = np.ascontiguousarray(table.T)
    return (
        (c0 << (FRACTION - C0_FRACTION)) + constant,
        c1 << (FRACTION - C1_FRACTION),
        c2 << (FRACTION - C2_FRACTION),
    )


@lru_cache(maxsize=8)
def _coefficients(name: str) -> Coefficients:
    return prepare(tables()[name], int(tables()[f"{name}_constant"]))


@lru_cache(maxsize=1)
def truncated_squares() -> NDArray[np.int64]:
    """``s`` for every x of LOW_BITS bits."""
    x = np.arange(1 << LOW_BITS, dtype=np.int64)
    square = x * x
    for i in range(LOW_BITS):
        bit = (x >> i) & 1
        if 2 * i < _SQUARE_CUT:
            square -= bit << (2 * i)
        for j in range(i + 1, min(LOW_BITS, _SQUARE_CUT - 1 - i)):
            square -= (bit & (x >> j)) << (i + j + 1)
    square.flags.writeable = False
    return square


def interpolate(name: str, position: NDArray[np.int64]) -> NDArray[np.int64]:
    """The polynomial, in units of 2^-FRACTION of the result's last place.

    Args:
        name: ``ex2``, ``lg2``, ``rcp``, ``rsqrt`` or ``sqrt``.
        position: where the argument lies: its 23 fraction bits, below the parity of its exponent
            for ``rsqrt`` and ``sqrt``.
    """
    return polynomial(_coefficients(name), position, 2 if name in ("rsqrt", "sqrt") else 1)


def polynomial(
    coefficients: Coefficients, position: NDArray[np.int64], octaves: int
) -> NDArray[np.int64]:
    """``interpolate`` with given coefficients, which cover one octave of arguments or two."""
    base, slope, curve = coefficients
    low = _F32_MANTISSA + octaves - 1 - (len(base) - 1).bit_length()
    segment = position >> low
    x = (position & ((1 << low) - 1)) << (LOW_BITS - low)
    out: NDArray[np.int64] = slope[segment]
    out *= x
    out += base[segment]
    out += curve[segment] * truncated_squares()[x]
    return out
