"""What the Numba row kernels share: a block a row, which it reads once and goes over again.

Thread t takes packs t, t + threads, ... The first ``keep`` of them stay in its own places of shared
memory (no other thread touches them: no barrier), the rest is read again. Loads come four at a
time, so that they overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpulab import arch
from gpulab.kernels import row_shape
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
IN_FLIGHT = 4
"""Packs on their way at once."""


@dataclass(frozen=True)
class Layout:
    """How a block takes a row.

    Args:
        vec: elements of a pack.
        threads: of a block, a power of two, whole warps.
        keep: packs a thread keeps in shared memory.
        arrays: rows read side by side (the residual's beside x).
        kept_bytes: shared memory of one kept pack.
    """

    vec: int
    threads: int
    keep: int
    arrays: int
    kept_bytes: int

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.keep * self.threads * self.kept_bytes


def layout(
    variant: Variant, capability: Capability, dims: Dims, arrays: int = 1, kept: bool = True
) -> Layout:
    """Threads and kept packs of a row: measured with bf16 on an H200.

    A thread has four packs of a row where a block of a few warps has enough of them; longer rows
    take all the shared memory there is.
    """
    vec = row_shape.pack_elements(dims["cols"], variant.format, variant.output)
    packs = dims["cols"] // vec
    threads = 32
    while threads < 1024 and packs > threads * (8 if packs > 1024 else 4):
        threads *= 2
    held = arrays * row_shape.held_bytes(vec, variant.format)
    room = arch.get(capability).shared_per_block_bytes - row_shape.STATIC_BYTES
    wanted = -(-packs // threads)
    fits = room // (threads * held)
    return Layout(vec, threads, min(wanted, fits) if kept else 0, arrays, held)


@dataclass(frozen=True)
class Source:
    """How a pack of a row is read, kept and turned into values.

    Args:
        fetch: (row arrays, pack number) -> what is held of it.
        remember: (shared array, place, held).
        recall: (shared array, place) -> held.
        values: held -> float32 values.
    """

    fetch: Function
    remember: Function
    recall: Function
    values: Function


@dataclass(frozen=True)
class Tools:
    """Device functions over one layout.

    Args:
        layout: of the block.
        x: packs of x.
        y: packs of y and of the parameters.
        exp: e^d for d <= 0.
        add: sum over the block of one value; each call names a shared array of its own.
        larger: maximum over the block.
        inline: the decorator that made them.
    """

    layout: Layout
    x: Pack
    y: Pack
    exp: Function
    add: Function
    larger: Function
    inline: Function

    @property
    def plain(self) -> Source:
        """Packs of x alone."""
        return Source(self.x.load, self.x.store, self.x.load, self.x.values)


def tools(variant: Variant, chosen: Layout) -> Tools:
    """The device functions for a variant."""
    from numba import cuda, uint32
    from numba.cuda import libdevice

    inline: Function = cuda.jit(device=True, inline="always")
    exp2 = exp2_approx()
    warps = chosen.threads // row_shape.WARP
    full = np.uint32(FULL_WARP)

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
            # All lanes hold the same bits, and all store them: LLVM may give the two sides of a
            # branch before a barrier a barrier each, which the lanes of a warp must not have.
            thread = uint32(cuda.threadIdx.x)
            part[thread // uint32(32)] = value
            cuda.syncthreads()
            value = part[thread % uint32(warps)]
            mask = 1
            while mask < warps:
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

    x, y = pack_of(variant.format, chosen.vec), pack_of(variant.output, chosen.vec)
    return Tools(chosen, x, y, exp, reducer(plus), reducer(maximum), inline)


def walk(kit: Tools, source: Source, take: Function) -> Function:
    """``walk(state, rows, start, packs, kept)``: read a row, keep its first packs, fold ``take``.

    ``take(state, values, place)`` gives the next state.
    """
    from numba import cuda, uint64

    fetch, remember, values = source.fetch, source.remember, source.values
    ahead = _ahead(kit, fetch)
    step, keep = np.uint64(kit.layout.threads), np.uint64(kit.layout.keep)

    @kit.inline
    def whole(state: Any, rows: Any, start: Any, packs: Any, kept: Any) -> Any:
        at = uint64(cuda.threadIdx.x)
        end = min(packs, step * keep)
        while at < end:
            held = ahead(rows, start, at, end)
            for i in range(IN_FLIGHT):
                if at < end:
                    remember(kept, at, held[i])
                    state = take(state, values(held[i]), at)
                at += step
        at = uint64(cuda.threadIdx.x) + step * keep
        while at < packs:
            held = ahead(rows, start, at, packs)
            for i in range(IN_FLIGHT):
                if at < packs:
                    state = take(state, values(held[i]), at)
                at += step
        return state

    return cast(Function, whole)


def again(kit: Tools, source: Source, take: Function) -> Function:
    """``again(state, rows, start, packs, kept)``: go over a row that was read, fold ``take``.

    What was read last is read first, while it is still near.
    """
    from numba import cuda, uint64

    recall, values = source.recall, source.values
    ahead = _ahead(kit, source.fetch)
    step, keep = np.uint64(kit.layout.threads), np.uint64(kit.layout.keep)

    @kit.inline
    def whole(state: Any, rows: Any, start: Any, packs: Any, kept: Any) -> Any:
        at = uint64(cuda.threadIdx.x) + step * keep
        while at < packs:
            held = ahead(rows, start, at, packs)
            for i in range(IN_FLIGHT):
                if at < packs:
                    state = take(state, values(held[i]), at)
                at += step
        at = uint64(cuda.threadIdx.x)
        end = min(packs, step * keep)
        while at < end:
            state = take(state, values(recall(kept, at)), at)
            at += step
        return state

    return cast(Function, whole)


def _ahead(kit: Tools, fetch: Function) -> Function:
    """``ahead(rows, start, at, end)``: this thread's next packs, all on their way at once.

    Beyond the end the last pack is read in their stead: no branch comes between the loads.
    """
    from numba import uint64

    step = np.uint64(kit.layout.threads)
    two, three = np.uint64(2 * kit.layout.threads), np.uint64(3 * kit.layout.threads)

    @kit.inline
    def load(rows: Any, start: Any, at: Any, end: Any) -> Any:
        last = start + end - uint64(1)
        first = start + at
        return (
            fetch(rows, first),
            fetch(rows, min(first + step, last)),
            fetch(rows, min(first + two, last)),
            fetch(rows, min(first + three, last)),
        )

    return cast(Function, load)


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
        return NumbaBuild(lambda: make(variant, chosen), key)

    def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
        chosen = shape(variant, capability, dims)
        return LaunchPlan((dims["rows"], 1, 1), (chosen.threads, 1, 1), chosen.shared_bytes)

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
