"""What the Numba row kernels share: a block a row, which it reads once and goes over again.

Thread t takes packs t, t + threads, ... The first ``keep`` of them stay in its own places of shared
memory (no other thread touches them: no barrier), the rest is read again (``numba_sweep``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpulab import arch
from gpulab.formats import storage_dtype
from gpulab.kernels import numba_async, row_shape, row_tables
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
THREADS_AN_SM = {False: 1280, True: 1024}
"""Resident ones, without and with a rest: what a thread has of the registers."""


@dataclass(frozen=True)
class Layout:
    """How a block takes a row.

    Args:
        vec: elements of a pack.
        threads: of a block, a power of two, whole warps.
        keep: packs a thread keeps in shared memory.
        rest: a thread has more packs than those.
        arrays: rows read side by side (the residual's beside x).
        kept_bytes: shared memory of one kept pack.
        modern: the capability has asynchronous copies, and rounds to bf16 by twos.
        resident: threads that an SM should hold.
    """

    vec: int
    threads: int
    keep: int
    rest: bool
    arrays: int
    kept_bytes: int
    modern: bool
    resident: int

    @property
    def batches(self) -> int:
        """Groups of kept packs that are waited for."""
        return -(-self.keep // IN_FLIGHT)

    @property
    def bounds(self) -> tuple[int, int]:
        """Threads of a block and blocks of an SM."""
        return self.threads, max(1, self.resident // self.threads)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.keep * self.threads * self.kept_bytes


def layout(
    variant: Variant, capability: Capability, dims: Dims, arrays: int = 1, kept: bool = True
) -> Layout:
    """Threads and kept packs of a row: measured with bf16 on an H200.

    A thread has four packs of a short row, of two rows side by side, and otherwise eight; the
    longest rows take all the shared memory there is. Of rows that are not kept it has sixteen.
    """
    beside = (variant.output,) if kept else ()
    row = row_shape.packs_of(dims["cols"], variant.format, beside, arrays)
    threads = row_shape.WARP
    if kept:
        share = 4 if arrays > 1 or row.count <= 1024 else 8
        while threads < 1024 and row.count > threads * share:
            threads *= 2
    else:
        threads = max(threads, row_tables.shape(row_tables.ONCE, row, capability).group)
    card = arch.get(capability)
    room = card.shared_per_block_bytes - row_shape.static_bytes(threads, 1)
    wanted = -(-row.count // threads)
    keep = min(wanted, room // (threads * row.kept_bytes)) if kept else 0
    rest, modern = keep < wanted, capability >= row_shape.ASYNC
    held = min(card.max_threads_per_sm, card.max_blocks_per_sm * threads)
    resident = min(THREADS_AN_SM[rest], held)
    return Layout(row.elements, threads, keep, rest, arrays, row.kept_bytes, modern, resident)


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
        copy: one pack of x into shared memory.
        exp: e^d for d <= 0.
        add: sum over the block of one value; each call names a shared array of its own.
        larger: maximum over the block.
        inline: the decorator that made them.
    """

    layout: Layout
    x: Pack
    y: Pack
    copy: Function
    exp: Function
    add: Function
    larger: Function
    inline: Function

    @property
    def plain(self) -> Source:
        """Packs of x alone."""
        return Source(self.x.load, self.copy, self.x.load, self.x.values)


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

    x = pack_of(variant.format, chosen.vec, chosen.modern)
    y = pack_of(variant.output, chosen.vec, chosen.modern)
    load, store = x.load, x.store

    @inline
    def at_once(kept: Any, place: Any, array: Any, at: Any) -> None:
        store(kept, place, load(array, at))

    size = chosen.vec * storage_dtype(variant.format).itemsize
    copy = numba_async.copy(size) if chosen.modern and size >= 4 else at_once
    return Tools(chosen, x, y, copy, exp, reducer(plus), reducer(maximum), inline)


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
        return NumbaBuild(lambda: make(variant, chosen), key, chosen.bounds)

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
