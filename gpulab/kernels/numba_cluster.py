"""What the threads of a row hand each other in Numba, in one block or in the blocks of a cluster.

The counterpart of ``raw_kernels/ptx/cluster.cuh``: Numba has no functions for clusters.
Source: PTX ISA, "mapa", "st" (.shared::cluster), "barrier.cluster". From capability 9.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpulab.kernels.numba_asm import address, emit, instruction
from gpulab.kernels.numba_function import Function, device


@dataclass(frozen=True)
class Exchange:
    """Device functions of the threads of a row.

    Args:
        begin: tells the other blocks that this one runs.
        ready: waits until all do: before the first ``hand_on``.
        hand_on: (first place, (shared array, values), k): every warp's k-th value, in its place of
            every block's array; gives the first place.
        meet: all threads of the row have come here, and what they handed on is there.
    """

    begin: Function
    ready: Function
    hand_on: Function
    meet: Function


@lru_cache(maxsize=32)
def exchange(warps: int, blocks: int) -> Exchange:
    """For ``blocks`` blocks of ``warps`` warps a row.

    All lanes of a warp hold the same bits. In one block all store them: LLVM may give the two sides
    of a branch before a barrier a barrier each, which the lanes of a warp must not have.
    """
    from numba import cuda, uint32, uint64

    a_block = np.uint32(warps)
    if blocks == 1:

        @device
        def nothing() -> None:
            pass

        @device
        def keep(first: Any, what: Any, k: Any) -> Any:
            part, values = what
            part[first + k * a_block + uint32(cuda.threadIdx.x) // uint32(32)] = values[k]
            return first

        return Exchange(nothing, nothing, keep, cuda.syncthreads)
    arrive, wait, store = _arrive(), _wait(), _store(blocks)
    all_blocks = np.uint32(blocks)

    @device
    def hand_on(first: Any, what: Any, k: Any) -> Any:
        part, values = what
        thread, rank = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x) % all_blocks
        place = first + (k * all_blocks + rank) * a_block + thread // uint32(32)
        store(part, uint64(place), uint32(thread % uint32(32)), values[k])
        return first

    @device
    def meet_all() -> None:
        arrive()
        wait()

    return Exchange(arrive, wait, hand_on, meet_all)


@lru_cache(maxsize=1)
def _arrive() -> Function:
    return instruction("barrier.cluster.arrive.release.aligned;", together=True)


@lru_cache(maxsize=1)
def _wait() -> Function:
    return instruction("barrier.cluster.wait.acquire.aligned;", together=True)


@lru_cache(maxsize=8)
def _store(blocks: int) -> Function:
    """``store(shared array, place, rank, float32)``: in the array of the block of that rank, if
    there is one."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    text = (
        "{ .reg .pred is; .reg .u32 here, there; cvt.u32.u64 here, $0; "
        f"setp.lt.u32 is, $1, {blocks}; @is mapa.shared::cluster.u32 there, here, $1; "
        "@is st.shared::cluster.u32 [there], $2; }"
    )

    @intrinsic  # type: ignore[untyped-decorator]
    def start(typing_context: Any, part: Any, place: Any, rank: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            here = address(context, builder, signature.args[0], values[:2], 4, 3)
            word = builder.bitcast(values[3], ir.IntType(32))
            emit(builder, text, [here, values[2], word])
            return context.get_dummy_value()

        return types.void(part, types.uint64, types.uint32, types.float32), generate

    function: Function = start
    return function
