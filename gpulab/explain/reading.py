"""Reading the code of a kernel: what is near an operand, and where an instruction was written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gpulab.emulator.ptx.nodes import Imm, Instr, Operand
from gpulab.explain import arithmetic
from gpulab.explain.flow import Flow, space
from gpulab.explain.places import Chain, nearest
from gpulab.explain.sums import MOVES, Sums

_LOG_SCALE = 2.0**23
"""A logarithm multiplies a subnormal argument by it first."""
SCALING = MOVES | {"mul", "div", "neg"}
"""What leaves a number what it was but for a factor."""
_MINUS_ZERO = (0x8000, 0x80008000)
_ARITHMETIC = SCALING | {"add", "sub", "fma"}


class Reading:
    """Questions about the code of one kernel.

    Args:
        flow: its graph.
        chains: PTX line -> places.
    """

    def __init__(self, flow: Flow, chains: dict[int, tuple[Chain, ...]]) -> None:
        self.flow, self._choices = flow, chains
        self.code = flow.code
        self.logs = dict(self._log_bodies())
        self.in_logs = frozenset(i for body in self.logs.values() for i in body)
        self.sums = Sums(flow, self.chain, self.in_logs)
        self.summed = frozenset(i for s in self.sums.found for i in s.members)
        self.meeting = frozenset(i for s in self.sums.found if s.lanes for i in s.members)

    @cache  # noqa: B019 - lives as long as the analysis of one kernel
    def chain(self, i: int) -> Chain:
        """The places of an instruction; of several possible ones those near its number's."""
        choices = self._choices.get(self.code[i].ptx_line, ())
        if len(choices) < 2:
            return choices[0] if choices else ()
        todo, seen = list(self.flow.sources(i)), {i}
        while todo:
            j = todo.pop(0)
            if j in seen or j > i:
                continue
            seen.add(j)
            if self.computes(self.code[j]):
                return nearest(choices, self.chain(j))
            todo += self.flow.sources(j)
        return choices[0]

    def near(self, operand: Operand, bases: frozenset[str]) -> frozenset[int]:
        """What an operand comes from through instructions of these kinds, and the first others."""
        return self.flow.back(
            self.flow.makers(operand),
            lambda i: self.code[i].base in bases or self.on_chip(i),
        )

    def on_chip(self, i: int) -> bool:
        """Whether a value passes through shared or local memory."""
        return space(self.code[i]) in ("shared", "local")

    def bases(self, i: int) -> frozenset[int]:
        """The maxima that the exponentials added by an instruction are relative to."""
        start = [j for o in self.code[i].operands[1:] for j in self.flow.makers(o)]
        near = self.flow.back(start, lambda j: self.code[j].base in MOVES)
        found: set[int] = set()
        for j in near:
            if self.code[j].base == "ex2":
                found |= self.maxima(self.code[j].operands[1])
        return frozenset(found)

    def maxima(self, operand: Operand) -> frozenset[int]:
        """The first maxima behind an operand."""
        near = self.flow.back(
            self.flow.makers(operand),
            lambda j: (
                j not in self.summed and (self.code[j].base in _ARITHMETIC or self.on_chip(j))
            ),
        )
        return frozenset(j for j in near if self.code[j].base == "max")

    def argument(self, i: int) -> int:
        """The instruction that makes what an exponential is taken of, before it is scaled."""
        for _ in range(4):
            makers = [j for o in self.code[i].operands[1:] for j in self.flow.makers(o)]
            if len(makers) != 1:
                break
            i = makers[0]
            if self.code[i].base not in ("mul", "mov"):
                break
        return i

    def _log_bodies(self) -> Iterator[tuple[int, frozenset[int]]]:
        """Instruction that scales a logarithm's argument -> all instructions of the logarithm."""
        for i, instr in enumerate(self.code):
            if instr.base == "lg2":
                yield i, frozenset((i,))
            elif instr.base == "mul" and arithmetic.has_constant(instr, _LOG_SCALE):
                place = self._choices.get(instr.ptx_line, ())
                here = {
                    j
                    for j, other in enumerate(self.code)
                    if self._choices.get(other.ptx_line, ()) == place
                }
                after = self.flow.forward((i,), lambda j, h=here: j in h)  # type: ignore[misc]
                yield i, frozenset(j for j in after & here if self.code[j].base in ("fma", "add"))

    def origin(self, operand: Operand) -> str | None:
        """What a number is, near enough: ``max``, ``sum``, ``log`` or ``input``."""
        bodies = self.in_logs
        stops = bodies | self.summed
        near = self.flow.back(
            self.flow.makers(operand),
            lambda j: (
                j not in stops
                and (self.code[j].base in SCALING or self.on_chip(j) or self._joins(j))
            ),
        )
        if near & bodies:
            return "log"
        if any(self.code[j].base == "max" for j in near):
            return "max"
        if near & self.summed:
            return "sum"
        if any(self.code[j].base in ("ld", "cp") and self.flow.parameters(j) for j in near):
            return "input"
        return None

    def _joins(self, i: int, above: frozenset[int] = frozenset()) -> bool:
        """Whether an addition joins parts of a sum that were added to in turns."""
        instr = self.code[i]
        if instr.base != "add" or i in above or not arithmetic.is_float(instr):
            return False
        for operand in instr.operands[1:]:
            near = self.flow.back(self.flow.makers(operand), lambda j: self.code[j].base in MOVES)
            ends = [j for j in near if self.code[j].base not in MOVES]
            if not ends or not all(j in self.summed or self._joins(j, above | {i}) for j in ends):
                return False
        return True

    def constant(self, instr: Instr) -> bool:
        """Whether an instruction works on constants only."""
        makers = [j for o in instr.operands[1:] for j in self.flow.makers(o)]
        return all(self.code[j].base == "mov" and not self.flow.sources(j) for j in makers)

    def rounds_to(self, i: int) -> str | None:
        """The narrower format that an instruction rounds a number to, or None.

        A fused multiply-add to -0 is a product: before sm_90 no instruction only multiplies bf16.
        """
        instr = self.code[i]
        if instr.base == "fma" and self._is_minus_zero(instr.operands[3]):
            return arithmetic.narrow_result(instr)
        return arithmetic.rounds_to(instr)

    def _is_minus_zero(self, operand: Operand) -> bool:
        """Whether it is -0 of a 16-bit format, or two of them."""
        makers = [self.code[i] for i in self.flow.makers(operand)]
        return bool(makers) and all(
            m.base == "mov" and isinstance(m.operands[1], Imm) and m.operands[1].bits in _MINUS_ZERO
            for m in makers
        )

    def passes(self, i: int) -> bool:
        """Whether an instruction hands a stored number on as it is."""
        instr = self.code[i]
        return (
            instr.base in MOVES
            or instr.base == "st"
            or self.on_chip(i)
            or (instr.base == "add" and not arithmetic.is_float(instr))
        )

    @staticmethod
    def computes(instr: Instr) -> bool:
        """Whether an instruction computes with a number."""
        return (
            arithmetic.is_float(instr)
            or arithmetic.is_matrix(instr)
            or (instr.base in ("max", "ex2") and bool(arithmetic.types(instr.opcode)))
        )
