"""Online softmax in Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels import numba_row
from gpulab.kernels.numba_function import device
from gpulab.kernels.numba_layout import ONLINE, Layout
from gpulab.kernels.numba_logsum import exponential, fold
from gpulab.kernels.numba_sweep import Sweeps
from gpulab.kernels.row_kernel import SAME, variants
from gpulab.kernels.softmax.row import SOURCE, params
from gpulab.registry import Variant


def _make(variant: Variant, chosen: Layout) -> Callable[..., Any]:
    """The kernel: x (rows, cols), y (rows, cols) as stored codes, rows, cols."""
    from numba import cuda, float32, uint32

    kit = numba_row.tools(variant, chosen)
    vec, places, put = chosen.vec, 4 * chosen.parts, kit.y.put
    store, narrow, exp = kit.y.store, kit.y.narrow, exponential()

    @device
    def write(state: Any, values: Any, at: Any, near: Any) -> Any:
        y, largest, inverse = state
        for j in range(vec):
            values = put(values, j, exp(values[j] - largest) * inverse)
        store(y, at, narrow(values))
        return state

    take, whole = fold(kit)
    sweeps = Sweeps(kit, kit.plain)
    begin, following = sweeps.begin(), sweeps.following()
    read, finish = sweeps.first(take), sweeps.again(write, last=True)

    def softmax_online(x: Any, y: Any, rows: Any, cols: Any) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        part = cuda.shared.array(places, float32)
        here = begin(x, kept, rows, cols)
        while here[0] < here[3]:
            state = read((float32(-np.inf), float32(0.0)), x, here, kept)
            largest, total = whole(state, part, uint32(0), here[1])
            finish((y, largest, float32(1.0) / total), x, here, kept, uint32(0))
            here = following(here)

    return softmax_online


numba_row.declare(
    "softmax",
    "online",
    _make,
    idea="the online softmax written in Python, with 16-byte accesses by LLVM intrinsics",
    order=30,
    rows=variants(SAME),
    params=params,
    table=ONLINE,
    source=SOURCE,
)
