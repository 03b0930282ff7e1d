"""Cross entropy in Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels import numba_row
from gpulab.kernels.crossentropy.row import FORMATS, SOURCE, params
from gpulab.kernels.numba_layout import Layout
from gpulab.kernels.numba_logsum import fold
from gpulab.kernels.numba_pack import pack
from gpulab.kernels.numba_sweep import Sweeps
from gpulab.kernels.row_kernel import variants
from gpulab.registry import Variant


def _make(variant: Variant, chosen: Layout) -> Callable[..., Any]:
    """The kernel: x (rows, cols) as stored codes, labels, loss, lse (rows,), rows, cols,
    ignore_index."""
    from numba import cuda, float32, uint32, uint64
    from numba.cuda import libdevice

    kit = numba_row.tools(variant, chosen)
    one, places = pack(variant.format, 1), 4 * chosen.parts
    load, values = one.load, one.values
    take, whole = fold(kit)
    sweeps = Sweeps(kit, kit.plain)
    begin, read = sweeps.begin(), sweeps.first(take)
    nan = np.float32(np.nan)

    def crossentropy_online(
        x: Any, labels: Any, loss: Any, lse: Any, rows: Any, cols: Any, ignore_index: Any
    ) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        part = cuda.shared.array(places, float32)
        here = begin(x, kept, rows, cols)
        row = here[0]
        state = read((float32(-np.inf), float32(0.0)), x, here, kept)
        largest, total = whole(state, part, uint32(0), here[1])
        if cuda.threadIdx.x == 0:
            log = libdevice.logf(total)
            label = labels[row]
            target = nan
            if label >= 0 and label < cols:
                target = values(load(x, uint64(row) * uint64(cols) + uint64(label)))[0]
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
