"""Mean and variance of rows, in the ways kernels take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.ops.rows_arith import Arithmetic
from gpulab.ops.rows_contract import Floats
from gpulab.ops.rows_formula import EVERYTHING

LARGE = 1e17
"""Rows with larger elements are taken times 2^-80, so that squares of their sums stay finite."""
SHRINK = 2.0**-80
_LANE = 512
"""Terms one running mean takes in a simulated row; a kernel's threads take fewer."""


@dataclass(frozen=True)
class Moments:
    """Mean and variance of scale * x, each (rows, 1); the mean is shift + mean."""

    shift: Floats
    mean: Floats
    variance: Floats
    scale: Floats


def _scaled(x: Floats, over: slice) -> tuple[Floats, Floats]:
    seen = x[:, over]
    scale = np.where(np.abs(seen).max(axis=1, keepdims=True, initial=0.0) > LARGE, SHRINK, 1.0)
    return seen * scale, scale


def two_pass(arithmetic: Arithmetic, x: Floats, over: slice = EVERYTHING) -> Moments:
    """A first mean, then sums of what is left."""
    r, total = arithmetic.r, arithmetic.total
    seen, scale = _scaled(x, over)
    n = max(1, seen.shape[1])
    shift = r(total(seen) / n)
    d = r(seen - shift)
    mean = r(total(d) / n)
    variance = np.maximum(0.0, r(r(total(r(d * d)) / n) - r(mean * mean)))
    return Moments(shift, mean, variance, scale)


def welford(arithmetic: Arithmetic, x: Floats, over: slice = EVERYTHING) -> Moments:
    """Running mean and sum of squares of x - x[0], merged over lanes of consecutive columns."""
    r = arithmetic.r
    seen, scale = _scaled(x, over)
    shift = r(x[:, :1] * scale)
    d = r(seen - shift)
    whole = d.shape[1] // _LANE * _LANE
    parts = []
    if whole:
        lanes = _lane(arithmetic, d[:, :whole].reshape(len(d), -1, _LANE))
        parts = [(_LANE, lanes[0][:, [i]], lanes[1][:, [i]]) for i in range(whole // _LANE)]
    if whole < d.shape[1]:
        rest = _lane(arithmetic, d[:, None, whole:])
        parts.append((d.shape[1] - whole, *rest))
    count, mean, squares = parts[0]
    for more, other, theirs in parts[1:]:
        both = count + more
        delta, share = r(other - mean), float(np.float32(more / both))
        squares = r(r(squares + theirs) + r(r(delta * delta) * float(np.float32(count * share))))
        mean = r(delta * share + mean)
        count = both
    return Moments(shift, mean, r(squares / count), scale)


def _lane(arithmetic: Arithmetic, d: Floats) -> tuple[Floats, Floats]:
    """Mean and sum of squares along the last axis of (rows, lanes, n), term by term."""
    r = arithmetic.r
    mean, squares = np.zeros(d.shape[:2]), np.zeros(d.shape[:2])
    for i in range(d.shape[2]):
        each = d[:, :, i]
        delta = r(each - mean)
        mean = r(delta * float(np.float32(1.0 / (i + 1))) + mean)
        squares = r(delta * r(each - mean) + squares)
    return mean, squares


def naive(arithmetic: Arithmetic, x: Floats, over: slice = EVERYTHING) -> Moments:
    """E[x^2] - E[x]^2: two large numbers that cancel."""
    r, total = arithmetic.r, arithmetic.total
    seen, scale = _scaled(x, over)
    n = max(1, seen.shape[1])
    mean = r(total(seen) / n)
    variance = r(r(total(r(seen * seen)) / n) - r(mean * mean))
    return Moments(np.zeros_like(mean), mean, variance, scale)
