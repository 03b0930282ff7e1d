"""LayerNorm in Numba, in two passes over shifted data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels import numba_row
from gpulab.kernels.layernorm import numba_behind
from gpulab.kernels.layernorm.row import SOURCES, params
from gpulab.kernels.numba_columns import Columns
from gpulab.kernels.numba_function import device
from gpulab.kernels.numba_layout import MOMENTS, Layout
from gpulab.kernels.numba_sweep import Sweeps
from gpulab.kernels.row_kernel import NORMS, variants
from gpulab.registry import Variant

SHRINK = np.float32(2.0**-80)
"""A row whose squares overflow is taken times this."""


def _make(variant: Variant, chosen: Layout) -> Callable[..., Any]:
    """The kernel: x (rows, cols), weight, bias (cols,), y as stored codes, rows, cols, eps."""
    from numba import cuda, float32, uint32
    from numba.cuda import libdevice

    kit = numba_row.tools(variant, chosen)
    vec, places, both = chosen.vec, 12 * chosen.parts, np.uint32(2 * chosen.parts)
    anew = np.uint32(6 * chosen.parts)
    put, narrow, store, values_of = kit.y.put, kit.y.narrow, kit.y.store, kit.y.values
    zero, one = np.float32(0.0), np.float32(1.0)

    @device
    def sum_up(total: Any, values: Any, at: Any, near: Any) -> Any:
        for j in range(vec):
            total += values[j]
        return total

    @device
    def sum_small(total: Any, values: Any, at: Any, near: Any) -> Any:
        for j in range(vec):
            total += values[j] * SHRINK
        return total

    @device
    def sum_left(state: Any, values: Any, at: Any, near: Any) -> Any:
        total, squares, shift, scale = state
        for j in range(vec):
            d = cuda.fma(values[j], scale, -shift)
            total += d
            squares = cuda.fma(d, d, squares)
        return total, squares, shift, scale

    @device
    def write(state: Any, values: Any, at: Any, near: Any) -> Any:
        y, scale, shift, mean, rstd = state
        factor, offset = values_of(near[0]), values_of(near[1])
        for j in range(vec):
            centred = cuda.fma(values[j], scale, -shift) - mean
            values = put(values, j, cuda.fma(centred * rstd, factor[j], offset[j]))
        store(y, at, narrow(values))
        return state

    @device
    def rstd_of(variance: Any, eps: Any, scale: Any) -> Any:
        # Rounding may take it below 0 in a row of equal values; a NaN stays.
        if variance < zero:
            variance = zero
        spread = variance + eps * scale * scale
        # A constant row times 2^-80 has neither variance nor eps left: y is the bias.
        return zero if spread == zero else one / libdevice.sqrtf(spread)

    if chosen.behind:
        return numba_behind.make(kit, rstd_of, SHRINK)
    sweeps, columns = Sweeps(kit, kit.plain), Columns(kit, 2)
    begin, following = sweeps.begin(), sweeps.following()
    read, left, small = sweeps.first(sum_up), sweeps.again(sum_left), sweeps.again(sum_small)
    finish, given = sweeps.again(write, columns.near, last=True), columns.given
    add, add_both = kit.add(1), kit.add(2)
    none = np.uint32(0)

    def layernorm_two_pass(
        x: Any, weight: Any, bias: Any, y: Any, rows: Any, cols: Any, eps: Any
    ) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        part = cuda.shared.array(places, float32)
        here = begin(x, kept, rows, cols)
        parameters = given((weight, bias), here[4])
        count = float32(cols)
        while here[0] < here[3]:
            scale, again = one, none
            shift = add((read(zero, x, here, kept),), part, none, here[1])[0] / count
            while True:
                sums = left((zero, zero, shift, scale), x, here, kept, none)
                total, squares = add_both((sums[0], sums[1]), part, uint32(again + both), here[1])
                mean = total / count
                variance = squares / count - mean * mean
                if variance < float32(np.inf) or again:
                    break
                scale, again = SHRINK, anew  # places of its own in shared memory
                shift = add((small(zero, x, here, kept, none),), part, again, here[1])[0] / count
            rstd = rstd_of(variance, eps, scale)
            finish((y, scale, shift, mean, rstd), x, here, kept, parameters)
            here = following(here)

    return layernorm_two_pass


numba_row.declare(
    "layernorm",
    "two_pass",
    _make,
    idea="the two passes written in Python, with 16-byte accesses by LLVM intrinsics",
    order=30,
    rows=variants(NORMS, "two-pass"),
    params=params,
    table=MOMENTS,
    source=SOURCES["two-pass"],
)
