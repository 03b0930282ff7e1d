"""Cross entropy in Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels import numba_row, numba_sweep
from gpulab.kernels.crossentropy.row import FORMATS, SOURCE, params
from gpulab.kernels.numba_logsum import fold
from gpulab.kernels.numba_pack import pack
from gpulab.kernels.row_kernel import variants
from gpulab.registry import Variant


def _make(variant: Variant, chosen: numba_row.Layout) -> Callable[..., Any]:
    """The kernel: x (rows, cols) as stored codes, labels, loss, lse (rows,), rows, cols,
    ignore_index."""
    from numba import cuda, float32, uint32, uint64
    from numba.cuda import libdevice

    kit = numba_row.tools(variant, chosen)
    one, warps, width = pack(variant.format, 1), chosen.threads // 32, np.uint64(chosen.vec)
    load, values = one.load, one.values
    take, whole = fold(kit)
    read = numba_sweep.first(kit, kit.plain, take)
    nan = np.float32(np.nan)

    def crossentropy_online(
        x: Any, labels: Any, loss: Any, lse: Any, rows: Any, cols: Any, ignore_index: Any
    ) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        maxima = cuda.shared.array(warps, float32)
        sums = cuda.shared.array(warps, float32)
        row = uint64(cuda.blockIdx.x)
        packs = uint64(cols) // width
        state = (float32(-np.inf), float32(0.0))
        state = read(state, x, row * packs, packs, kept)
        largest, total = whole(state, maxima, sums)
        if cuda.threadIdx.x == 0:
            log = libdevice.logf(total)
            label = labels[row]
            target = nan
            if label >= 0 and label < cols:
                target = values(load(x, row * uint64(cols) + uint64(label)))[0]
            lse[row] = largest + log
            loss[row] = float32(0.0) if label == ignore_index else (largest - target) + log

    return crossentropy_online


numba_row.declare(
    "crossentropy",
    "online",
    _make,
    idea="the online log-sum-exp written in Python, with 16-byte accesses by LLVM intrinsics",
    order=20,
    rows=variants(FORMATS),
    params=params,
    source=SOURCE,
    kept=False,
)
