"""Sums of a compiled kernel: which instructions add to a running value, in what format, of what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from gpulab.emulator.ptx.nodes import Instr, Operand
from gpulab.explain import arithmetic
from gpulab.explain.flow import Flow, registers, space
from gpulab.explain.places import Chain, Place, telling

MOVES = frozenset(("mov", "cvt", "selp", "shl", "shr", "and", "or", "prmt", "shfl", "neg", "abs"))
_LONG = 2
"""A sum has a running value that at least so many additions in a row were made to before one."""


@dataclass(frozen=True)
class Link:
    """How a running value gets from one addition to the next.

    Args:
        before: the addition it comes from.
        lanes: through a shuffle or shared memory: partial sums of threads meet.
        narrowed: the instructions that round it to a narrower format on the way.
        rescaled: multiplied on the way by something made of an exponential.
    """

    before: int
    lanes: bool = False
    narrowed: frozenset[int] = frozenset()
    rescaled: bool = False


@dataclass(frozen=True)
class Sum:
    """Additions of one source line that belong together.

    Args:
        place: the line.
        format: of the running value as the instructions have it.
        narrowed: narrower formats that it is rounded to after a term.
        members: the instructions.
        roundings: the instructions that narrow.
        lanes: it adds what several threads have summed.
        carried: from one round of a loop to the next.
        rescaled: the running value is rescaled by exponentials.
        matrix: it is taken by tensor cores.
    """

    place: Place
    format: str
    narrowed: tuple[str, ...]
    members: tuple[int, ...]
    roundings: frozenset[int]
    lanes: bool
    carried: bool
    rescaled: bool
    matrix: bool

    @property
    def kept_in(self) -> str:
        """The narrowest format the running value passes."""
        return min((self.format, *self.narrowed), key=lambda f: arithmetic.BITS.get(f, 99))


class Sums:
    """Finds the sums of a kernel.

    Args:
        flow: its graph.
        chain: the places of an instruction.
        ignored: instructions that belong to something else (the inside of a logarithm).
    """

    def __init__(self, flow: Flow, chain: Callable[[int], Chain], ignored: frozenset[int]) -> None:
        self.flow, self.chain, self.ignored = flow, chain, ignored

    def _adds(self, i: int) -> bool:
        instr = self.flow.code[i]
        if i in self.ignored:
            return False
        if arithmetic.is_matrix(instr):
            return True
        return instr.base in ("add", "fma") and arithmetic.is_float(instr)

    def running(self, instr: Instr) -> list[tuple[Operand, bool]]:
        """The operands that may be a running value; whether it is multiplied there."""
        if arithmetic.is_matrix(instr):
            at = 0 if instr.base == "wgmma" else 3
            return [(o, False) for o in instr.operands[at : at + 1]]
        if instr.base == "fma":
            a, b, c = instr.operands[1:4]
            found = [(c, False)]
            found += [(x, True) for x, y in ((a, b), (b, a)) if self.exponential(y)]
            return found
        return [(o, False) for o in instr.operands[1:3]]

    def exponential(self, operand: Operand) -> bool:
        """Whether a factor is made of an exponential, before any sum of them."""
        return self._exponential(tuple(self.flow.makers(operand)))

    def _exponential(self, start: tuple[int, ...]) -> bool:
        code = self.flow.code
        moves = MOVES | {"max"}
        near = self.flow.back(start, lambda i: code[i].base in moves)
        return any(code[i].base == "ex2" for i in near)

    @cached_property
    def links(self) -> dict[int, list[Link]]:
        """Addition -> where its running value comes from."""
        found: dict[int, list[Link]] = {}
        for i, instr in enumerate(self.flow.code):
            if self._adds(i):
                links: list[Link] = []
                for operand, scaled in self.running(instr):
                    links += self._trace(self.flow.makers(operand), scaled)
                found[i] = links
        return found

    def before(self, operand: Operand) -> set[int]:
        """The additions that an operand's value is the running value of."""
        return {link.before for link in self._trace(self.flow.makers(operand), False)}

    def _trace(self, start: list[int], scaled: bool) -> list[Link]:
        found: list[Link] = []
        seen: set[tuple[int, Link]] = set()
        todo = [(i, Link(-1, rescaled=scaled)) for i in start]
        while todo:
            i, way = todo.pop()
            if (i, way) in seen:
                continue
            seen.add((i, way))
            if self._adds(i):
                found.append(Link(i, way.lanes, way.narrowed, way.rescaled))
                continue
            todo += self._before(i, way)
        return found

    def _before(self, i: int, way: Link) -> list[tuple[int, Link]]:
        """One step further back along moves, conversions, exchanges and rescaling."""
        instr = self.flow.code[i]
        if instr.base == "mul" and arithmetic.is_float(instr):
            a, b = instr.operands[1:3]
            further: list[tuple[int, Link]] = []
            for mine, factor in ((a, b), (b, a)):
                if self.exponential(factor):
                    on = Link(-1, way.lanes, way.narrowed, True)
                    further += [(j, on) for j in self.flow.makers(mine)]
            return further
        rounded = arithmetic.rounds_to(instr)
        crosses = instr.base == "shfl" or space(instr) == "shared"
        carries = instr.base == "add" and instr.modifiers[-1:] == ("s16",)  # of a rounding
        if not (
            instr.base in MOVES or instr.base == "st" or crosses or carries
            or space(instr) == "local" or (rounded and not arithmetic.is_float(instr))
        ):  # fmt: skip
            return []
        narrowed = way.narrowed | ({i} if rounded else set())
        on = Link(-1, way.lanes or crosses, narrowed, way.rescaled)
        return [(j, on) for j in self.flow.sources(i)]

    def _grouped(self) -> dict[tuple[object, ...], list[int]]:
        """Additions by line and format; those of matrices also by what the left one is made of."""
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i in self.links:
            chain = self.chain(i)
            instr = self.flow.code[i]
            matrix, fmt = arithmetic.is_matrix(instr), arithmetic.result_format(instr)
            if chain and fmt is not None:
                weighted = matrix and self.exponential(instr.operands[1])
                groups[telling(chain), fmt, matrix, weighted].append(i)
        return groups

    @cached_property
    def found(self) -> list[Sum]:
        """The sums, in the order of the code."""
        found = (self._sum(members) for members in self._grouped().values())
        return sorted((s for s in found if s is not None), key=lambda s: s.members[0])

    def _sum(self, group: list[int]) -> Sum | None:
        """The sum that additions of one line are, if they are one."""
        inside = set(group)
        own = {i: [x for x in self.links[i] if x.before in inside] for i in group}
        doubling = [i for i in group if self._doubles(i)]
        lanes = bool(doubling) or any(x.lanes for i in group for x in own[i])
        carried = self._carried(own)
        if not lanes and not carried and not _in_a_row(own):
            return None
        members = {i for i in group if own[i]} | {x.before for i in group for x in own[i]}
        members |= set(doubling)
        links = [x for i in members for x in own[i]] or [x for i in members for x in self.links[i]]
        first = self.flow.code[min(members)]
        place, fmt = telling(self.chain(min(members))), arithmetic.result_format(first)
        assert place is not None
        assert fmt is not None
        narrowing = frozenset(j for x in links for j in x.narrowed)
        formats = {str(arithmetic.rounds_to(self.flow.code[j])) for j in narrowing}
        after = {
            j
            for i in members
            for j in self.flow.users.get(i, ())
            if arithmetic.rounds_to(self.flow.code[j]) in formats
        }
        return Sum(
            place,
            fmt,
            tuple(sorted(formats)),
            tuple(sorted(members)),
            narrowing | after,
            lanes,
            carried,
            any(x.rescaled for x in links),
            arithmetic.is_matrix(first),
        )

    def _doubles(self, i: int) -> bool:
        """Whether it adds a value and what another lane has of the same value."""
        if self.flow.code[i].base != "add":
            return False
        one, other = (
            {(x.before, x.lanes) for x in self._trace(self.flow.makers(o), False)}
            for o in self.flow.code[i].operands[1:3]
        )
        return any((before, not lanes) in other for before, lanes in one)

    @cached_property
    def _loops(self) -> list[tuple[int, int]]:
        """First and last instruction of every loop, smallest first."""
        labels = self.flow.kernel.labels
        found = {
            (labels[t], i)
            for i, instr in enumerate(self.flow.code)
            for t in instr.targets
            if labels[t] <= i
        }
        return sorted(found, key=lambda span: span[1] - span[0])

    def loop(self, i: int) -> range:
        """The innermost loop around an instruction; the instruction alone where there is none."""
        span = next(((a, b) for a, b in self._loops if a <= i <= b), (i, i))
        return range(span[0], span[1] + 1)

    def _starts_anew(self, i: int, members: frozenset[int]) -> bool:
        """Whether the running value is set afresh in the innermost loop around the addition."""
        around = self.loop(i)
        for operand, _ in self.running(self.flow.code[i]):
            ways = {
                j: set() if self._constant(j) else {x.before for x in self._trace([j], False)} | {j}
                for j in self.flow.makers(operand)
            }
            if any(w & members for w in ways.values()):
                return any(j in around and not w & members for j, w in ways.items())
        return True

    def _constant(self, i: int) -> bool:
        """Whether a move brings a constant: what its register was last set to before it."""
        instr = self.flow.code[i]
        while instr.base == "mov" and registers(instr.operands[1]):
            before = [j for j in self.flow.makers(instr.operands[1]) if j < i]
            if not before:
                return False
            i = max(before)
            instr = self.flow.code[i]
        return instr.base == "mov"

    def _carried(self, links: dict[int, list[Link]]) -> bool:
        """Whether a running value comes back to an addition round after round."""
        members = frozenset(links)
        before = {i: {x.before for x in links[i]} for i in members}
        reach = {i: _closure(i, before) for i in members}
        for i in (i for i in members if i in reach[i]):
            around = [j for j in reach[i] if i in reach[j]]
            if not any(self._starts_anew(j, members) for j in around):
                return True
        return False


def _in_a_row(links: dict[int, list[Link]]) -> bool:
    """Whether a running value passes enough additions one after the other."""
    depth: dict[int, int] = {}
    for i in sorted(links):
        depth[i] = max((1 + depth[x.before] for x in links[i] if x.before < i), default=0)
    return max(depth.values()) >= _LONG


def _closure(start: int, before: dict[int, set[int]]) -> set[int]:
    """What an addition builds on, near and far."""
    seen: set[int] = set()
    todo = list(before[start])
    while todo:
        i = todo.pop()
        if i not in seen:
            seen.add(i)
            todo += before.get(i, ())
    return seen
