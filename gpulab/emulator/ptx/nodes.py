"""What the PTX parser produces: operands, instructions, variables, functions, a module.

Types belong to instructions, not to registers (newer compilers declare untyped ``.b32``
registers), so a register knows only its width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

TYPE_BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
    "e4m3": 1, "e5m2": 1, "e4m3x2": 2, "e5m2x2": 2, "pred": 0,
}  # fmt: skip
"""Bytes of a PTX type; a predicate has none."""


@dataclass(frozen=True)
class Location:
    """A source line, and the lines it was inlined at (innermost first)."""

    file: str
    line: int
    inlined_at: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Reg:
    """A register by its unique name."""

    name: str


@dataclass(frozen=True)
class Imm:
    """A literal: raw bits, and the width of a float literal (0 for an integer)."""

    bits: int
    float_bits: int = 0


@dataclass(frozen=True)
class Sym:
    """The address of a variable or function, plus bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True)
class Mem:
    """``[base + offset]``; of a tensor copy ``[map, {x, y}]``, with the place in the tensor."""

    base: Reg | Sym | Imm
    offset: int = 0
    place: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Vec:
    """``{a, b, ...}``; also the two destinations ``d|p``, marked by ``pair``."""

    items: tuple[Operand, ...]
    pair: bool = False


@dataclass(frozen=True)
class Negated:
    """``!%p`` as an operand."""

    reg: Reg


@dataclass(frozen=True)
class Sink:
    """``_``: a result nobody wants."""


Operand = Reg | Imm | Sym | Special | Mem | Vec | Negated | Sink


def symbols_of(operand: Operand) -> set[str]:
    """Names of the variables an operand mentions."""
    if isinstance(operand, Sym):
        return {operand.name}
    if isinstance(operand, Mem):
        return symbols_of(operand.base).union(*map(symbols_of, operand.place))
    if isinstance(operand, Vec):
        return {s for o in operand.items for s in symbols_of(o)}
    return set()


@dataclass(frozen=True, eq=False)
class Instr:
    """One instruction.

    Args:
        opcode: full spelling with modifiers (``ld.global.nc.v4.f32``).
        operands: in PTX order, destination first.
        guard: predicate register, or None.
        guard_negated: ``@!%p``.
        location: source line, None where the PTX has no .loc.
        ptx_line: line of the PTX text.
        text: the instruction as written.
        targets: labels of a branch (unique names).
        call: callee, arguments and results of a ``call``.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: Reg | None = None
    guard_negated: bool = False
    location: Location | None = None
    ptx_line: int = 0
    text: str = ""
    targets: tuple[str, ...] = ()
    call: CallSite | None = None

    @cached_property
    def base(self) -> str:
        """The opcode without modifiers (``ld``)."""
        return self.opcode.partition(".")[0]

    @cached_property
    def modifiers(self) -> tuple[str, ...]:
        """The modifiers in order, without dots (``global``, ``nc``, ``v4``, ``f32``)."""
        return tuple(self.opcode.split(".")[1:])


@dataclass(frozen=True)
class CallSite:
    """A call: callee name (or register), result and argument operands."""

    callee: Sym | Reg
    results: tuple[Operand, ...]
    arguments: tuple[Operand, ...]
    prototype: str | None = None


@dataclass(frozen=True)
class Label:
    """A branch target, by its unique name."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A declared variable.

    Args:
        name: unique name.
        space: ``param``, ``local``, ``shared``, ``global`` or ``const``.
        type: element type.
        nbytes: size; 0 for an ``extern`` array without one.
        align: alignment in bytes.
        initial: initial bytes (shorter than ``nbytes`` = zero-filled), None if none.
        relocations: (byte offset, width, symbol, addend) of addresses inside ``initial``.
        extern: declared ``.extern`` (dynamic shared memory).
    """

    name: str
    space: str
    type: str
    nbytes: int
    align: int
    initial: bytes | None = None
    relocations: tuple[tuple[int, int, str, int], ...] = ()
    extern: bool = False


@dataclass
class Function:
    """An entry or device function; a body of None is an ``.extern`` declaration."""

    name: str
    is_entry: bool
    params: tuple[Variable, ...] = ()
    results: tuple[Variable, ...] = ()
    body: list[Instr | Label] | None = None
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    location: Location | None = None
    max_threads: tuple[int, ...] | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)


@dataclass
class Module:
    """A parsed PTX text."""

    version: str = ""
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
