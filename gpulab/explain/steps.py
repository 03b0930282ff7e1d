"""The steps of a compiled kernel at which numbers can go wrong, as its instructions show them.

Nothing here reads a declaration: sums, exponentials, logarithms, differences and roundings are
found in the PTX, with what protects them. ``gpulab.explain.claims`` holds them against what is
declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpulab.emulator.ptx.nodes import Instr, Operand
from gpulab.explain import arithmetic
from gpulab.explain.flow import space, to_global
from gpulab.explain.offsets import wrapping
from gpulab.explain.places import Place, telling
from gpulab.explain.reading import SCALING, Reading
from gpulab.explain.sums import MOVES, Sum

OPERAND = "an operand"
"""What a rounding that no output keeps is for."""


@dataclass(frozen=True)
class Step:
    """One kind of step, at one line.

    Args:
        kind: ``sum``, ``lanes`` (partial sums meet), ``exp``, ``log``, ``difference``,
            ``rounding``, ``arithmetic`` (in a narrow format), ``offset`` (in 32 bits).
        what: of what: ``exponentials``, ``squares``, ``max`` (a difference to it) ...
        format: of the result.
        place: the line.
        marks: what else is known of it, which decides risk and mitigation.
    """

    kind: str
    what: str
    format: str
    place: Place
    marks: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class _Rounding:
    """An instruction that rounds, the outputs its result is stored in, whether it is used again."""

    at: int
    format: str
    stored: tuple[str, ...]
    again: bool


class Steps(Reading):
    """Finds the steps of a kernel."""

    @property
    def reused(self) -> tuple[int, tuple[str, ...]]:
        """How many roundings in a row numbers are computed with again; to which formats."""
        again = {r.at: r.format for r in self._rounded if r.again}
        return self.flow.in_a_row(frozenset(again)), tuple(sorted(set(again.values())))

    @property
    def shown(self) -> tuple[Step, ...]:
        """The steps as people want them: what one line does to numbers of one format, once."""
        return _merged(self.found)

    @cached_property
    def found(self) -> tuple[Step, ...]:
        """All steps, in the order of the code; equal ones once."""
        numbered: list[tuple[int, Step]] = []
        for found in (
            self._of_sums(),
            self._exponentials(),
            self._logarithms(),
            self._differences(),
            self._roundings(),
            self._narrow(),
            self._offsets(),
        ):
            numbered += found
        unique: dict[Step, int] = {}
        for i, step in sorted(numbered, key=lambda pair: pair[0]):
            unique.setdefault(step, i)
        return tuple(unique)

    def _step(self, i: int, kind: str, what: str, fmt: str, *marks: str) -> tuple[int, Step]:
        place = telling(self.chain(i)) or Place("?", 0)
        return i, Step(kind, what, fmt, place, frozenset(m for m in marks if m))

    # -- sums -----------------------------------------------------------------------------------

    def _of_sums(self) -> Iterator[tuple[int, Step]]:
        for s in self.sums.found:
            whats = {self._terms(i, s) for i in s.members} - {None}
            if "exponentials" in whats:
                whats -= {"values"}
            kind = "lanes" if s.lanes else "sum"
            marks = [f"narrowed:{f}" for f in s.narrowed]
            marks += ["rescaled"] if s.rescaled else []
            marks += ["tensor core"] if s.matrix else []
            if kind == "sum" and self._against_a_growing_maximum(s):
                marks.append("growing maximum")
            if any(self._shrunk(i) for i in s.members):
                marks.append("shrunk")
            what = " and ".join(sorted(str(w) for w in whats)) or "values"
            fmt = s.kept_in
            yield self._step(s.members[0], kind, what, fmt, *marks)

    def _terms(self, i: int, s: Sum) -> str | None:
        """What an addition of a sum adds."""
        instr = self.code[i]
        if s.lanes:
            return "partial sums"
        if s.matrix:
            return "weighted by exponentials" if self._weights(instr) else "products"
        if instr.base == "fma":
            a, b = instr.operands[1:3]
            if self.flow.makers(a) == self.flow.makers(b) and self.flow.makers(a):
                return "squares"
            running = [o for o, scaled in self.sums.running(instr) if scaled and self._sums(o, s)]
            if running:
                return self._term(instr.operands[3])
            if any(self.sums.exponential(o) for o in (a, b)):
                return "weighted by exponentials"
            return "products"
        terms = [o for o in instr.operands[1:3] if not self._sums(o, s)]
        return self._term(terms[0]) if terms else None

    def _sums(self, operand: Operand, s: Sum) -> bool:
        return bool(self.sums.before(operand) & set(s.members))

    def _term(self, operand: Operand) -> str:
        if not self.flow.makers(operand):
            return "ones"
        near = self.flow.back(
            self.flow.makers(operand),
            lambda i: self.code[i].base in MOVES or self.on_chip(i) or i in self.meeting,
        )
        if any(self.code[i].base == "ex2" for i in near) or self.sums.exponential(operand):
            return "exponentials"
        for i in near:
            instr = self.code[i]
            if instr.base == "mul" and len(instr.operands) == 3:
                a, b = (self.flow.makers(o) for o in instr.operands[1:3])
                if a == b and a:
                    return "squares"
        return "values"

    def _weights(self, instr: Instr) -> bool:
        """Whether the left operand of a matrix product is made of exponentials."""
        near = self.flow.back(
            self.flow.makers(instr.operands[1]), lambda i: self.code[i].base in MOVES
        )
        return any(self.code[i].base == "ex2" for i in near)

    def _against_a_growing_maximum(self, s: Sum) -> bool:
        """Whether terms of a sum are relative to a maximum that may grow between them."""
        for i in s.members:
            maxima = self.bases(i)
            around = self.sums.loop(i)
            if s.carried and any(j in around for j in maxima):
                return True
            for link in self.sums.links[i]:
                earlier = self.bases(link.before) if link.before in s.members else maxima
                if earlier and maxima and earlier != maxima:
                    return True
        return False

    def _shrunk(self, i: int) -> bool:
        """Whether terms, or what they are differences of, are times a tiny power of two, or 1."""
        near = self._factors(i)
        for j in tuple(near):
            if self._sides(j, self.code[j]) is not None:
                near |= self._factors(j)
        return any(arithmetic.shrinks_by(self.code[j]) for j in near)

    def _factors(self, i: int) -> frozenset[int]:
        """What makes the operands of an instruction, and theirs where they are but scaled."""
        start = [j for o in self.code[i].operands[1:] for j in self.flow.makers(o)]
        return self.flow.back(start, lambda j: self.code[j].base in SCALING)

    # -- exponentials and logarithms ------------------------------------------------------------

    def _exponentials(self) -> Iterator[tuple[int, Step]]:
        for i, instr in enumerate(self.code):
            if instr.base == "ex2":
                mark = "below a maximum" if self.maxima(instr.operands[1]) else "unbounded"
                what = "approximate" if "approx" in instr.modifiers else ""
                _, step = self._step(i, "exp", what, arithmetic.result_format(instr) or "", mark)
                # The line that forms the argument says more than the function that wraps the power.
                yield i, replace(step, place=telling(self.chain(self.argument(i))) or step.place)

    def _logarithms(self) -> Iterator[tuple[int, Step]]:
        for i in self.logs:
            argument = self.code[i].operands[1]
            near = self.near(argument, SCALING)
            bases = {self.code[j].base for j in near}
            powers = "ex2" in bases and not bases.isdisjoint(("div", "rcp"))
            of = "a probability" if powers else "a sum"
            yield self._step(i, "log", of, "fp32", "ratio" if powers else "")

    # -- differences ----------------------------------------------------------------------------

    def _differences(self) -> Iterator[tuple[int, Step]]:
        for i, instr in enumerate(self.code):
            sides = self._sides(i, instr)
            if sides is None:
                continue
            left, right = (self.origin(o) for o in sides)
            marks = []
            if left == right == "sum":
                shifted = self._shifted(sides[0])
                marks.append("shifted" if shifted else "")
                beside = not shifted and self._of_two_threads(*sides)
                what = "another thread's mean" if beside else "two sums"
            elif "max" in (left, right):
                if self._only_in_exponents(i):
                    continue  # the exponential's own row says so
                what = "the maximum"
            elif right == "sum":
                what = "a mean"
            elif right == "log":
                what = "a logarithm"
            elif left == right == "input":
                what = "inputs"
            else:
                continue
            fmt = arithmetic.result_format(instr) or ""
            yield self._step(i, "difference", what, fmt, *marks)

    def _of_two_threads(self, one: Operand, other: Operand) -> bool:
        """Whether two numbers are the same sum, of this thread and of a lane of its warp."""
        mine, theirs = self.near(one, SCALING), self.near(other, SCALING)
        handed = [any(self.code[j].base == "shfl" for j in near) for near in (mine, theirs)]
        return handed == [False, True] and mine <= theirs

    def _sides(self, i: int, instr: Instr) -> tuple[Operand, Operand] | None:
        """What is taken from what, where an instruction subtracts numbers."""
        if not arithmetic.is_float(instr) or i in self.in_logs:
            return None
        if instr.base == "sub":
            return instr.operands[1], instr.operands[2]
        if instr.base == "fma" and any(
            self.code[j].base == "neg" for j in self.flow.makers(instr.operands[3])
        ):
            return instr.operands[1], instr.operands[3]
        return None

    def _only_in_exponents(self, i: int) -> bool:
        passing = SCALING - {"div"}
        ends = self.flow.forward((i,), lambda j: j == i or self.code[j].base in passing)
        uses = {self.code[j].base for j in ends if j != i} - passing
        return uses == {"ex2"}

    def _shifted(self, operand: Operand) -> bool:
        """Whether the sums behind a number are of differences."""
        near = self.near(operand, SCALING | {"add", "fma"})
        return any(
            self._sides(j, self.code[j]) is not None
            for i in near & self.summed
            for o in self.code[i].operands[1:]
            for j in self.near(o, SCALING)
        )

    # -- formats --------------------------------------------------------------------------------

    @cached_property
    def _rounded(self) -> list[_Rounding]:
        of_sums = frozenset(j for s in self.sums.found for j in s.roundings)
        found = []
        for i, instr in enumerate(self.code):
            fmt = self.rounds_to(i)
            if fmt is None or i in of_sums or i in self.summed or self.constant(instr):
                continue
            ways = self.flow.forward(self.flow.users.get(i, ()), lambda j: self.passes(j))
            stored = {
                p
                for j in ways
                if to_global(self.code[j])
                or (self.code[j].base == "st" and space(self.code[j]) == "global")
                for p in self.flow.parameters(j)
            }
            again = any(self.computes(self.code[j]) for j in ways)
            found.append(_Rounding(i, fmt, tuple(sorted(stored)), again))
        return found

    def _roundings(self) -> Iterator[tuple[int, Step]]:
        for r in self._rounded:
            what = f"stored in {', '.join(r.stored)}" if r.stored else OPERAND
            yield self._step(r.at, "rounding", what, r.format, "used again" if r.again else "")

    def _narrow(self) -> Iterator[tuple[int, Step]]:
        """Arithmetic outside sums in another format than float32."""
        for i, instr in enumerate(self.code):
            if i in self.summed or self.rounds_to(i) or not arithmetic.is_float(instr):
                continue
            fmt = arithmetic.result_format(instr)
            if fmt is not None and fmt != "fp32":
                yield self._step(i, "arithmetic", instr.base, fmt)

    def _offsets(self) -> Iterator[tuple[int, Step]]:
        """Offsets of elements that wrap."""
        for i in wrapping(self.flow):
            yield self._step(i, "offset", "an element", "int32")


def _merged(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Steps as people want them: a rounding that serves two ends on one line is one step."""
    found: dict[object, Step] = {}
    for step in steps:
        one_line = step.kind == "rounding" and not step.place.text.startswith("def ")
        key = (step.format, step.place) if one_line else step
        if key in found:
            both = {found[key].what, step.what} - {OPERAND} or {OPERAND}
            step = replace(step, what=", ".join(sorted(both)), marks=found[key].marks | step.marks)
        found[key] = step
    return tuple(found.values())
