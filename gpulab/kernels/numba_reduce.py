"""Reductions in Numba over the threads that share a row: lanes, warps, blocks of a cluster.

All threads end with the same bits: what they add depends on their places only. The functions are
made once for each number of warps and blocks, so that kernels of several formats share them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gpulab.kernels import numba_cluster
from gpulab.kernels.numba_function import NOTHING, Function, collect, device, repeat
from gpulab.kernels.row_shape import WARP

FULL_WARP = 0xFFFFFFFF


def over_row(
    warps: int, blocks: int, lanes: Callable[[int], Function], pair: Function, count: int
) -> Function:
    """``reduce(values, shared array, first place, turn)``: a tuple of all threads of a row.

    The array has two places for a value of a warp, which take turns: while one row's is read by who
    is late, the next row's is written; the one after that has passed a barrier.

    Args:
        warps: of a block.
        blocks: of a row.
        lanes: n -> (values) -> what n lanes of a warp have together, the same bits in all.
        pair: merges the values of two.
        count: of values.
    """
    from numba import cuda, uint32

    exchange = numba_cluster.exchange(warps, blocks)
    hand_on, meet = exchange.hand_on, exchange.meet
    parts = warps * blocks
    some = min(parts, WARP)
    of_warp = lanes(WARP)
    of_parts = of_warp if some == WARP else lanes(some)
    size = np.uint32(count * parts)

    @device
    def read(what: Any, k: Any) -> Any:
        part, at = what
        return part[at + k * uint32(parts)]

    every, all_given = collect(count, read), repeat(count, hand_on)

    @device
    def merge(values: Any, what: Any, i: Any) -> Any:
        part, at = what
        return pair(values, every((part, uint32(at + (i + uint32(1)) * uint32(some)))))

    merged = repeat(parts // some - 1, merge)

    @device
    def reduce(values: Any, part: Any, first: Any, turn: Any) -> Any:
        start = uint32(first + (turn & uint32(1)) * size)
        all_given(start, (part, of_warp(values)))
        meet()
        at = uint32(start + uint32(cuda.threadIdx.x) % uint32(some))
        return of_parts(merged(every((part, at)), (part, at)))

    return reduce


def over_lanes(combine: Function) -> Callable[[int], Function]:
    """For a number of lanes: ``over(value, NOTHING)``, of a warp's so many."""
    from numba import cuda, uint32

    full = np.uint32(FULL_WARP)

    @device
    def step(value: Any, what: Any, i: Any) -> Any:
        return combine(value, cuda.shfl_xor_sync(full, value, uint32(1) << i))

    return lambda count: repeat(count.bit_length() - 1, step)


@lru_cache(maxsize=1)
def sum_of_lanes() -> Callable[[int], Function]:
    """See ``over_lanes``."""

    @device
    def plus(a: Any, b: Any) -> Any:
        return a + b

    return over_lanes(plus)


@lru_cache(maxsize=64)
def add(warps: int, blocks: int, count: int) -> Function:
    """``add(values, shared array, first place, turn)``: sums over the row of one value or two."""

    def lanes(number: int) -> Function:
        of_lanes = sum_of_lanes()(number)

        @device
        def one(values: Any) -> Any:
            return (of_lanes(values[0], NOTHING),)

        @device
        def two(values: Any) -> Any:
            return of_lanes(values[0], NOTHING), of_lanes(values[1], NOTHING)

        return one if count == 1 else two

    @device
    def one(a: Any, b: Any) -> Any:
        return (a[0] + b[0],)

    @device
    def two(a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]

    return over_row(warps, blocks, lanes, one if count == 1 else two, count)
