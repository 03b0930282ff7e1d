"""RMSNorm in Numba, with and without a fused residual addition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.kernels import numba_row
from gpulab.kernels.numba_columns import Columns
from gpulab.kernels.numba_function import Function, device
from gpulab.kernels.numba_layout import PLAIN, TWO_ARRAYS, Layout
from gpulab.kernels.numba_row import Source, Tools
from gpulab.kernels.numba_sweep import Sweeps
from gpulab.kernels.rmsnorm.row import KEPT, ROUNDED, SOURCE, params, residual_params
from gpulab.kernels.row_kernel import NORMS, variants
from gpulab.registry import Variant

SHRINK = np.float32(2.0**-80)
"""A row whose squares overflow is taken times this: exact, and finite."""


def _pair(kit: Tools, rounded: bool) -> Source:
    """X + residual of each pack; ``rounded``: as it is stored."""
    from numba import uint64

    load, values, put, narrow = kit.x.load, kit.x.values, kit.x.put, kit.x.narrow
    vec, copy, recall = kit.layout.vec, kit.copy, kit.x.recall
    other = np.uint64(kit.layout.threads * kit.layout.ring)

    @device
    def total(a: Any, b: Any) -> Any:
        mine, theirs = values(a), values(b)
        for j in range(vec):
            mine = put(mine, j, mine[j] + theirs[j])
        return mine

    @device
    def fetch_both(rows: Any, at: Any) -> Any:
        return load(rows[0], at), load(rows[1], at)

    @device
    def copy_both(kept: Any, place: Any, rows: Any, at: Any) -> None:
        copy(kept, place, rows[0], at)
        copy(kept, uint64(other + place), rows[1], at)

    @device
    def recall_both(kept: Any, at: Any) -> Any:
        return recall(kept, at), recall(kept, uint64(other + at))

    @device
    def values_of_both(held: Any) -> Any:
        return total(held[0], held[1])

    @device
    def values_as_stored(held: Any) -> Any:
        return values(narrow(total(held[0], held[1])))

    values_of = values_as_stored if rounded else values_of_both
    return Source(fetch_both, copy_both, recall_both, values_of)


@dataclass(frozen=True)
class _Norm:
    """Device functions of a row's normalisation.

    Args:
        begin: see ``Sweeps``.
        following: see ``Sweeps``.
        given: see ``Columns``.
        normalise: (sum of squares, y, rows, parameters, here, kept, cols, eps, shared array).
        add: sums of a value over the row.
    """

    begin: Function
    following: Function
    given: Function
    normalise: Function
    add: Function


def _norm(kit: Tools, sweeps: Sweeps) -> _Norm:
    from numba import cuda, float32
    from numba.cuda import libdevice

    vec, put, narrow = kit.layout.vec, kit.y.put, kit.y.narrow
    store, values_of, columns = kit.y.store, kit.y.values, Columns(kit, 1)
    anew, none = np.uint32(2 * kit.layout.parts), np.uint32(0)

    @device
    def small_square(total: Any, values: Any, at: Any, near: Any) -> Any:
        for j in range(vec):
            small = values[j] * SHRINK
            total = cuda.fma(small, small, total)
        return total

    @device
    def write(state: Any, values: Any, at: Any, near: Any) -> Any:
        y, scale, rstd = state
        factor = values_of(near[0])
        for j in range(vec):
            values = put(values, j, values[j] * scale * rstd)
        values = values_of(narrow(values))
        for j in range(vec):
            values = put(values, j, values[j] * factor[j])
        store(y, at, narrow(values))
        return state

    add, again = kit.add(1), sweeps.again(small_square)
    finish = sweeps.again(write, columns.near, last=True)

    @device
    def normalise(
        total: Any,
        y: Any,
        x: Any,
        weight: Any,
        here: Any,
        kept: Any,
        cols: Any,
        eps: Any,
        part: Any,
    ) -> None:
        scale = float32(1.0)
        if not (total < float32(np.inf)):
            scale = SHRINK
            total = add((again(float32(0.0), x, here, kept, none),), part, anew, here[1])[0]
        spread = total / float32(cols) + eps * scale * scale
        rstd = float32(1.0) / libdevice.sqrtf(spread)
        finish((y, scale, rstd), x, here, kept, weight)

    return _Norm(sweeps.begin(), sweeps.following(), columns.given, normalise, add)


def _make(variant: Variant, chosen: Layout) -> Function:
    """The kernel: x (rows, cols), weight (cols,), y as stored codes, rows, cols, eps."""
    from numba import cuda, float32, uint32

    kit = numba_row.tools(variant, chosen)
    sweeps = Sweeps(kit, kit.plain)
    norm = _norm(kit, sweeps)
    begin, following, given = norm.begin, norm.following, norm.given
    normalise, add, none = norm.normalise, norm.add, np.uint32(0)
    vec, places = chosen.vec, 4 * chosen.parts

    @device
    def square(total: Any, values: Any, at: Any, near: Any) -> Any:
        for j in range(vec):
            total = cuda.fma(values[j], values[j], total)
        return total

    read = sweeps.first(square)

    def rmsnorm_row(x: Any, weight: Any, y: Any, rows: Any, cols: Any, eps: Any) -> None:
        kept = cuda.shared.array(0, uint32, alignment=16)
        part = cuda.shared.array(places, float32)
        here = begin(x, kept, rows, cols)
        parameters = given((weight,), here[4])
        while here[0] < here[3]:
            total = add((read(float32(0.0), x, here, kept),), part, none, here[1])[0]
            normalise(total, y, x, parameters, here, kept, cols, eps, part)
            here = following(here)

    return rmsnorm_row


def _make_residual(variant: Variant, chosen: Layout) -> Function:
    """The kernel: x, residual (rows, cols), weight (cols,), y, residual_out, rows, cols, eps."""
    from numba import cuda, float32, uint32

    kit = numba_row.tools(variant, chosen)
    sweeps = Sweeps(kit, _pair(kit, variant.contract == "rounded-sum"))
    norm = _norm(kit, sweeps)
    begin, following, given = norm.begin, norm.following, norm.given
    normalise, add, none = norm.normalise, norm.add, np.uint32(0)
    vec, places, store, narrow = chosen.vec, 4 * chosen.parts, kit.x.store, kit.x.narrow

    @device
    def keep_and_square(state: Any, values: Any, at: Any, near: Any) -> Any:
        total, out = state
        store(out, at, narrow(values))
        for j in range(vec):
            total = cuda.fma(values[j], values[j], total)
        return total, out

    read = sweeps.first(keep_and_square)

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
        part = cuda.shared.array(places, float32)
        both = (x, residual)
        here = begin(both, kept, rows, cols)
        parameters = given((weight,), here[4])
        while here[0] < here[3]:
            squares, _ = read((float32(0.0), residual_out), both, here, kept)
            total = add((squares,), part, none, here[1])[0]
            normalise(total, y, both, parameters, here, kept, cols, eps, part)
            here = following(here)

    return rmsnorm_residual


numba_row.declare(
    "rmsnorm",
    "row",
    _make,
    idea="the row kernel written in Python, with 16-byte accesses by LLVM intrinsics",
    order=30,
    rows=variants(NORMS),
    params=params,
    table=PLAIN,
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
    table=TWO_ARRAYS,
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
    table=TWO_ARRAYS,
    source=SOURCE,
    arrays=2,
)
