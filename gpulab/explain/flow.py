"""Where the values of a compiled kernel come from: a data flow graph over its PTX.

Compilers give nearly every virtual register one definition (a loop's carried value has two), so
the graph ignores the order of instructions: a register stands for all its definitions. Values also
flow through shared and local memory, from every store of a variable to every load of it. Addresses,
predicates and guards are no values and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from gpulab.device_code import Param
from gpulab.emulator import builtins
from gpulab.emulator.ptx.linker import Kernel, link
from gpulab.emulator.ptx.nodes import Instr, Mem, Negated, Operand, Reg, Sym, Vec
from gpulab.emulator.ptx.parser import parse
from gpulab.runtime.assembly import Code

_MAP_COORDINATES = re.compile(r"\[(%\w+), \{[^}]*\}\]")
_NO_RESULT = frozenset(
    ("st", "red", "bar", "barrier", "membar", "fence", "cp", "ret", "exit", "trap", "bra", "brx")
) | {"prefetch", "nanosleep", "wgmma", "call", "brkpt", "discard", "applypriority"}
_ON_CHIP = ("shared", "local")


def registers(operand: Operand) -> list[str]:
    """Names of the registers in an operand."""
    if isinstance(operand, Reg):
        return [operand.name]
    if isinstance(operand, Negated):
        return [operand.reg.name]
    if isinstance(operand, Mem):
        return registers(operand.base)
    if isinstance(operand, Vec):
        return [name for item in operand.items for name in registers(item)]
    return []


def space(instr: Instr) -> str | None:
    """The memory an instruction touches: ``global``, ``shared``, ``local`` ...; else None."""
    if instr.base in ("ldmatrix", "stmatrix"):
        return "shared"
    if instr.base not in ("ld", "st", "atom", "red"):
        return None
    for part in instr.modifiers:
        name = part.split("::")[0]
        if name in ("global", "shared", "local", "param", "const"):
            return name
    return "global"


def to_global(instr: Instr) -> bool:
    """Whether it is a copy from shared to global memory."""
    return instr.base == "cp" and "global.shared" in instr.opcode


class Flow:
    """The graph of one kernel; instructions are numbered as in ``code``.

    Args:
        kernel: linked PTX.
        names: the parameter each ``.param`` of the entry belongs to, in their order.
    """

    def __init__(self, kernel: Kernel, names: Sequence[str]) -> None:
        self.kernel = kernel
        self.code: list[Instr] = kernel.code
        self._names = dict(zip(kernel.params, names, strict=True))

    @classmethod
    def of(cls, code: Code, params: Sequence[Param]) -> Flow:
        """The graph of a compiled kernel; coordinates of tensor maps are left out."""
        module = parse(_MAP_COORDINATES.sub(r"[\1]", code.ptx))
        return cls(link(module, code.entry, builtins.NAMES), parameter_names(params, code.abi))

    def writes(self, i: int) -> list[str]:
        """Registers that an instruction sets."""
        instr = self.code[i]
        if (instr.base in _NO_RESULT and instr.base != "wgmma") or not instr.operands:
            return []
        if instr.base == "wgmma" and not isinstance(instr.operands[0], Vec):
            return []
        return registers(instr.operands[0])

    @cached_property
    def definitions(self) -> dict[str, list[int]]:
        """Register -> the instructions that set it."""
        found: dict[str, list[int]] = {}
        for i in range(len(self.code)):
            for name in self.writes(i):
                found.setdefault(name, []).append(i)
        return found

    def makers(self, operand: Operand) -> list[int]:
        """The instructions that set the registers of an operand."""
        return [i for name in registers(operand) for i in self.definitions.get(name, ())]

    def operands(self, i: int) -> tuple[Operand, ...]:
        """The operands whose values go into the result of an instruction (no addresses)."""
        instr = self.code[i]
        if instr.base in ("ld", "ldmatrix", "cp", "setp", "atom"):
            return ()
        if instr.base == "st":
            return instr.operands[1:]
        if instr.base == "selp":
            return instr.operands[1:3]
        if instr.base == "shfl":
            return instr.operands[1:2]
        if instr.base == "wgmma":
            return instr.operands[:1]
        return instr.operands[1:]

    @cached_property
    def _stores(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for i, instr in enumerate(self.code):
            if instr.base == "stmatrix" or (instr.base == "cp" and not to_global(instr)):
                where = "shared"
            elif instr.base == "st" and space(instr) in _ON_CHIP:
                where = str(space(instr))
            else:
                continue
            for symbol in self.symbols(instr.operands[:1]) or {""}:
                found.setdefault((where, symbol), []).append(i)
        return found

    def sources(self, i: int) -> list[int]:
        """The instructions whose values an instruction takes directly."""
        instr = self.code[i]
        where = space(instr)
        if to_global(instr):  # a bulk copy out of shared memory
            where = "shared"
        if (instr.base in ("ld", "ldmatrix") and where in _ON_CHIP) or to_global(instr):
            symbols = self.symbols(instr.operands[1:]) or {""}
            return [j for s in symbols for j in self._stores.get((str(where), s), ())]
        return [j for operand in self.operands(i) for j in self.makers(operand)]

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """Instruction -> those that take its value directly."""
        found: dict[int, list[int]] = {}
        for i in range(len(self.code)):
            for j in self.sources(i):
                found.setdefault(j, []).append(i)
        return found

    def symbols(self, operands: Iterable[Operand]) -> set[str]:
        """The variables and parameters that addresses are formed from."""
        found: set[str] = set()
        seen: set[int] = set()
        todo = list(operands)
        while todo:
            operand = todo.pop()
            if isinstance(operand, Mem):
                operand = operand.base
            if isinstance(operand, Sym):
                found.add(operand.name)
            for i in self.makers(operand):
                if i not in seen:
                    seen.add(i)
                    instr = self.code[i]
                    if instr.base in ("ld", "cvta", "mov", "add", "sub", "mad", "mapa", "selp"):
                        todo += instr.operands[1:]
        return found

    def parameters(self, i: int) -> set[str]:
        """The parameters whose memory an access touches."""
        instr = self.code[i]
        loads = instr.base in ("ld", "cp", "atom") and not to_global(instr)
        operands = instr.operands[1:2] if loads else instr.operands[:1]
        return {self._names[s] for s in self.symbols(operands) if s in self._names}

    def back(
        self, start: Iterable[int], through: Callable[[int], bool] = lambda i: True
    ) -> frozenset[int]:
        """Everything that values come from; ``through`` says what is not stopped at."""
        return self._reach(start, self.sources, through)

    def forward(
        self, start: Iterable[int], through: Callable[[int], bool] = lambda i: True
    ) -> frozenset[int]:
        """Everything that values go to; ``through`` says what is not stopped at."""
        return self._reach(start, lambda i: self.users.get(i, ()), through)

    @staticmethod
    def _reach(
        start: Iterable[int],
        step: Callable[[int], Iterable[int]],
        through: Callable[[int], bool],
    ) -> frozenset[int]:
        seen: set[int] = set()
        todo = list(start)
        while todo:
            i = todo.pop()
            if i not in seen:
                seen.add(i)
                if through(i):
                    todo += step(i)
        return frozenset(seen)

    def in_a_row(self, chosen: frozenset[int]) -> int:
        """The most of the chosen instructions that a number passes one after the other.

        Instructions that depend on each other in a circle count once.
        """
        depth: dict[int, int] = {}
        for circle in self._circles():
            inside = set(circle)
            before = (depth[j] for i in circle for j in self.sources(i) if j not in inside)
            found = max(before, default=0) + (1 if inside & chosen else 0)
            depth.update(dict.fromkeys(circle, found))
        return max(depth.values(), default=0)

    def _circles(self) -> list[list[int]]:
        """Instructions that depend on each other, what others depend on first (Tarjan 1972)."""
        order: dict[int, int] = {}
        low: dict[int, int] = {}
        held: list[int] = []
        on: set[int] = set()
        found: list[list[int]] = []
        for root in range(len(self.code)):
            if root in order:
                continue
            calls = [(root, iter(self.sources(root)))]
            order[root] = low[root] = len(order)
            held.append(root)
            on.add(root)
            while calls:
                i, rest = calls[-1]
                j = next(rest, None)
                if j is None:
                    calls.pop()
                    if calls:
                        low[calls[-1][0]] = min(low[calls[-1][0]], low[i])
                    if low[i] == order[i]:
                        at = held.index(i)
                        found.append(held[at:])
                        on.difference_update(held[at:])
                        del held[at:]
                elif j not in order:
                    order[j] = low[j] = len(order)
                    held.append(j)
                    on.add(j)
                    calls.append((j, iter(self.sources(j))))
                elif j in on:
                    low[i] = min(low[i], order[j])
        return found


def parameter_names(params: Sequence[Param], abi: str) -> list[str]:
    """The parameter each ``.param`` of an entry belongs to; Numba passes an array as several."""
    found: list[str] = []
    for p in params:
        several = 5 + 2 * len(p.dims) if abi == "numba" and p.role in ("in", "out") else 1
        found += [p.name] * several
    return found
