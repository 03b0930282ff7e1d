"""What the Numba row kernels share: a block a row, which it reads once and goes over again.

Thread t takes packs t, t + threads, ... The first ``keep`` of them stay in its own places of shared
memory (no other thread touches them: no barrier), the rest is read again (``numba_sweep``). The
blocks of a cluster share a row that one block cannot keep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from gpulab.formats import storage_dtype
from gpulab.kernels import numba_async, numba_cluster, row_shape
from gpulab.kernels.numba_layout import Layout, layout
from gpulab.kernels.numba_pack import Pack, exp2_approx
from gpulab.kernels.numba_pack import pack as pack_of
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

Function = Callable[..., Any]

FULL_WARP = 0xFFFFFFFF
LOG2_E = np.float32(1.4426950408889634)


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
        layout: of the block.
        x: packs of x.
        y: packs of y and of the parameters.
        place: (cols) -> this block's row, first pack and packs of the row. Comes first.
        member: () -> this thread's number in its row.
        ready: the first ``add`` or ``larger`` may come.
        copy: one pack of x into shared memory.
        exp: e^d for d <= 0.
        add: sum over the row of one value; each call names a shared array of its own.
        larger: maximum over the row.
        inline: the decorator that made them.
    """

    layout: Layout
    x: Pack
    y: Pack
    place: Function
    member: Function
    ready: Function
    copy: Function
    exp: Function
    add: Function
    larger: Function
    inline: Function

    @property
    def plain(self) -> Source:
        """Packs of x alone."""
        return Source(self.x.load, self.copy, self.x.load, self.x.values)

    def times(self, factor: np.float32) -> Source:
        """Packs of x alone, their values times ``factor``."""
        vec, values_of, put = self.layout.vec, self.x.values, self.x.put

        @self.inline
        def values(held: Any) -> Any:
            found = values_of(held)
            for j in range(vec):
                found = put(found, j, found[j] * factor)
            return found

        return replace(self.plain, values=values)


def tools(variant: Variant, chosen: Layout) -> Tools:
    """The device functions for a variant."""
    from numba import cuda, uint32, uint64
    from numba.cuda import libdevice

    inline: Function = cuda.jit(device=True, inline="always")
    exp2 = exp2_approx()
    parts, lanes = chosen.parts, min(chosen.parts, row_shape.WARP)
    full = np.uint32(FULL_WARP)
    width, blocks, threads = np.uint64(chosen.vec), chosen.cluster, np.uint64(chosen.threads)
    exchange = numba_cluster.exchange(inline, chosen.threads // row_shape.WARP, blocks)
    begin, hand_on, meet = exchange.begin, exchange.hand_on, exchange.meet

    @inline
    def place(cols: Any) -> Any:
        begin()
        row, packs = uint64(cuda.blockIdx.x) // uint64(blocks), uint64(cols) // width
        return row, row * packs, packs

    @inline
    def member() -> Any:
        rank = uint64(cuda.blockIdx.x) % uint64(blocks)
        return rank * threads + uint64(cuda.threadIdx.x)

    @inline
    def exp(d: Any) -> Any:
        return exp2(d * LOG2_E)

    def reducer(combine: Function) -> Function:
        @inline
        def reduce(value: Any, part: Any) -> Any:
            mask = 1
            while mask < 32:
                value = combine(value, cuda.shfl_xor_sync(full, value, mask))
                mask *= 2
            hand_on(part, value)
            meet()
            lane = uint32(cuda.threadIdx.x) % uint32(lanes)
            value = part[lane]
            for i in range(lanes, parts, lanes):
                value = combine(value, part[lane + uint32(i)])
            mask = 1
            while mask < lanes:
                value = combine(value, cuda.shfl_xor_sync(full, value, mask))
                mask *= 2
            return value

        return cast(Function, reduce)

    @inline
    def plus(a: Any, b: Any) -> Any:
        return a + b

    @inline
    def maximum(a: Any, b: Any) -> Any:
        return libdevice.fmaxf(a, b)

    x = pack_of(variant.format, chosen.vec, chosen.modern)
    y = pack_of(variant.output, chosen.vec, chosen.modern)
    load, store = x.load, x.store

    @inline
    def at_once(kept: Any, place: Any, array: Any, at: Any) -> None:
        store(kept, place, load(array, at))

    size = chosen.vec * storage_dtype(variant.format).itemsize
    copy = numba_async.copy(size) if chosen.modern and size >= 4 else at_once
    return Tools(
        layout=chosen,
        x=x,
        y=y,
        place=place,
        member=member,
        ready=exchange.ready,
        copy=copy,
        exp=exp,
        add=reducer(plus),
        larger=reducer(maximum),
        inline=inline,
    )


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
        arrays: rows read side by side.
        kept: packs are kept for a second pass.
    """

    def shape(variant: Variant, capability: Capability, dims: Dims) -> Layout:
        return layout(variant, capability, dims, arrays, kept)

    def build(variant: Variant, capability: Capability, dims: Dims) -> NumbaBuild:
        chosen = shape(variant, capability, dims)
        key = f"{op}_{name}_{variant.contract}_{variant.format}_{variant.output}_{chosen}"
        return NumbaBuild(lambda: make(variant, chosen), key, chosen.bounds, chosen.cluster)

    def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
        chosen = shape(variant, capability, dims)
        return LaunchPlan(
            grid=(dims["rows"] * chosen.cluster, 1, 1),
            block=(chosen.threads, 1, 1),
            shared_bytes=chosen.shared_bytes,
            cluster=chosen.cluster,
        )

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
