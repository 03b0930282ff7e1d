"""What the Numba row kernels share: a block a row, which it reads once and goes over again.

Thread t takes packs t, t + threads, ... The first ``keep`` of them stay in its own places of shared
memory (no other thread touches them: no barrier), the rest is read again (``numba_sweep``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpulab.formats import storage_dtype
from gpulab.kernels import numba_async, numba_cluster, numba_layout, numba_reduce, row_shape
from gpulab.kernels.numba_cluster import Exchange
from gpulab.kernels.numba_function import Function, device
from gpulab.kernels.numba_layout import Layout, Shape, Table
from gpulab.kernels.numba_pack import Pack
from gpulab.kernels.numba_pack import pack as pack_of
from gpulab.kernels.row_packs import Packs
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    NumbaBuild,
    Param,
    Variant,
    register,
)


@dataclass(frozen=True)
class Source:
    """How a pack of a row is read, kept and turned into values.

    Args:
        fetch: (row arrays, pack number) -> what is held of it.
        copy: (shared array, place, row arrays, pack number), from the one to the other.
        recall: (shared array, place) -> held.
        values: held -> float32 values.
    """

    fetch: Function
    copy: Function
    recall: Function
    values: Function


@dataclass(frozen=True)
class Tools:
    """Device functions over one layout.

    Args:
        layout: of the rows.
        x: packs of x.
        y: packs of y and of the parameters.
        member: () -> this thread's number in its row.
        copy: one pack of x into shared memory.
        exchange: what the threads of a row hand each other.
    """

    layout: Layout
    x: Pack
    y: Pack
    member: Function
    copy: Function
    exchange: Exchange

    @property
    def plain(self) -> Source:
        """Packs of x alone."""
        return Source(self.x.load, self.copy, self.x.recall, self.x.values)

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.layout.threads // row_shape.WARP

    def add(self, count: int) -> Function:
        """``add(values, shared array, first place, turn)``: sums over the row of one or two."""
        return numba_reduce.add(self.warps, self.layout.cluster, count)


def tools(variant: Variant, chosen: Layout) -> Tools:
    """The device functions for a variant."""
    x = pack_of(variant.format, chosen.vec, chosen.modern)
    y = pack_of(variant.output, chosen.vec, chosen.modern, chosen.behind)
    load, keep = x.load, x.keep

    @device
    def at_once(kept: Any, place: Any, array: Any, at: Any) -> None:
        keep(kept, place, load(array, at))

    size = chosen.vec * storage_dtype(variant.format).itemsize
    copy = numba_async.copy(size) if chosen.modern and size >= 4 else at_once
    warps = chosen.threads // row_shape.WARP
    exchange = numba_cluster.exchange(warps, chosen.cluster)
    return Tools(chosen, x, y, _member(chosen.threads, chosen.cluster), copy, exchange)


@lru_cache(maxsize=32)
def _member(threads: int, cluster: int) -> Function:
    from numba import cuda, uint32

    if cluster == 1:

        @device
        def alone() -> Any:
            return uint32(cuda.threadIdx.x)

        return alone

    @device
    def member() -> Any:
        rank = uint32(cuda.blockIdx.x) % uint32(cluster)
        return uint32(rank * uint32(threads) + uint32(cuda.threadIdx.x))

    return member


Make = Callable[[Variant, Layout], Function]


def declare(
    op: str,
    name: str,
    make: Make,
    *,
    idea: str,
    order: int,
    rows: tuple[Variant, ...],
    params: Callable[[Variant], tuple[Param, ...]],
    source: str,
    table: Table = (),
    arrays: int = 1,
    kept: bool = True,
) -> KernelSpec:
    """Register a Numba row kernel.

    Args:
        op: operation.
        name: of the kernel.
        make: the kernel of a variant and layout.
        idea: one sentence.
        order: place in the ladder.
        rows: variants.
        params: parameter list.
        source: where the method is published.
        table: which shape rows of which length take.
        arrays: rows read side by side.
        kept: packs are kept for a second pass.
    """

    def shape(variant: Variant, capability: Capability, dims: Dims) -> tuple[Layout, Shape, Packs]:
        return numba_layout.chosen(table, variant, capability, dims, arrays, kept)

    def build(variant: Variant, capability: Capability, dims: Dims) -> NumbaBuild:
        layout = shape(variant, capability, dims)[0]
        key = f"{op}_{name}_{variant.contract}_{variant.format}_{variant.output}_{layout}"
        bounds = (layout.threads, layout.blocks)
        return NumbaBuild(lambda: make(variant, layout), key, bounds, layout.cluster)

    def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
        _, shape_of_row, row = shape(variant, capability, dims)
        return row_shape.plan(shape_of_row, dims, row)

    return register(
        KernelSpec(
            op=op,
            name=name,
            backend="numba",
            idea=idea,
            order=order,
            variants=rows,
            params=params,
            build=build,
            plan=plan,
            supports=lambda variant, capability, dims: row_shape.too_wide(dims),
            source=source,
        )
    )
