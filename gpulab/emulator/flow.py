"""Control flow of a flat kernel: segments, their ends, and which registers outlive them.

A segment is a run of instructions that a group of lanes executes from its first to its last
without a change of the group. Segments keep program order: the executor always runs the lowest
pending one, so that lanes which parted meet again at the next common instruction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpulab.emulator.ptx.linker import Kernel
from gpulab.emulator.ptx.nodes import Imm, Instr, Mem, Negated, Operand, Reg, Vec

End = Literal["next", "branch", "table", "exit", "barrier"]

WARP_SYNC = ("shfl", "vote", "match", "redux", "elect", "mma", "ldmatrix", "stmatrix", "wgmma")
"""Instructions at which lanes of a warp meet; ``bar.warp.sync`` is one too."""


@dataclass
class Segment:
    """A run of instructions.

    Args:
        index: place in program order.
        instrs: those executed in line (the end instruction is not among them).
        end: how it ends.
        last: the end instruction, None for a plain fall-through.
        targets: segment numbers of a branch or table.
        meets: the first instruction needs its warp members present.
        exposed: registers that it may read before it writes them.
        defined: registers that it writes.
    """

    index: int
    instrs: list[Instr] = field(default_factory=list)
    end: End = "next"
    last: Instr | None = None
    targets: tuple[int, ...] = ()
    meets: bool = False
    exposed: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)

    @property
    def cost(self) -> int:
        """Instructions executed by one pass."""
        return len(self.instrs) + (self.last is not None)


@dataclass
class Flow:
    """Segments of a kernel, and the registers that no segment reads before writing (``local``)."""

    segments: list[Segment]
    local: set[str]


_NO_RESULT = {
    "st", "red", "bra", "brx", "ret", "exit", "stmatrix", "membar", "fence", "cp", "nanosleep",
    "prefetch", "prefetchu", "griddepcontrol", "setmaxnreg", "brkpt", "trap", "pmevent", "discard",
    "applypriority",
}  # fmt: skip
_NO_RESULT_FORMS = {
    "init", "inval", "expect_tx", "complete_tx", "fence", "commit_group", "wait_group",
}  # fmt: skip


def meets_warp(instr: Instr) -> bool:
    """Whether an instruction needs the named lanes of its warp to be there."""
    if instr.base in ("bar", "barrier"):
        return "warp" in instr.modifiers
    return instr.base in WARP_SYNC and (instr.base != "wgmma" or instr.modifiers[0] == "mma_async")


def is_barrier(instr: Instr) -> bool:
    """Whether an instruction is a block barrier (of any kind)."""
    return instr.base in ("bar", "barrier") and not meets_warp(instr)


def destinations(instr: Instr) -> list[Reg]:
    """Registers an instruction writes."""
    base = instr.base
    if base == "barrier" and instr.modifiers[0] == "cluster":
        return []
    if base in _NO_RESULT or (base in ("bar", "barrier") and "red" not in instr.modifiers):
        return []
    if base in ("mbarrier", "wgmma") and instr.modifiers[0] in _NO_RESULT_FORMS:
        return []
    if not instr.operands:
        return []
    if base == "builtin":
        from gpulab.emulator.builtins import results_of

        return [o for o in instr.operands[: results_of(instr)] if isinstance(o, Reg)]
    first = instr.operands[0]
    if isinstance(first, Reg):
        return [first]
    if isinstance(first, Vec):
        return [o for o in first.items if isinstance(o, Reg)]
    return []


def sources(instr: Instr) -> list[Reg]:
    """Registers an instruction reads, its guard included; of a guarded one also those it writes
    (lanes whose guard fails keep the old value), and of wgmma, which adds to them."""
    found: list[Reg] = []
    written = destinations(instr)
    operands = instr.operands
    if written:
        operands = operands[1:]
        if instr.base == "builtin":
            operands = instr.operands[len(written) :]
    for operand in operands:
        _collect(operand, found)
    if instr.guard is not None:
        found.append(instr.guard)
        found += written
    elif instr.base == "wgmma":
        found += written
    return found


def _collect(operand: Operand, found: list[Reg]) -> None:
    if isinstance(operand, Reg):
        found.append(operand)
    elif isinstance(operand, Negated):
        found.append(operand.reg)
    elif isinstance(operand, Mem):
        for item in (operand.base, *operand.place):
            _collect(item, found)
    elif isinstance(operand, Vec):
        for item in operand.items:
            _collect(item, found)


def split(kernel: Kernel) -> Flow:
    """Cut a kernel into segments and find the registers that each of them keeps to itself."""
    segments, starts = _cut(kernel)
    for segment in segments:
        targets = segment.last.targets if segment.last is not None else ()
        segment.targets = tuple(starts[kernel.labels[t]] for t in targets)
    every: set[str] = set()
    for segment in segments:
        _expose(segment)
        every |= segment.exposed
    return Flow(segments, set(kernel.registers) - every)


def _cut(kernel: Kernel) -> tuple[list[Segment], dict[int, int]]:
    marks = set(kernel.labels.values())
    segments = [Segment(0)]
    starts: dict[int, int] = {0: 0}

    def begin(at: int) -> Segment:
        segments.append(Segment(len(segments)))
        starts[at] = segments[-1].index
        return segments[-1]

    current = segments[0]
    for at, instr in enumerate(kernel.code):
        if (at in marks or meets_warp(instr)) and at not in starts:
            current = begin(at)
        if meets_warp(instr):
            current.meets = True
        end: End | None = None
        if instr.base == "bra":
            end = "branch"
        elif instr.base == "brx":
            end = "table"
        elif instr.base in ("ret", "exit"):
            end = "exit"
        elif is_barrier(instr):
            end = "barrier"
        if end is None:
            current.instrs.append(instr)
        else:
            current.end, current.last = end, instr
            current = begin(at + 1)
    if len(kernel.code) not in starts:
        current = begin(len(kernel.code))
    # Running off the end is a return.
    current.end, current.last = "exit", None
    return segments, starts


def _expose(segment: Segment) -> None:
    tail = [segment.last] if segment.last is not None else []
    for instr in [*segment.instrs, *tail]:
        for reg in sources(instr):
            if reg.name not in segment.defined:
                segment.exposed.add(reg.name)
        segment.defined |= {r.name for r in destinations(instr)}
    if segment.end == "barrier" and segment.last is not None:
        # The result of bar.red is written when the barrier completes, outside the segment.
        segment.exposed |= {r.name for r in destinations(segment.last)}


def member_operand(instr: Instr) -> Operand:
    """The member mask of a warp instruction; aligned ones without one need the whole warp."""
    base = instr.base
    if base in ("mma", "ldmatrix", "stmatrix", "wgmma"):
        return Imm(0xFFFFFFFF)
    return instr.operands[-1]
