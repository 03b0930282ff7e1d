"""Error measures: elementwise, root mean square, and the unit in the last place.

Every measure treats a NaN as an infinite error: a result that is not a number is never close.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpulab.formats import Format, get
from gpulab.numerics._results import F64_BIAS, F64_MANTISSA

_F64_FRACTION = np.int64((1 << F64_MANTISSA) - 1)
_F64_EXPONENT = np.int64(0x7FF)

Array = NDArray[np.float64]

USUAL = (1e-2, 1e-3)
"""Tolerances of the allclose that tests usually make, relative and absolute alike."""


@dataclass(frozen=True)
class ErrorSummary:
    """Largest errors of an array against a reference.

    Args:
        max_abs: largest ``|got - want|``; infinite where a NaN or Inf does not match.
        max_rel: largest ``|got - want| / |want|`` over the nonzero ``want``.
        index: where ``max_abs`` is, or None for an empty array.
    """

    max_abs: float
    max_rel: float
    index: tuple[int, ...] | None

    def merge(self, other: ErrorSummary) -> ErrorSummary:
        """The summary of both arrays together."""
        worst = self if self.max_abs >= other.max_abs else other
        return ErrorSummary(worst.max_abs, max(self.max_rel, other.max_rel), worst.index)


def absolute(got: ArrayLike, want: ArrayLike) -> Array:
    """``|got - want|``, 0 where both are the same infinity or both NaN, else inf if undefined."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error: Array = np.abs(got - want)
    undefined = np.isnan(error)
    if undefined.any():
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error[undefined] = np.where(same[undefined], 0.0, np.inf)
    return error


def elementwise(got: ArrayLike, want: ArrayLike) -> ErrorSummary:
    """Largest absolute and relative error, and where.

    Args:
        got: values of any shape.
        want: reference of the same shape.
    """
    want = np.asarray(want, np.float64)
    error = absolute(got, want)
    if error.size == 0:
        return ErrorSummary(0.0, 0.0, None)
    at = int(error.argmax())
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.where(want != 0, error / np.abs(want), 0.0)
    relative[np.isnan(relative)] = 0.0  # matching infinities
    index = tuple(int(i) for i in np.unravel_index(at, error.shape))
    return ErrorSummary(float(error.flat[at]), float(relative.max()), index)


def rms(values: ArrayLike) -> float:
    """Root mean square; 0 for an empty array."""
    array = np.asarray(values, np.float64)
    return float(np.sqrt(np.mean(array * array))) if array.size else 0.0


def gaps(fmt: Format | str, values: ArrayLike) -> tuple[Array, Array]:
    """Distances from values of a format to their neighbours of smaller and larger magnitude.

    For the largest finite value the outer gap is the one its binade has; for zero both gaps are
    the smallest subnormal.

    Args:
        fmt: a floating-point row or its name.
        values: finite float64 values that the format holds.

    Returns:
        (inner, outer), both positive and exact.
    """
    row = get(fmt) if isinstance(fmt, str) else fmt
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    exponent = ((bits >> F64_MANTISSA) & _F64_EXPONENT) - F64_BIAS
    lowest = row.min_normal_exponent
    outer = _power(np.maximum(exponent, lowest) - row.mantissa_bits)
    at_power = ((bits & _F64_FRACTION) == 0) & (exponent > lowest)
    return np.where(at_power, 0.5 * outer, outer), outer


def ulp(fmt: Format | str, values: ArrayLike) -> Array:
    """Unit in the last place of a format at any finite values (not only at those it holds)."""
    return gaps(fmt, values)[1]


def _power(exponent: NDArray[Any]) -> Array:
    """2^exponent for integers in the normal range of float64, without a call to ldexp."""
    field: NDArray[np.int64] = (exponent + F64_BIAS).astype(np.int64) << F64_MANTISSA
    return field.view(np.float64)


def usual_allclose(close: dict[str, bool], got: Array, right: Array) -> None:
    """Note in ``close``, by tolerance, whether ``allclose(got, right)`` passes too."""
    error, size = absolute(got, right), np.abs(right)
    size[~np.isfinite(size)] = 0.0  # there only the same will do
    for t in USUAL:
        passes = bool((error <= t + t * size).all())
        close[f"{t:g}"] = close.get(f"{t:g}", True) and passes
