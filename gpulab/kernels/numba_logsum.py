"""The online log-sum-exp of the Numba row kernels."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from gpulab.kernels.numba_row import Function, Tools


def fold(kit: Tools) -> tuple[Function, Function]:
    """Device functions on (maximum, scaled sum) in float32.

    Returns:
        ``take((maximum, sum), values, place)``, one more pack; and
        ``whole((maximum, sum), shared, shared)``, both over the block. While the maximum is -inf, 0
        is subtracted (-inf - -inf is not a number).
    """
    from numba import float32
    from numba.cuda import libdevice

    vec, exp, larger, add = kit.layout.vec, kit.exp, kit.larger, kit.add
    lowest = np.float32(-np.inf)

    @kit.inline
    def base_of(largest: Any) -> Any:
        return float32(0.0) if largest == lowest else largest

    @kit.inline
    def take(state: Any, values: Any, at: Any) -> Any:
        before, total = state
        largest = before
        for j in range(vec):
            largest = libdevice.fmaxf(largest, values[j])
        base = base_of(largest)
        total = total * exp(before - base)
        for j in range(vec):
            total += exp(values[j] - base)
        return largest, total

    @kit.inline
    def whole(state: Any, maxima: Any, sums: Any) -> Any:
        mine, total = state
        largest = larger(mine, maxima)
        return largest, add(total * exp(mine - base_of(largest)), sums)

    return cast(Function, take), cast(Function, whole)
