"""RMSNorm in Numba, with and without a fused residual addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels import numba_row, numba_sweep
from gpulab.kernels.numba_row import Layout, Source, Tools
from gpulab.kernels.rmsnorm.row import KEPT, ROUNDED, SOURCE, params, residual_params
from gpulab.kernels.row_kernel import NORMS, variants
from gpulab.registry import Variant

Function = Callable[..., Any]

SHRINK = np.float32(2.0**-80)
"""A row whose squares overflow is taken times this: exact, and finite."""


def _pair(kit: Tools, rounded: bool) -> Source:
    """X + residual of each pack; ``rounded``: as it is stored."""
    load, values, put, narrow = kit.x.load, kit.x.values, kit.x.put, kit.x.narrow
    vec, copy, inline = kit.layout.vec, kit.copy, kit.inline
    other = np.uint64(kit.layout.threads * kit.layout.keep)

    @inline
    def total(a: Any, b: Any) -> Any:
        mine, theirs = values(a), values(b)
        for j in range(vec):
            mine = put(mine, j, mine[j] + theirs[j])
        return mine

    @inline
    def fetch_both(rows: Any, at: Any) -> Any:
        return load(rows[0], at), load(rows[1], at)

    @inline
    def copy_both(kept: Any, place: Any, rows: Any, at: Any) -> None:
        copy(kept, place, rows[0], at)
        copy(kept, other + place, rows[1], at)

    @inline
    def recall_both(kept: Any, at: Any) -> Any:
        return load(kept, at), load(kept, other + at)

    @inline
    def values_of_both(held: Any) -> Any:
        return total(held[0], held[1])

    @inline
    def values_as_stored(held: Any) -> Any:
        return values(narrow(total(held[0], held[1])))

    values_of = values_as_stored if rounded else values_of_both
    return Source(fetch_both, copy_both, recall_both, values_of)


def _parts(kit: Tools, source: Source) -> tuple[Function, Function, Function]:
    """``read`` and ``shrunk`` (times 2^-80) sum the squares of a row, ``finish`` writes y."""
    from numba import cuda

    vec, inline, put, narrow = kit.layout.vec, kit.inline, kit.y.put, kit.y.narrow
    store, load, values_of = kit.y.store, kit.y.load, kit.y.values

    @inline
    def square(total: Any, values: Any, at: Any) -> Any:
        for j in range(vec):
            total = cuda.fma(values[j], values[j], total)
        return total

    @inline
    def small_square(total: Any, values: Any, at: Any) -> Any:
        for j in range(vec):
            small = values[j] * SHRINK
            total = cuda.fma(small, small, total)
        return total

    @inline
    def write(state: Any, values: Any, at: Any) -> Any:
        y, weight, start, scale, rstd = state
        factor = values_of(load(weight, at))
        for j in range(vec):
            values = put(values, j, values[j] * scale * rstd)
        values = values_of(narrow(values))
        for j in range(vec):
            values = put(values, j, values[j] * factor[j])
        store(y, start + at, narrow(values))
        return state

    return (
        numba_sweep.first(kit, source, square),
        numba_sweep.again(kit, source, small_square),
        numba_sweep.again(kit, source, write),
    )


def _make(variant: Variant, chosen: Layout) -> Function:
    """The kernel: x (rows, cols), weight (cols,), y as stored codes, rows, cols, eps."""
    from numba import cuda, float32, uint32, uint64
    from numba.cuda import libdevice

    kit = numba_row.tools(variant, chosen)
    read, shrunk, finish = _parts(kit, kit.plain)
    add, warps, width = kit.add, chosen.threads // 32, np.uint64(chosen.vec)

    def rmsnorm_row(x: Any, weight: Any, y: Any, rows: Any, cols: Any, eps: Any) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        first = cuda.shared.array(warps, float32)
        second = cuda.shared.array(warps, float32)
        packs = uint64(cols) // width
        start = uint64(cuda.blockIdx.x) * packs
        total = add(read(float32(0.0), x, start, packs, kept), first)
        scale = float32(1.0)
        if not (total < float32(np.inf)):
            scale = SHRINK
            total = add(shrunk(float32(0.0), x, start, packs, kept), second)
        spread = total / float32(cols) + eps * scale * scale
        rstd = float32(1.0) / libdevice.sqrtf(spread)
        finish((y, weight, start, scale, rstd), x, start, packs, kept)

    return rmsnorm_row


def _make_residual(variant: Variant, chosen: Layout) -> Function:
    """The kernel: x, residual (rows, cols), weight (cols,), y, residual_out, rows, cols, eps."""
    from numba import cuda, float32, uint32, uint64
    from numba.cuda import libdevice

    kit = numba_row.tools(variant, chosen)
    source = _pair(kit, variant.contract == "rounded-sum")
    _, shrunk, finish = _parts(kit, source)
    add, warps, width = kit.add, chosen.threads // 32, np.uint64(chosen.vec)
    vec, store, narrow = chosen.vec, kit.x.store, kit.x.narrow

    @kit.inline
    def keep_and_square(state: Any, values: Any, at: Any) -> Any:
        total, out, start = state
        store(out, start + at, narrow(values))
        for j in range(vec):
            total = cuda.fma(values[j], values[j], total)
        return total, out, start

    read = numba_sweep.first(kit, source, keep_and_square)

    def rmsnorm_residual(
        x: Any,
        residual: Any,
        weight: Any,
        y: Any,
        residual_out: Any,
        rows: Any,
        cols: Any,
        eps: Any,
    ) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        first = cuda.shared.array(warps, float32)
        second = cuda.shared.array(warps, float32)
        packs = uint64(cols) // width
        start = uint64(cuda.blockIdx.x) * packs
        both = (x, residual)
        state = (float32(0.0), residual_out, start)
        total = add(read(state, both, start, packs, kept)[0], first)
        scale = float32(1.0)
        if not (total < float32(np.inf)):
            scale = SHRINK
            total = add(shrunk(float32(0.0), both, start, packs, kept), second)
        spread = total / float32(cols) + eps * scale * scale
        rstd = float32(1.0) / libdevice.sqrtf(spread)
        finish((y, weight, start, scale, rstd), both, start, packs, kept)

    return rmsnorm_residual


numba_row.declare(
    "rmsnorm",
    "row",
    _make,
    idea="the row kernel written in Python, with 16-byte accesses by LLVM intrinsics",
    order=30,
    rows=variants(NORMS),
    params=params,
    source=SOURCE,
)

numba_row.declare(
    "rmsnorm",
    "residual",
    _make_residual,
    idea="the fused addition written in Python; the float32 sum is normalised",
    order=31,
    rows=KEPT,
    params=residual_params,
    source=SOURCE,
    arrays=2,
)

numba_row.declare(
    "rmsnorm",
    "residual_rounded",
    _make_residual,
    idea="the fused addition written in Python; the rounded sum is normalised",
    order=32,
    rows=ROUNDED,
    params=residual_params,
    source=SOURCE,
    arrays=2,
)
