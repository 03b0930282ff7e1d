"""Block barriers: bar.sync, bar.arrive, bar.red, with ids and thread counts.

The rule is CUDA's: in conditional code a barrier must be reached by all threads of the block or by
none. A thread that exits, or waits at another barrier instruction of its own warp, while threads
of its block wait for it, is a divergent barrier.

Source: PTX ISA, "bar, barrier"; CUDA C++ Programming Guide, "Synchronization Functions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gpulab.emulator.faults import fault, place_of
from gpulab.emulator.flow import Segment, destinations
from gpulab.emulator.meetings import packed
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.state import State
from gpulab.emulator.values import Array, Mask, merge

if TYPE_CHECKING:
    from gpulab.emulator.executor import Executor


CLUSTER = -1
"""The id under which lanes wait in ``barrier.cluster.wait``."""


@dataclass
class Parked:
    """Lanes at one barrier instruction."""

    segment: Segment
    instr: Instr
    mask: Mask
    ident: int
    count: int | None
    value: Array | None = None


class Barriers:
    """The barriers of a chunk."""

    def __init__(self, state: State, executor: Executor) -> None:
        self.state = state
        self.executor = executor
        self.parked: list[Parked] = []
        self.arrived: dict[int, Array] = {}  # bar.arrive: threads counted, by (id) -> (B,)
        self.gone: Mask | None = None
        self.cluster_arrivals: Array = np.zeros((1, 1), np.int64)

    def arrive(
        self, segment: Segment, instr: Instr, mask: Mask | None, value: Any
    ) -> tuple[int | None, Mask | None]:
        """Lanes reach a barrier; where they go next if that is already known."""
        state, executor = self.state, self.executor
        guard, *operands = value
        if guard is not None:
            lanes = guard if mask is None else guard & mask
            rest = ~guard if mask is None else ~guard & mask
            if not lanes.any():
                return executor._go([(segment.index + 1, mask)])
            if rest.any():
                executor.add(segment.index + 1, rest)
                mask = lanes
        words = instr.modifiers
        if state.observers:
            state.note(instr, mask)
        if words[0] == "cluster":
            return self._cluster(segment, instr, mask)
        red = operands.pop() if "red" in words else None
        idents = self._idents(instr, operands[0], mask) if operands else {0: mask}
        count = self._count(instr, operands[1], mask) if len(operands) > 1 else None
        if count is not None and count == state.shape[0] and "arrive" not in words:
            count = None
        simple = count is None and "arrive" not in words
        if simple and executor.everyone and self.gone is None:
            if red is not None:
                self._reduce(instr, [(None, red)], None)
            self._tell(instr, None, None)
            return segment.index + 1, mask
        for ident, mask in idents.items():
            full = np.broadcast_to(True if mask is None else mask, state.shape).copy()
            if "arrive" in words:
                if count is None:
                    self._refuse(instr, "bar.arrive needs a thread count")
                self.arrived[ident] = self.arrived.get(ident, 0) + full.sum(axis=0)
                for observer in state.observers:
                    observer.arrive(ident, state.lanes(mask))
                executor.add(segment.index + 1, mask)
            else:
                self.parked.append(Parked(segment, instr, full, ident, count, red))
        self.release()
        return None, None

    def _cluster(
        self, segment: Segment, instr: Instr, mask: Mask | None
    ) -> tuple[int | None, Mask | None]:
        """barrier.cluster: arrive goes on, wait parks until the whole cluster has arrived."""
        executor, state = self.executor, self.state
        arrives = "arrive" in instr.modifiers
        if executor.everyone:
            # Every live lane of every cluster is here: all have arrived as often as any other.
            if not arrives:
                self._tell(instr, None, None)
            return segment.index + 1, mask
        full = np.broadcast_to(True if mask is None else mask, state.shape).copy()
        if arrives:
            self.cluster_arrivals = self.cluster_arrivals + full
            executor.add(segment.index + 1, mask)
        else:
            self.parked.append(Parked(segment, instr, full, CLUSTER, None))
        self.release()
        return None, None

    def _release_clusters(self, here: list[Parked]) -> None:
        state = self.state
        live = np.broadcast_to(True if state.live is None else state.live, state.shape)
        shape = (state.shape[0], -1, state.cluster)
        counts = np.broadcast_to(self.cluster_arrivals, state.shape)
        most = np.iinfo(np.int64).max
        least = np.where(live, counts, most).reshape(shape).min(axis=(0, 2))
        least = np.repeat(least, state.cluster)[None, :]
        for each in here:
            go = each.mask & (counts <= least)
            if go.any():
                self._tell(each.instr, np.any(go, axis=0), None)
                self.executor.add(each.segment.index + 1, go)
                each.mask = each.mask & ~go
        self.parked = [p for p in self.parked if p.mask.any()]

    def _refuse(self, instr: Instr, why: str) -> NoReturn:
        raise fault("barrier_divergence", why, instr)

    def _idents(self, instr: Instr, operand: Array, mask: Mask | None) -> dict[int, Mask | None]:
        """The lanes of each barrier that the warps name."""
        if operand.size == 1:
            return {int(operand.flat[0]): mask}
        here = np.broadcast_to(True if mask is None else mask, self.state.shape)
        full = np.broadcast_to(operand, self.state.shape)
        found = [int(ident) for ident in np.unique(full[here])]
        if len(found) == 1:
            return {found[0]: mask}
        parts: dict[int, Mask | None] = {ident: here & (full == ident) for ident in found}
        warps = sum(packed(p, p.shape[0]) != 0 for p in parts.values() if p is not None)
        if np.any(np.asarray(warps) > 1):
            self._refuse(instr, "the lanes of a warp name different barriers")
        return parts

    def _count(self, instr: Instr, operand: Array, mask: Mask | None) -> int:
        here = np.broadcast_to(True if mask is None else mask, self.state.shape)
        found = np.unique(np.broadcast_to(operand, self.state.shape)[here])
        if len(found) > 1:
            self._refuse(instr, "the thread count of a barrier must be the same for all threads")
        return int(found[0])

    def exited(self, gone: Mask | None) -> None:
        """Lanes exit; a block in which only some threads have is remembered."""
        if gone is None or (self.executor.everyone and self.gone is None and not self.parked):
            # Everybody who is left goes: nobody can be waiting for them.
            live = self.state.live
            now = gone if live is None or gone is None else gone & live
            if gone is None or now is None or self._covers(now, live):
                return
        whole = np.broadcast_to(True if gone is None else gone, self.state.shape)
        self.gone = whole.copy() if self.gone is None else self.gone | whole

    def _covers(self, gone: Mask, live: Mask | None) -> bool:
        everybody = np.broadcast_to(True if live is None else live, self.state.shape)
        return not bool((everybody & ~np.broadcast_to(gone, self.state.shape)).any())

    def release(self) -> None:
        """Let every block go on whose barrier is complete."""
        if not self.parked:
            return
        state = self.state
        for ident in sorted({p.ident for p in self.parked}):
            here = [p for p in self.parked if p.ident == ident]
            if ident == CLUSTER:
                self._release_clusters(here)
                continue
            waiting = np.zeros(state.shape, bool)
            for each in here:
                waiting |= each.mask
            counts = {p.count for p in here}
            if len(counts) > 1:
                self._refuse(here[1].instr, "threads wait at one barrier with different counts")
            (count,) = counts
            if count is None and ident in self.arrived:
                count = state.launch.threads  # met by threads that do not wait (bar.arrive)
            if count is None:
                live = np.broadcast_to(True if state.live is None else state.live, state.shape)
                done: Array = np.any(waiting, axis=0) & ~np.any(live & ~waiting, axis=0)
            else:
                enough: Array = waiting.sum(axis=0) + self.arrived.get(ident, 0) >= count
                done = enough & np.any(waiting, axis=0)
            if not done.any():
                continue
            if count is None:
                self._same_place(here, waiting, done)
            elif ident in self.arrived:
                self.arrived[ident] = np.where(done, 0, self.arrived[ident])
                for observer in state.observers:
                    who = state.lanes(waiting & done[None, :])
                    observer.arrived(ident, state.blocks[done], who)
            self._go_on(here, done, count)

    def _same_place(self, here: list[Parked], waiting: Mask, done: Array) -> None:
        """In a completed block barrier nobody may be missing or elsewhere in its warp.

        Raises:
            FaultError: barrier divergence.
        """
        state = self.state
        if self.gone is not None:
            missing = self.gone & done[None, :]
            if missing.any():
                column = int(missing.any(axis=0).argmax())
                here = [p for p in here if p.mask[:, column].any()]
                self._diverged(here[0], column, missing[:, column], "exited without reaching it")
        places = {p.segment.index: p for p in here}  # lanes may come to one at different times
        for index, each in places.items() if len(places) > 1 else ():
            mine = np.zeros(state.shape, bool)
            for one in here:
                if one.segment.index == index:
                    mine |= one.mask
            warps = mine.reshape(-1, 32, state.shape[1])
            others = (waiting & ~mine).reshape(warps.shape)
            split = (warps.any(axis=1) & others.any(axis=1)).any(axis=0) & done
            if split.any():
                column = int(split.argmax())
                elsewhere = (waiting & ~mine)[:, column]
                self._diverged(each, column, elsewhere, "wait at another barrier")

    def _diverged(self, at: Parked, column: int, missing: Array, what: str) -> NoReturn:
        state = self.state
        thread = int(at.mask[:, column].argmax())
        other = int(missing.argmax())
        raise fault(
            "barrier_divergence",
            f"divergent barrier: {int(at.mask[:, column].sum())} threads of the block wait at "
            f"{at.instr.opcode}, {int(missing.sum())} {what} (such as thread "
            f"{state.thread_xyz(other)}); waiting",
            at.instr,
            thread=state.thread_xyz(thread),
            block=state.block_xyz(column),
            missing_thread=list(state.thread_xyz(other)),
        )

    def _go_on(self, here: list[Parked], done: Array, count: int | None) -> None:
        state = self.state
        blocks = done[None, :]
        if here[0].value is not None:
            self._reduce(here[0].instr, [(p.mask & blocks, p.value) for p in here], done)
        taken = np.zeros(state.shape, bool)
        for each in here:
            go = each.mask & blocks
            if go.any():
                taken |= go
                self.executor.add(each.segment.index + 1, go)
                each.mask = each.mask & ~blocks
        self._tell(here[0].instr, done, taken if count is not None else None)
        self.parked = [p for p in self.parked if p.mask.any()]

    def _tell(self, instr: Instr, done: Array | None, members: Mask | None) -> None:
        state = self.state
        if state.observers:
            blocks = state.blocks if done is None else state.blocks[done]
            who = None if members is None else state.lanes(members)
            for observer in state.observers:
                observer.barrier(blocks, place_of(instr.location), who)

    def _reduce(self, instr: Instr, parts: list[tuple[Mask | None, Any]], done: Any) -> None:
        """bar.red: combine the predicates of the block and write every lane's result."""
        state, executor = self.state, self.executor
        live = np.broadcast_to(True if state.live is None else state.live, state.shape)
        true: Array = np.zeros(state.shape, bool)
        all_of: Array = np.zeros(state.shape, bool)
        for mask, value in parts:
            who = live if mask is None else mask
            true |= who & value
            all_of |= who
        form = next(w for w in instr.modifiers if w in ("popc", "and", "or"))
        result: Array
        if form == "popc":
            result = true.sum(axis=0, dtype=np.uint32)[None, :]
        elif form == "or":
            result = np.any(true, axis=0)[None, :]
        else:
            result = ~np.any(all_of & ~true, axis=0)[None, :]
        (target,) = destinations(instr)
        number = executor.compiler.numbers[target.name]
        old = executor.registers[number]
        executor.registers[number] = result if done is None else merge(all_of, result, old)

    def deadlock(self) -> NoReturn:
        """Nobody can run and a barrier is incomplete.

        Raises:
            FaultError: barrier divergence.
        """
        state = self.state
        at = self.parked[0]
        column = int(at.mask.any(axis=0).argmax())
        live = np.broadcast_to(True if state.live is None else state.live, state.shape)
        missing = live[:, column] & ~at.mask[:, column]
        if not missing.any():
            missing = ~at.mask[:, column]
        self._diverged(at, column, missing, "do not come")
