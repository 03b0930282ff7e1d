"""Asynchronous copies into shared memory for Numba kernels, as inline PTX (from 8.0).

The counterpart of ``raw_kernels/ptx/async.cuh``: Numba has no function for them.
Source: PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpulab.kernels.numba_asm import address, emit, instruction
from gpulab.kernels.numba_function import Function


@lru_cache(maxsize=8)
def copy(nbytes: int) -> Function:
    """``copy(shared array, place, array, pack number)``: a pack of 4, 8 or 16 bytes."""
    from numba import types
    from numba.extending import intrinsic

    kind = "cg" if nbytes == 16 else "ca"
    text = (
        "{ .reg .u32 to; cvt.u32.u64 to, $0; "
        f"cp.async.{kind}.shared.global [to], [$1], {nbytes}; }}"
    )

    @intrinsic  # type: ignore[untyped-decorator]
    def start(typing_context: Any, kept: Any, place: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            to = address(context, builder, signature.args[0], values[:2], nbytes, 3)
            source = address(context, builder, signature.args[2], values[2:], nbytes)
            emit(builder, text, [to, source])
            return context.get_dummy_value()

        return types.void(kept, types.uint64, array, types.uint64), generate

    function: Function = start
    return function


@lru_cache(maxsize=8)
def copies(apart: int, away: int, count: int, alike: bool) -> Function:
    """``copies(shared array, place, array, pack number, how many)``: packs of 16 bytes, and closes
    their group. No branch: what comes next need not wait until they have begun.

    Args:
        apart: places from one to the next in shared memory.
        away: packs from one to the next in the array.
        count: at most so many.
        alike: it is all of them or none.
    """
    from numba import types
    from numba.extending import intrinsic

    text = "{ .reg .pred is; .reg .u32 to, few; cvt.u32.u64 to, $0; cvt.u32.u64 few, $2; "
    for j in range(count):
        if j == 0 or not alike:
            text += f"setp.gt.u32 is, few, {j}; "
        to, source = f"[to + {16 * apart * j}]", f"[$1 + {16 * away * j}]"
        text += f"@is cp.async.cg.shared.global {to}, {source}, 16; "
    text += "cp.async.commit_group; }"

    @intrinsic  # type: ignore[untyped-decorator]
    def start(
        typing_context: Any, kept: Any, place: Any, array: Any, index: Any, several: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            to = address(context, builder, signature.args[0], values[:2], 16, 3)
            source = address(context, builder, signature.args[2], values[2:4], 16)
            emit(builder, text, [to, source, values[4]])
            return context.get_dummy_value()

        return types.void(kept, types.uint64, array, types.uint64, types.uint64), generate

    function: Function = start
    return function


@lru_cache(maxsize=1)
def commit() -> Function:
    """Closes the group of the copies that this thread started since the last."""
    return instruction("cp.async.commit_group;")


@lru_cache(maxsize=32)
def wait(pending: int) -> Function:
    """Waits until at most ``pending`` of this thread's newest groups are unfinished."""
    return instruction(f"cp.async.wait_group {pending};")
