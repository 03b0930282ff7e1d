"""Loops that wait for others: innermost ones with a strong load of global memory, or an mbarrier.

``Segment.spins``: its branch goes back to the head of one with such a load. Lanes that take it have
waited in vain. (A wait for an mbarrier says so itself.)

``Segment.looks``: it belongs to one that cannot end by itself: the loop has no effect, reads no
clock, and carries no register from turn to turn. While only such segments run, no turn finds
anything else than the turn before, once the copies that an mbarrier counts have landed.
"""

from __future__ import annotations

from gpulab.emulator.flow import Flow, Segment, after, destinations
from gpulab.emulator.ops.memory import space_of
from gpulab.emulator.ptx.nodes import Instr, Special
from gpulab.emulator.special import CLOCKS

_STRONG = {"volatile", "relaxed", "acquire", "mmio"}
_HARMLESS = {"bra", "brx", "nanosleep", "fence", "membar"}
_EFFECTS = {"atom", "mbarrier", "builtin", "call"}


def mark(flow: Flow) -> None:
    """Find the loops of a kernel and mark their segments."""
    segments = flow.segments
    if not any(_looks(i) or _waits(i) for s in segments for i in s.instrs):
        return
    before: list[list[int]] = [[] for _ in segments]
    for segment in segments:
        for number in after(segment):
            before[number].append(segment.index)
    loops = [
        (head, segment, _loop(head, segment.index, before))
        for segment in segments
        if segment.end == "branch"
        for head in segment.targets
        if head <= segment.index
    ]
    for head, tail, inside in loops:
        nested = [h for h, t, _ in loops if h != head and {h, t.index} <= inside]
        members = [segments[n] for n in inside]
        instrs = [i for s in members for i in s.instrs]
        looks = any(map(_looks, instrs))
        if nested or not (looks or any(map(_waits, instrs))):
            continue
        tail.spins |= looks
        if _idle(segments[head], members):
            for segment in members:
                segment.looks = True


def _looks(instr: Instr) -> bool:
    """Whether an instruction reads what other blocks may be writing."""
    words = instr.modifiers
    return (
        instr.base == "ld"
        and not _STRONG.isdisjoint(words)
        and space_of(words) in ("global", "generic")
    )


def _waits(instr: Instr) -> bool:
    return instr.base == "mbarrier" and instr.modifiers[0] in ("test_wait", "try_wait")


def _loop(head: int, tail: int, before: list[list[int]]) -> set[int]:
    """The segments of a loop that its tail ends with a branch to its head."""
    inside, todo = {head}, [tail]
    while todo:
        number = todo.pop()
        if number not in inside:
            inside.add(number)
            todo += before[number]
    return inside


def _idle(head: Segment, members: list[Segment]) -> bool:
    """Whether each turn of a loop does what the one before did while nobody else does anything."""
    defined = {name for s in members for name in s.defined}
    carried = (head.exposed | (head.live_out - head.defined)) & defined
    instrs = [i for s in members for i in [*s.instrs, *([s.last] if s.last else [])]]
    return not carried and all(map(_harmless, instrs))


def _harmless(instr: Instr) -> bool:
    if any(isinstance(o, Special) and o.name in CLOCKS for o in instr.operands):
        return False
    if instr.base in _HARMLESS or instr.opcode.startswith("bar.warp.sync") or _waits(instr):
        return True
    return bool(destinations(instr)) and instr.base not in _EFFECTS
