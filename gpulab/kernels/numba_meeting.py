"""Meetings of the warps of a cluster in Numba, which no warp waits for when it hands on its part.

The counterpart of ``raw_kernels/common/behind.cuh``, which says why no warp waits in vain and why
no part is overwritten that is still read. From capability 9.0.
Source: PTX ISA, "mbarrier", "st.async".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpulab.kernels.numba_asm import emit, shared_address
from gpulab.kernels.numba_function import Function, collect, device
from gpulab.kernels.numba_pack import pack
from gpulab.kernels.row_shape import BEHIND_BYTES, WARP

ROWS = 4
"""Places that the meetings of rows take in turns."""
PLACES = ROWS + 2
"""And those of rows that are gone over again."""


@dataclass(frozen=True)
class Meetings:
    """Device functions of the warps of a row.

    Args:
        begin: (barriers): makes them, before the cluster's first barrier.
        tell: (parts, barriers, place, four values): a warp's, to that place of every block.
        hear: (parts, barriers, place, parity): what all warps have told.
    """

    begin: Function
    tell: Function
    hear: Function


@lru_cache(maxsize=8)
def meetings(warps: int, blocks: int, merge: Function) -> Meetings:
    """For ``blocks`` blocks of ``warps`` warps a row, a power of two.

    Args:
        warps: of a block.
        blocks: of a row.
        merge: of as many tuples of a part's values as a lane reads, by all lanes that read any.
    """
    from numba import cuda, uint32, uint64

    parts, some = warps * blocks, min(WARP, warps * blocks)
    start, send, wait, recall = _begin(), _send(parts, blocks), _wait(), pack("fp32", 4)
    read, values_of = recall.recall, recall.values
    a_block, all_blocks = np.uint32(warps), np.uint32(blocks)

    @device
    def begin(barriers: Any) -> None:
        start(barriers, uint32(cuda.threadIdx.x))

    @device
    def part(what: Any, i: Any) -> Any:
        told, at = what
        return values_of(read(told, uint64(at + i * uint32(some))))

    every = collect(parts // some, part)

    @device
    def tell(told: Any, barriers: Any, place: Any, mine: Any) -> None:
        thread, rank = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x) % all_blocks
        at = uint32(place * uint32(parts) + rank * a_block + thread // uint32(32))
        send(told, uint64(at), barriers, uint64(place), thread, mine)

    @device
    def hear(told: Any, barriers: Any, place: Any, parity: Any) -> Any:
        wait(barriers, uint64(place), parity)
        at = uint32(place * uint32(parts) + uint32(cuda.threadIdx.x) % uint32(some))
        return merge(every((told, at)))

    return Meetings(begin, tell, hear)


@lru_cache(maxsize=1)
def _begin() -> Function:
    from numba import types
    from numba.extending import intrinsic

    made = " ".join(f"@is mbarrier.init.shared::cta.b64 [$0 + {8 * i}], 1;" for i in range(PLACES))
    text = (
        f"{{ .reg .pred is; setp.eq.u32 is, $1, 0; {made} "
        "@is fence.mbarrier_init.release.cluster; @is fence.proxy.async; }"
    )

    @intrinsic  # type: ignore[untyped-decorator]
    def begin(typing_context: Any, barriers: Any, thread: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            zero = context.get_constant(types.uint64, 0)
            first = shared_address(context, builder, signature.args[0], (values[0], zero), 8)
            emit(builder, text, [first, values[1]], together=True)
            return context.get_dummy_value()

        return types.void(barriers, types.uint32), generate

    function: Function = begin
    return function


@lru_cache(maxsize=8)
def _send(parts: int, blocks: int) -> Function:
    """Thread 0 announces the bytes of all; a lane sends them to the block of its number."""
    from numba import types
    from numba.extending import intrinsic

    text = (
        "{ .reg .pred is; .reg .u32 there, counter, lane; setp.eq.u32 is, $2, 0; "
        f"@is mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], {BEHIND_BYTES * parts}; "
        f"and.b32 lane, $2, 31; setp.lt.u32 is, lane, {blocks}; "
        "@is mapa.shared::cluster.u32 there, $0, lane; "
        "@is mapa.shared::cluster.u32 counter, $1, lane; "
        "@is st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
        "[there], {$3, $4, $5, $6}, [counter]; }"
    )
    mine = types.UniTuple(types.float32, 4)

    @intrinsic  # type: ignore[untyped-decorator]
    def send(
        typing_context: Any, told: Any, at: Any, barriers: Any, place: Any, thread: Any, part: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            from llvmlite import ir

            kinds, i32 = signature.args, ir.IntType(32)
            here = shared_address(context, builder, kinds[0], values[:2], BEHIND_BYTES)
            counter = shared_address(context, builder, kinds[2], values[2:4], 8)
            words = [builder.bitcast(builder.extract_value(values[5], i), i32) for i in range(4)]
            emit(builder, text, [here, counter, values[4], *words], together=True)
            return context.get_dummy_value()

        numbers = (types.uint64, barriers, types.uint64, types.uint32)
        return types.void(told, *numbers, mine), generate

    function: Function = send
    return function


@lru_cache(maxsize=1)
def _wait() -> Function:
    from numba import types
    from numba.extending import intrinsic

    text = (
        "{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
        "@done bra READY; bra AGAIN; READY: }"
    )

    @intrinsic  # type: ignore[untyped-decorator]
    def wait(typing_context: Any, barriers: Any, place: Any, parity: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            barrier = shared_address(context, builder, signature.args[0], values[:2], 8)
            emit(builder, text, [barrier, values[2]], together=True)
            return context.get_dummy_value()

        return types.void(barriers, types.uint64, types.uint32), generate

    function: Function = wait
    return function
