"""Warp instructions: shfl, vote, match, redux, elect, activemask, bar.warp.sync.

The executor has made sure that the lanes which the member mask names are here (or have exited).

Source: PTX ISA, sections "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.emulator.faults import fault, place_of
from gpulab.emulator.meetings import packed, spread
from gpulab.emulator.ops.registry import (
    Env,
    Op,
    effect,
    family,
    only,
    result_registers,
    spelled,
    stop,
)
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import DTYPE, U32, Array, Mask


def tell(state: Any, instr: Instr, mask: Mask | None, members: Array) -> None:
    """Report a meeting to observers.

    Raises:
        FaultError: a lane that its own member mask does not name; what that does is undefined.
    """
    if members.size > 1 or int(members.flat[0]) != 0xFFFFFFFF:
        _named(state, instr, mask, members)
    if state.observers:
        lanes, place = state.lanes(mask), place_of(instr.location)
        seen = state.trimmed(members)
        for observer in state.observers:
            observer.warp_sync(lanes, seen, instr.opcode, place)


def _named(state: Any, instr: Instr, mask: Mask | None, members: Array) -> None:
    own = np.uint32(1) << _lane(state).view(np.uint32)
    foreign = (members & own) == 0
    if mask is not None:
        foreign = foreign & mask
    elif state.live is not None:
        foreign = foreign & state.live
    if foreign.any():
        t, b = state.first(foreign)
        mine = int(np.broadcast_to(members, state.shape)[t, b])
        raise fault(
            "warp_divergence",
            f"{instr.opcode} by a lane that its member mask {mine:#010x} does not name",
            instr,
            thread=state.thread_xyz(t),
            block=state.block_xyz(b),
            lane=t % 32,
        )


def active(state: Any, mask: Mask | None) -> Array:
    """uint32 of the active lanes of each warp, (W, 1, B or 1)."""
    if mask is None:
        return np.full((state.shape[0] // 32, 1, 1), 0xFFFFFFFF, np.uint32)
    return packed(mask, state.shape[0])


def _lane(state: Any) -> Array:
    return (np.arange(state.shape[0], dtype=np.int32) & 31)[:, None]


@family("shfl")
def _shfl(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    if words[0] != "sync" or words[1] not in ("up", "down", "bfly", "idx") or len(words) != 3:
        stop(instr)
    mode = words[1]
    results = result_registers(instr, instr.operands[0])

    def function(
        state: Any, _instr: Instr, mask: Mask | None, a: Array, b: Array, c: Array, members: Array
    ) -> Any:
        tell(state, instr, mask, members)
        lane = _lane(state)
        by = (b & np.uint32(31)).view(np.int32)
        clamp = (c & np.uint32(31)).view(np.int32)
        segment = ((c >> np.uint32(8)) & np.uint32(31)).view(np.int32)
        low = lane & segment
        high = low | (clamp & ~segment)
        if mode == "up":
            source = lane - by
            valid = source >= high
        elif mode == "down":
            source = lane + by
            valid = source <= high
        elif mode == "bfly":
            source = lane ^ by
            valid = source <= high
        else:
            source = low | (by & ~segment)
            valid = source <= high
        source = np.where(valid, source, lane)
        value = _gather(state, a, source)
        return value if len(results) == 1 else (value, valid)

    return Op(
        function,
        ("u32", "u32", "u32", "u32"),
        ("u32", "p")[: len(results)],
        instr.operands[1:],
        results,
        context=True,
    )


def _gather(state: Any, a: Array, source: Array) -> Array:
    """``a`` of lane ``source`` of the own warp."""
    if a.shape[0] == 1:
        return a
    rows = np.arange(state.shape[0], dtype=np.int32)[:, None]
    row = (rows & ~np.int32(31)) | source
    if row.shape[1] == 1:
        return a.take(row[:, 0], axis=0)
    if a.shape[1] == 1:
        return a[:, 0].take(row)
    return np.take_along_axis(a, row.astype(np.int64), axis=0)


@family("vote")
def _vote(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    if words[0] != "sync":
        stop(instr)
    form = words[1]
    only(instr, words, "sync", "all", "any", "uni", "ballot", "pred", "b32")

    def function(state: Any, _instr: Instr, mask: Mask | None, p: Array, members: Array) -> Array:
        tell(state, instr, mask, members)
        here = spread(active(state, mask)) & members
        yes = spread(packed(np.broadcast_to(p, (state.shape[0], p.shape[1])), state.shape[0]))
        yes = yes & here
        if form == "ballot":
            return yes
        verdict: Array
        if form == "any":
            verdict = yes != 0
        elif form == "all":
            verdict = yes == here
        else:
            verdict = (yes == here) | (yes == 0)
        return verdict

    (result,) = result_registers(instr, instr.operands[0])
    writes = "u32" if form == "ballot" else "p"
    return Op(function, ("p", "u32"), (writes,), instr.operands[1:], (result,), context=True)


@family("activemask")
def _activemask(instr: Instr, env: Env) -> Op:
    spelled(instr, r"activemask\.b32")
    (result,) = result_registers(instr, instr.operands[0])

    def function(state: Any, _instr: Instr, mask: Mask | None) -> Array:
        return spread(active(state, mask))

    return Op(function, (), ("u32",), (), (result,), context=True)


@family("match")
def _match(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    only(instr, words, "any", "all", "sync", "b32", "b64")
    results = result_registers(instr, instr.operands[0])
    kind = "u64" if words[-1] == "b64" else "u32"

    def function(state: Any, _instr: Instr, mask: Mask | None, a: Array, members: Array) -> Any:
        tell(state, instr, mask, members)
        here = spread(active(state, mask)) & members
        full = np.broadcast_to(a, (state.shape[0], a.shape[1])).reshape(-1, 32, a.shape[1])
        same = np.zeros((full.shape[0], 32, full.shape[2]), np.uint32)
        for j in range(32):
            same |= np.where(full == full[:, j : j + 1], np.uint32(1 << j), np.uint32(0))
        equal = same.reshape(state.shape[0], -1) & here
        if words[0] == "any":
            return equal
        everyone = equal == here
        # The verdict is the same for all members; a lane outside has none to give.
        value = np.where(everyone, here, np.uint32(0))
        return value if len(results) == 1 else (value, everyone)

    return Op(
        function,
        (kind, "u32"),
        ("u32", "p")[: len(results)],
        instr.operands[1:],
        results,
        context=True,
    )


_REDUCE: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@family("redux")
def _redux(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    if len(words) != 3 or words[0] != "sync" or words[2] not in ("u32", "s32", "b32"):
        stop(instr)
    ufunc = _REDUCE[words[1]]
    kind = words[2].replace("b", "u")
    dtype = DTYPE[kind]
    info: Any = np.iinfo(dtype)
    neutral = {"add": 0, "or": 0, "xor": 0, "and": -1, "min": info.max, "max": info.min}[words[1]]
    empty = dtype.type(neutral if neutral != -1 or kind == "s32" else info.max)

    def function(state: Any, _instr: Instr, mask: Mask | None, a: Array, members: Array) -> Array:
        tell(state, instr, mask, members)
        here = spread(active(state, mask)) & members
        columns = max(a.shape[1], here.shape[1])
        shape = (state.shape[0], columns)
        value = np.broadcast_to(a, shape).reshape(-1, 32, columns)
        who = np.broadcast_to(here, shape).reshape(-1, 32, columns)
        first = who[:, :1]
        if not bool((who == first).all()):  # members differ inside a warp: lane by lane
            return _redux_by_lane(value, who, ufunc, empty)
        lanes = (first >> np.arange(32, dtype=np.uint32)[None, :, None]) & np.uint32(1)
        picked = np.where(lanes == 1, value, empty)
        out = ufunc.reduce(picked, axis=1, dtype=dtype)[:, None]
        return spread(out)

    (result,) = result_registers(instr, instr.operands[0])
    return Op(function, (kind, "u32"), (kind,), instr.operands[1:], (result,), context=True)


def _redux_by_lane(value: Array, who: Array, ufunc: Any, empty: Any) -> Array:
    out = np.full(value.shape, empty, value.dtype)
    for j in range(32):
        inside = (who >> np.uint32(j)) & np.uint32(1) == 1
        out = np.where(inside, ufunc(out, value[:, j : j + 1]), out)
    return out.reshape(-1, value.shape[2])


@family("elect")
def _elect(instr: Instr, env: Env) -> Op:
    results = result_registers(instr, instr.operands[0])

    def function(state: Any, _instr: Instr, mask: Mask | None, members: Array) -> Any:
        tell(state, instr, mask, members)
        here = spread(active(state, mask)) & members
        lowest = here & (~here + np.uint32(1))
        leader = np.bitwise_count(lowest - np.uint32(1)).astype(U32)
        return leader, leader.view(np.int32) == _lane(state)

    return Op(function, ("u32",), ("u32", "p"), instr.operands[1:], results, context=True)


@family("bar", "barrier")
def _warp_barrier(instr: Instr, env: Env) -> Op:
    spelled(instr, r"bar\.warp\.sync")

    def function(state: Any, _instr: Instr, mask: Mask | None, members: Array) -> None:
        tell(state, instr, mask, members)

    return effect(instr, function, ("u32",), instr.operands)
