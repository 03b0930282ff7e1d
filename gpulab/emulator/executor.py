"""In which order lanes run: lowest segment first, barriers, warp meetings, the budget.

All lanes of a chunk start together. A group is (segment, mask); groups that reach the same segment
join. The lowest pending segment runs first, so that lanes which parted at a branch meet again at
the next common instruction. A group that keeps looping while others wait yields to them from time
to time (independent thread scheduling), so that spin-waits on another lane make progress. One that
waits for an mbarrier in vain is passed over until an mbarrier changes, or nobody else can run.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from gpulab.emulator import meetings
from gpulab.emulator.barriers import Barriers
from gpulab.emulator.codegen import Compiler
from gpulab.emulator.faults import place_of
from gpulab.emulator.flow import Flow, Segment
from gpulab.emulator.state import State
from gpulab.emulator.values import Array, Mask
from gpulab.errors import KernelTimeoutError

PATIENCE = 256
"""Segments a group may run, others waiting, before the next group gets a turn."""


def both(a: Mask | None, b: Mask | None) -> Mask | None:
    """Intersection; None is everything."""
    if a is None:
        return b
    return a if b is None else a & b


class Executor:
    """Runs one chunk of blocks.

    Args:
        state: the chunk.
        flow: segments of the kernel.
        compiler: their compiled forms.
        budget: instructions the chunk may execute (one for a group of lanes counts as one).
    """

    def __init__(self, state: State, flow: Flow, compiler: Compiler, budget: int) -> None:
        self.state = state
        self.segments = flow.segments
        self.compiler = compiler
        self.budget = budget
        self.registers = compiler.initial_registers(state.unset)
        self.pending: dict[int, Mask | None] = {}
        self.waiting: dict[int, Mask] = {}
        self.barriers = Barriers(state, self)
        self.streak = 0
        self.idle: set[int] = set()
        self.heard = 0

    @property
    def everyone(self) -> bool:
        """Whether the running group holds every live lane (nobody is pending or parked)."""
        return not (self.pending or self.waiting or self.barriers.parked)

    def run(self) -> None:
        """Run every lane to its end.

        Raises:
            FaultError: a lane did something illegal.
            KernelTimeoutError: the budget is used up.
        """
        state = self.state
        observed = bool(state.observers)
        current: int | None = 0
        mask: Mask | None = state.live
        while True:
            if current is None:
                if not self.pending:
                    if not self._unblock():
                        return
                    continue
                current = self._choose()
                mask = self.pending.pop(current)
                if current in self.waiting:
                    mask = self._join(mask, self.waiting.pop(current))
                if self.everyone:
                    mask = state.live
            segment = self.segments[current]
            if segment.meets and not self.everyone:
                mask = self._meet(segment, mask)
                if mask is False:
                    current = None
                    continue
            state.steps += segment.cost
            if state.steps > self.budget:
                self._out_of_budget(segment)
            plain = self.everyone
            function = self.compiler.function(segment, not plain, observed)
            value = function(state, self.registers, mask)
            if state.waits:
                state.waits = False
                self.idle.add(current)
            if segment.end == "next" and plain:
                current += 1
                continue
            current, mask = self._leave(segment, mask, value)

    def _choose(self) -> int:
        ready: Collection[int] = self.pending
        if self.idle:
            if self.heard != self.state.signals:
                self.heard = self.state.signals
                self.idle.clear()
            ready = self.pending.keys() - self.idle or self.pending
        lowest = min(ready)
        if len(ready) == 1:
            self.streak = 0
            return lowest
        self.streak += 1
        if self.streak % PATIENCE:
            return lowest
        return sorted(ready)[self.streak // PATIENCE % len(ready)]

    def _join(self, a: Mask | None, b: Mask | None) -> Mask | None:
        return None if a is None or b is None else a | b

    def add(self, segment: int, mask: Mask | None) -> None:
        """Lanes ``mask`` are to run ``segment`` next."""
        if segment in self.pending:
            mask = self._join(self.pending[segment], mask)
        self.pending[segment] = mask

    # -- ends of segments ---------------------------------------------------------------------

    def _leave(
        self, segment: Segment, mask: Mask | None, value: Any
    ) -> tuple[int | None, Mask | None]:
        """Send the lanes on; the next group if it is already known, else (None, None)."""
        end, last = segment.end, segment.last
        if last is not None and self.state.observers and end != "barrier":
            lanes = mask
            if last.guard is not None and end != "branch":
                lanes = both(mask, value[0])
            if lanes is None or lanes.any():
                self.state.note(last, lanes)
        if end == "next":
            return self._go([(segment.index + 1, mask)])
        if end == "exit":
            return self._exit(segment, mask, None if value is None else value[0])
        if end == "branch":
            return self._branch(segment, mask, value[0])
        if end == "table":
            return self._table(segment, mask, value[1])
        assert last is not None
        return self.barriers.arrive(segment, last, mask, value)

    def _go(self, groups: list[tuple[int, Mask | None]]) -> tuple[int | None, Mask | None]:
        if len(groups) == 1 and self.everyone:
            return groups[0]
        for number, mask in groups:
            self.add(number, mask)
        return None, None

    def _branch(
        self, segment: Segment, mask: Mask | None, taken: Array | None
    ) -> tuple[int | None, Mask | None]:
        target = segment.targets[0]
        if taken is None:
            return self._go([(target, mask)])
        if self.state.observers and segment.last is not None:
            lanes, place = self.state.lanes(mask), place_of(segment.last.location)
            for observer in self.state.observers:
                observer.branch(lanes, self.state.trimmed(taken), place)
        jump = taken if mask is None else taken & mask
        if not jump.any():
            return self._go([(segment.index + 1, mask)])
        stay = ~taken if mask is None else ~taken & mask
        if not stay.any():
            return self._go([(target, mask)])
        return self._go([(target, jump), (segment.index + 1, stay)])

    def _table(
        self, segment: Segment, mask: Mask | None, index: Array
    ) -> tuple[int | None, Mask | None]:
        groups: dict[int, Mask] = {}
        for i, target in enumerate(segment.targets):
            here = index == i
            if mask is not None:
                here = here & mask
            if here.any():
                groups[target] = groups[target] | here if target in groups else here
        if len(groups) == 1:
            return self._go([(next(iter(groups)), mask)])
        return self._go(list(groups.items()))

    def _exit(
        self, segment: Segment, mask: Mask | None, guard: Array | None
    ) -> tuple[int | None, Mask | None]:
        gone = both(mask, guard)
        if gone is not None and not gone.any():
            return self._go([(segment.index + 1, mask)])
        stay = None
        if guard is not None:
            stay = ~guard if mask is None else ~guard & mask
            if not stay.any():
                stay = None
        self.barriers.exited(gone)
        live = self.state.live
        if gone is None or (stay is None and self.everyone):
            self.state.live = np.zeros((1, 1), bool)
        else:
            self.state.live = ~gone if live is None else live & ~gone
        self.barriers.release()
        if stay is not None:
            if self.everyone:
                return segment.index + 1, self.state.live
            self.add(segment.index + 1, stay)
        return None, None

    # -- meeting in the warp ------------------------------------------------------------------

    def _meet(self, segment: Segment, mask: Mask | None) -> Any:
        """The lanes whose warp members are here; the others wait. False if nobody may go on."""
        ready = meetings.ready(self, segment, mask)
        if ready is None:
            return mask
        late = ~ready if mask is None else ~ready & mask
        self.waiting[segment.index] = late
        go = ready if mask is None else ready & mask
        return go if go.any() else False

    def _unblock(self) -> bool:
        """Nobody can run: let those go whose missing partners have exited, or find the fault.

        Returns:
            False when every lane has exited.

        Raises:
            FaultError: a deadlock in a barrier or a warp instruction.
        """
        for number in sorted(self.waiting):
            mask = self.waiting.pop(number)
            go = self._meet(self.segments[number], mask)
            if go is not False:
                self.pending[number] = go
                # They may run at once: what was missing is gone.
                return True
        self.barriers.release()
        if self.pending:
            return True
        if self.barriers.parked:
            self.barriers.deadlock()
        if self.waiting:
            meetings.deadlock(self)
        return False

    def _out_of_budget(self, segment: Segment) -> None:
        instr = segment.instrs[0] if segment.instrs else segment.last
        place = place_of(instr.location) if instr is not None else None
        where = f" at {place[0]}:{place[1]}" if place else ""
        raise KernelTimeoutError(
            f"{self.state.launch.kernel.name} executed {self.budget} instructions in one chunk of "
            f"{self.state.shape[1]} blocks without finishing; it was last seen{where}",
            fix="look for a loop that never ends (a spin-wait on a value nobody writes?)",
            file=place[0] if place else None,
            line=place[1] if place else None,
            budget=self.budget,
            instruction=instr.text if instr is not None else None,
        )
