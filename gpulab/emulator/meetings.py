"""Warp instructions: which lanes have all their partners, and the fault when partners never come.

``shfl.sync`` and its like make a lane wait for the lanes that its member mask names (those that
have not exited). Usually they are all there and nothing here runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulab.emulator.faults import fault
from gpulab.emulator.flow import Segment, member_operand
from gpulab.emulator.products import WARPGROUP
from gpulab.emulator.ptx.nodes import Imm, Reg
from gpulab.emulator.values import Array, Mask, as_u32

if TYPE_CHECKING:
    from gpulab.emulator.executor import Executor

_WEIGHTS = (np.uint32(1) << np.arange(32, dtype=np.uint32))[None, :, None]


def packed(mask: Mask, threads: int) -> Array:
    """A mask as one uint32 a warp, (W, 1, B or 1)."""
    rows = np.broadcast_to(mask, (threads, mask.shape[1]))
    bits = rows.reshape(-1, 32, mask.shape[1])
    joined: Array = np.where(bits, _WEIGHTS, np.uint32(0)).sum(axis=1, dtype=np.uint32)[:, None]
    return joined


def spread(words: Array) -> Array:
    """(W, 1, B) or (W, 32, B) values of warps as rows of threads."""
    whole = np.broadcast_to(words, (words.shape[0], 32, words.shape[2]))
    return np.ascontiguousarray(whole).reshape(-1, words.shape[2])


def members_of(executor: Executor, segment: Segment) -> Array:
    """The member masks that the lanes give, uint32 broadcastable to (T, B)."""
    operand = member_operand(segment.instrs[0])
    if isinstance(operand, Imm):
        return np.full((1, 1), operand.bits & 0xFFFFFFFF, np.uint32)
    assert isinstance(operand, Reg)
    value: Array = executor.registers[executor.compiler.numbers[operand.name]]
    return as_u32(value)


def ready(executor: Executor, segment: Segment, mask: Mask | None) -> Mask | None:
    """Lanes of ``mask`` whose members are all here or gone; None = all of them."""
    if mask is None:
        return None
    state = executor.state
    threads = state.shape[0]
    here = spread(packed(mask, threads))
    members = members_of(executor, segment)
    if state.live is not None:
        members = members & spread(packed(state.live, threads))
    fine: Mask = (members & ~here) == 0
    if segment.instrs[0].base == "wgmma":
        fine = _of_groups(fine)
    return None if bool((fine | ~mask).all()) else fine


def _of_groups(fine: Mask) -> Mask:
    """Lanes whose whole warpgroup is fine, (T, B or 1); a group that is cut off has fewer warps."""
    starts = np.arange(0, fine.shape[0], WARPGROUP)
    whole = np.logical_and.reduceat(fine, starts, axis=0)
    return np.repeat(whole, WARPGROUP, axis=0)[: fine.shape[0]]


def deadlock(executor: Executor) -> None:
    """Lanes wait in a warp instruction for partners that wait elsewhere.

    Raises:
        FaultError: always.
    """
    state = executor.state
    number = min(executor.waiting)
    mask = executor.waiting[number]
    segment = executor.segments[number]
    instr = segment.instrs[0]
    t, b = state.first(mask)
    members = int(np.broadcast_to(members_of(executor, segment), state.shape)[t, b])
    arrived = int(
        np.broadcast_to(packed(mask, state.shape[0]), (state.shape[0] // 32, 1, state.shape[1]))[
            t // 32, 0, b
        ]
    )
    missing = [i for i in range(32) if members >> i & 1 and not arrived >> i & 1]
    raise fault(
        "warp_divergence",
        f"{instr.opcode} waits for lanes {missing} of its warp, which never come "
        f"(member mask {members:#010x})",
        instr,
        thread=state.thread_xyz(t),
        block=state.block_xyz(b),
        missing_lanes=missing,
    )
