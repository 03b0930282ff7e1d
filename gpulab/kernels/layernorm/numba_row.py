"""LayerNorm in Numba, in two passes over shifted data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels import numba_row, numba_sweep
from gpulab.kernels.layernorm.row import SOURCES, params
from gpulab.kernels.numba_row import Layout
from gpulab.kernels.row_kernel import NORMS, variants
from gpulab.registry import Variant

SHRINK = np.float32(2.0**-80)
"""A row whose squares overflow is taken times this."""


def _make(variant: Variant, chosen: Layout) -> Callable[..., Any]:
    """The kernel: x (rows, cols), weight, bias (cols,), y as stored codes, rows, cols, eps."""
    from numba import cuda, float32, uint32, uint64
    from numba.cuda import libdevice

    kit = numba_row.tools(variant, chosen)
    vec, warps, width, add = chosen.vec, chosen.threads // 32, np.uint64(chosen.vec), kit.add
    put, narrow, store = kit.y.put, kit.y.narrow, kit.y.store
    load, values_of = kit.y.load, kit.y.values
    zero, one = np.float32(0.0), np.float32(1.0)

    @kit.inline
    def sum_up(state: Any, values: Any, at: Any) -> Any:
        total, scale = state
        for j in range(vec):
            total += values[j] * scale
        return total, scale

    @kit.inline
    def sum_left(state: Any, values: Any, at: Any) -> Any:
        total, squares, shift, scale = state
        for j in range(vec):
            d = values[j] * scale - shift
            total += d
            squares = cuda.fma(d, d, squares)
        return total, squares, shift, scale

    @kit.inline
    def write(state: Any, values: Any, at: Any) -> Any:
        y, weight, bias, start, scale, shift, mean, rstd = state
        factor, offset = values_of(load(weight, at)), values_of(load(bias, at))
        for j in range(vec):
            centred = values[j] * scale - shift - mean
            values = put(values, j, cuda.fma(centred * rstd, factor[j], offset[j]))
        store(y, start + at, narrow(values))
        return state

    read = numba_sweep.first(kit, kit.plain, sum_up)
    sum_again = numba_sweep.again(kit, kit.plain, sum_up)
    sum_what_is_left = numba_sweep.again(kit, kit.plain, sum_left)
    finish = numba_sweep.again(kit, kit.plain, write)

    def layernorm_two_pass(
        x: Any, weight: Any, bias: Any, y: Any, rows: Any, cols: Any, eps: Any
    ) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        part = cuda.shared.array((6, warps), float32)
        packs = uint64(cols) // width
        start = uint64(cuda.blockIdx.x) * packs
        count = float32(cols)
        scale, again = one, 0
        shift = add(read((zero, one), x, start, packs, kept)[0], part[0]) / count
        while True:
            left = sum_what_is_left((zero, zero, shift, scale), x, start, packs, kept)
            mean = add(left[0], part[again + 1]) / count
            variance = add(left[1], part[again + 2]) / count - mean * mean
            if variance < float32(np.inf) or again:
                break
            scale, again = SHRINK, 3  # places of its own in shared memory
            shift = add(sum_again((zero, scale), x, start, packs, kept)[0], part[3]) / count
        # Rounding may take it below 0 in a row of equal values; a NaN stays.
        if variance < zero:
            variance = zero
        spread = variance + eps * scale * scale
        # A constant row times 2^-80 has neither variance nor eps left; its results are the bias.
        rstd = zero if spread == zero else one / libdevice.sqrtf(spread)
        finish((y, weight, bias, start, scale, shift, mean, rstd), x, start, packs, kept)

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
