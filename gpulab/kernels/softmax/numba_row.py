"""Online softmax in Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels import numba_row, numba_sweep
from gpulab.kernels.numba_logsum import fold
from gpulab.kernels.row_kernel import SAME, variants
from gpulab.kernels.softmax.row import SOURCE, params
from gpulab.registry import Variant


def _make(variant: Variant, chosen: numba_row.Layout) -> Callable[..., Any]:
    """The kernel: x (rows, cols), y (rows, cols) as stored codes, rows, cols."""
    from numba import cuda, float32, uint32, uint64

    kit = numba_row.tools(variant, chosen)
    vec, warps, put = chosen.vec, chosen.threads // 32, kit.y.put
    store, narrow, exp, width = kit.y.store, kit.y.narrow, kit.exp, np.uint64(chosen.vec)

    @kit.inline
    def write(state: Any, values: Any, at: Any) -> Any:
        y, start, largest, inverse = state
        for j in range(vec):
            values = put(values, j, exp(values[j] - largest) * inverse)
        store(y, start + at, narrow(values))
        return state

    take, whole = fold(kit)
    read = numba_sweep.first(kit, kit.plain, take)
    finish = numba_sweep.again(kit, kit.plain, write)

    def softmax_online(x: Any, y: Any, rows: Any, cols: Any) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        maxima = cuda.shared.array(warps, float32)
        sums = cuda.shared.array(warps, float32)
        packs = uint64(cols) // width
        start = uint64(cuda.blockIdx.x) * packs
        state = (float32(-np.inf), float32(0.0))
        state = read(state, x, start, packs, kept)
        largest, total = whole(state, maxima, sums)
        finish((y, start, largest, float32(1.0) / total), x, start, packs, kept)

    return softmax_online


numba_row.declare(
    "softmax",
    "online",
    _make,
    idea="the online softmax written in Python, with 16-byte accesses by LLVM intrinsics",
    order=30,
    rows=variants(SAME),
    params=params,
    source=SOURCE,
)
