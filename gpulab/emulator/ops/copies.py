"""cp.async: copies whose data lands when a lane waits for them.

At issue the source is read and the destination marked as in flight; reading it before the wait is
a fault. ``commit_group`` closes a lane's group, ``wait_group N`` lands all but its N newest groups,
``wait_all`` everything.

Source: PTX ISA, section "Data Movement: Asynchronous copy, non-bulk".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.emulator import access, inflight, spaces
from gpulab.emulator.ops.memory import CACHE_WORDS, address_of, offsets
from gpulab.emulator.ops.registry import Env, Op, effect, family, literal, only, spelled, stop
from gpulab.emulator.ptx.nodes import Imm, Instr, Operand, Reg
from gpulab.emulator.values import U32, Array, Mask


@dataclass
class Copy:
    """One issued copy: who, where to, the words, and each lane's group number."""

    mask: Mask | None
    address: Array
    size: int
    words: list[Array]
    instr: Instr
    group: Array


class Copies:
    """The copies of a chunk that have not landed."""

    def __init__(self) -> None:
        self.open: list[Copy] = []
        self.groups: Array = np.zeros((1, 1), np.int64)  # groups a lane has committed

    def commit(self, mask: Mask | None) -> None:
        """Close the current group of these lanes."""
        self.groups = self.groups + (1 if mask is None else mask.astype(np.int64))
        if self.groups.size > 1 and bool((self.groups == self.groups.flat[0]).all()):
            self.groups = self.groups[:1, :1]

    def wait(self, state: Any, mask: Mask | None, newest: int | None) -> None:
        """Land the copies of these lanes, but for their ``newest`` newest committed groups.

        Args:
            state: the chunk.
            mask: who waits.
            newest: groups that may stay open; None lands everything, committed or not.
        """
        left = []
        for copy in self.open:
            ready: Mask | None = None
            if newest is not None:
                ready = copy.group < self.groups - newest
                if ready.size == 1:
                    if not ready[0, 0]:
                        left.append(copy)
                        continue
                    ready = None
            self._land(state, copy, _and(mask, ready), left)
        self.open = left

    def _land(self, state: Any, copy: Copy, mask: Mask | None, left: list[Copy]) -> None:
        who = copy.mask if mask is copy.mask else _and(copy.mask, mask)
        if who is not None and not who.any():
            left.append(copy)
            return
        if mask is not None and mask is not copy.mask:
            rest = ~mask if copy.mask is None else copy.mask & ~mask
            if state.live is not None:
                rest = rest & state.live
            if rest.any():
                left.append(Copy(rest, copy.address, copy.size, copy.words, copy.instr, copy.group))
        inflight.arrive(state.shared, who, copy.address, copy.size, state.shape)
        state.shared.store(state, copy.instr, who, copy.address, 4, copy.words, phase="land")


def _and(a: Mask | None, b: Mask | None) -> Mask | None:
    if a is None:
        return b
    return a if b is None else a & b


def copies_of(state: Any) -> Copies:
    """The chunk's copies, made when first needed."""
    if state.copies is None:
        state.copies = Copies()
    found: Copies = state.copies
    return found


@family("cp")
def _cp(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    if words[0] != "async":
        stop(instr)
    if words[1] in ("commit_group", "wait_all", "wait_group"):
        spelled(instr, rf"cp\.async\.{words[1]}")
    if words[1] == "commit_group":
        return effect(instr, lambda state, _i, mask: copies_of(state).commit(mask), (), ())
    if words[1] == "wait_all":
        return effect(
            instr, lambda state, _i, mask: copies_of(state).wait(state, mask, None), (), ()
        )
    if words[1] == "wait_group":
        count = literal(instr)
        return effect(
            instr, lambda state, _i, mask: copies_of(state).wait(state, mask, count), (), ()
        )
    if words[1] == "mbarrier":
        from gpulab.emulator.ops import mbarrier

        return mbarrier.after_copies(instr, env)
    if words[1] == "bulk":
        from gpulab.emulator.ops import boxes

        return boxes.bulk(instr, env)
    if words[1] not in ("ca", "cg"):
        stop(instr)
    return _issue(instr, env)


def _issue(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    only(instr, words, "async", "ca", "cg", "shared", "shared::cta", "global", *CACHE_WORDS)
    target, target_kind, target_offset = address_of(instr, instr.operands[0], env)
    source, source_kind, source_offset = address_of(instr, instr.operands[1], env)
    length = instr.operands[2]
    if not isinstance(length, Imm) or length.bits not in ((16,) if "cg" in words else (4, 8, 16)):
        stop(instr, "size")
    size = length.bits
    further = list(instr.operands[3:])
    if "L2::cache_hint" in words:
        further.pop()
    reads: list[str] = [target_kind, source_kind]
    sources: list[Operand] = [target, source]
    ignored = False
    if further:
        extra = further[0]
        ignored = isinstance(extra, Reg) and env.kernel.registers[extra.name] == "pred"
        reads.append("p" if ignored else "u32")
        sources.append(extra)

    def function(
        state: Any, _instr: Instr, mask: Mask | None, to: Array, start: Array, *amount: Array
    ) -> None:
        place = offsets(to, target_offset, 0)
        origin = offsets(start, source_offset, spaces.GLOBAL_BASE)
        place = state.shared.place(state, instr, mask, place, size, True)
        count = None
        if amount:
            count = np.where(amount[0], 0, size) if ignored else amount[0].astype(np.int64)
        words_read = _read(state, instr, mask, origin, size, count)
        if state.observers:
            state.report("shared", "store", place, size, mask, instr, phase="issue")
        inflight.depart(state.shared, mask, place, size, state.shape)
        copies = copies_of(state)
        copies.open.append(Copy(mask, place, size, words_read, instr, copies.groups))

    return Op(function, tuple(reads), (), tuple(sources), (), context=True)


def _read(
    state: Any, instr: Instr, mask: Mask | None, origin: Array, size: int, count: Array | None
) -> list[Array]:
    """The words to land: ``count`` bytes from global memory (all where None), then zeros."""
    if count is None:
        return access.load(state, instr, mask, origin, 4, size // 4)
    asked = count
    if mask is not None:
        shape = np.broadcast_shapes(mask.shape, count.shape)
        asked = np.broadcast_to(count, shape)[np.broadcast_to(mask, shape)]
    amounts = np.unique(asked)
    out: list[Array] = [np.zeros((1, 1), U32)] * (size // 4)
    for amount in (int(x) for x in amounts):
        if amount == 0:
            continue
        here: Mask | None = count == amount
        assert here is not None
        if here.all():
            here = None
        who = _and(here, mask)
        whole = min(amount, size)
        if whole == size:
            part = access.load(state, instr, who, origin, 4, size // 4)
        else:
            octets = [
                access.load(state, instr, who, origin + i, 1, 1)[0].astype(U32)
                for i in range(whole)
            ]
            part = [np.zeros((1, 1), U32)] * (size // 4)
            for i, octet in enumerate(octets):
                part[i // 4] = part[i // 4] | (octet << U32.type(8 * (i % 4)))
        if here is None:
            return part
        out = [np.where(here, new, old) for new, old in zip(part, out, strict=True)]
    return out
