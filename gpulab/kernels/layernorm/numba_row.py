"""LayerNorm in Numba, in two passes over shifted data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels import numba_row, numba_sweep
from gpulab.kernels.layernorm.row import SOURCES, params
from gpulab.kernels.numba_layout import Layout
from gpulab.kernels.row_kernel import NORMS, variants
from gpulab.registry import Variant

SHRINK = np.float32(2.0**-80)
"""A row whose squares overflow is taken times this."""


def _make(variant: Variant, chosen: Layout) -> Callable[..., Any]:
    """The kernel: x (rows, cols), weight, bias (cols,), y as stored codes, rows, cols, eps."""
    from numba import cuda, float32, uint32
    from numba.cuda import libdevice

    kit = numba_row.tools(variant, chosen)
    vec, parts, place, add = chosen.vec, chosen.parts, kit.place, kit.add
    put, narrow, store = kit.y.put, kit.y.narrow, kit.y.store
    load, values_of = kit.y.load, kit.y.values
    zero, one = np.float32(0.0), np.float32(1.0)

    @kit.inline
    def sum_up(total: Any, values: Any, at: Any) -> Any:
        for j in range(vec):
            total += values[j]
        return total

    @kit.inline
    def sum_left(state: Any, values: Any, at: Any) -> Any:
        total, squares, shift = state
        for j in range(vec):
            d = values[j] - shift
            total += d
            squares = cuda.fma(d, d, squares)
        return total, squares, shift

    @kit.inline
    def near(state: Any, at: Any) -> Any:
        _, weight, bias, _, _, _, _ = state
        return load(weight, at), load(bias, at)

    @kit.inline
    def write(state: Any, values: Any, at: Any, near: Any) -> Any:
        y, _, _, start, shift, mean, rstd = state
        factor, offset = values_of(near[0]), values_of(near[1])
        for j in range(vec):
            centred = values[j] - shift - mean
            values = put(values, j, cuda.fma(centred * rstd, factor[j], offset[j]))
        store(y, start + at, narrow(values))
        return state

    plain, small = kit.plain, kit.times(SHRINK)
    read = numba_sweep.first(kit, plain, sum_up)
    left, small_left = (numba_sweep.again(kit, source, sum_left) for source in (plain, small))
    small_sum = numba_sweep.again(kit, small, sum_up)
    finish, small_finish = (
        numba_sweep.beside(kit, source, write, near, 2) for source in (plain, small)
    )

    @kit.inline
    def root(total: Any, squares: Any, count: Any, eps: Any) -> Any:
        """Mean and 1 / sqrt(variance + eps), and whether the variance is finite."""
        mean = total / count
        variance = squares / count - mean * mean
        finite = variance < float32(np.inf)
        # Rounding may take it below 0 in a row of equal values; a NaN stays.
        if variance < zero:
            variance = zero
        spread = variance + eps
        # A constant row times 2^-80 has neither variance nor eps left; its results are the bias.
        rstd = zero if spread == zero else one / libdevice.sqrtf(spread)
        return mean, rstd, finite

    def layernorm_two_pass(
        x: Any, weight: Any, bias: Any, y: Any, rows: Any, cols: Any, eps: Any
    ) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        part = cuda.shared.array((6, parts), float32)
        _, start, packs = place(cols)
        count = float32(cols)
        shift = add(read(zero, x, start, packs, kept), part[0]) / count
        sums = left((zero, zero, shift), x, start, packs, kept)
        total, squares = add(sums[0], part[1]), add(sums[1], part[2])
        mean, rstd, finite = root(total, squares, count, eps)
        if finite:
            finish((y, weight, bias, start, shift, mean, rstd), x, start, packs, kept)
        else:
            shift = add(small_sum(zero, x, start, packs, kept), part[3]) / count
            sums = small_left((zero, zero, shift), x, start, packs, kept)
            total, squares = add(sums[0], part[4]), add(sums[1], part[5])
            mean, rstd, _ = root(total, squares, count, eps * SHRINK * SHRINK)
            small_finish((y, weight, bias, start, shift, mean, rstd), x, start, packs, kept)

    return layernorm_two_pass


numba_row.declare(
    "layernorm",
    "two_pass",
    _make,
    idea="the two passes written in Python, with 16-byte accesses by LLVM intrinsics",
    order=30,
    rows=variants(NORMS, "two-pass"),
    params=params,
    source=SOURCES["two-pass"],
)
