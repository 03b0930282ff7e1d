"""The online log-sum-exp of the Numba row kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gpulab.kernels.numba_function import NOTHING, Function, device
from gpulab.kernels.numba_pack import exp2_approx
from gpulab.kernels.numba_reduce import over_lanes, over_row, sum_of_lanes
from gpulab.kernels.numba_row import Tools

LOG2_E = np.float32(1.4426950408889634)


@lru_cache(maxsize=1)
def exponential() -> Function:
    """``exp(d)``: e^d for d <= 0."""
    exp2 = exp2_approx()

    @device
    def exp(d: Any) -> Any:
        return exp2(d * LOG2_E)

    return exp


def fold(kit: Tools) -> tuple[Function, Function]:
    """Device functions on (maximum, scaled sum) in float32.

    Returns:
        ``take((maximum, sum), values, place, near)``, one more pack; and ``whole((maximum, sum),
        shared, first place, turn)``, both over the row. While the maximum is -inf, 0 is subtracted
        (-inf - -inf is not a number).
    """
    from numba.cuda import libdevice

    vec, exp, base_of = kit.layout.vec, exponential(), _base()

    @device
    def take(state: Any, values: Any, at: Any, near: Any) -> Any:
        before, total = state
        largest = before
        for j in range(vec):
            largest = libdevice.fmaxf(largest, values[j])
        base = base_of(largest)
        total = total * exp(before - base)
        for j in range(vec):
            total += exp(values[j] - base)
        return largest, total

    return take, _over_row(kit.warps, kit.layout.cluster)


@lru_cache(maxsize=1)
def _base() -> Function:
    from numba import float32

    lowest = np.float32(-np.inf)

    @device
    def base_of(largest: Any) -> Any:
        return float32(0.0) if largest == lowest else largest

    return base_of


@lru_cache(maxsize=32)
def _over_row(warps: int, blocks: int) -> Function:
    from numba.cuda import libdevice

    exp, base_of = exponential(), _base()

    @device
    def larger(a: Any, b: Any) -> Any:
        return libdevice.fmaxf(a, b)

    @device
    def pair(a: Any, b: Any) -> Any:
        largest = libdevice.fmaxf(a[0], b[0])
        base = base_of(largest)
        return largest, a[1] * exp(a[0] - base) + b[1] * exp(b[0] - base)

    largest_of, sum_of = over_lanes(larger), sum_of_lanes()

    def lanes(count: int) -> Function:
        largest_lane, sum_lanes = largest_of(count), sum_of(count)

        @device
        def over(state: Any) -> Any:
            largest = largest_lane(state[0], NOTHING)
            total = state[1] * exp(state[0] - base_of(largest))
            return largest, sum_lanes(total, NOTHING)

        return over

    return over_row(warps, blocks, lanes, pair, 2)
