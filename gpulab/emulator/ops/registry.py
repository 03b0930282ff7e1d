"""From an instruction to what it computes: the table of families and the form of an entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gpulab.emulator.ptx.linker import Kernel
from gpulab.emulator.ptx.nodes import Imm, Instr, Operand, Reg, Sink, Vec
from gpulab.errors import BuildError


@dataclass(frozen=True)
class Op:
    """What one instruction computes.

    Args:
        function: pure: ``function(*inputs)``; with ``context``: ``function(state, instr, mask,
            *inputs)``, mask None meaning every lane. Returns one array, or a tuple for several
            results.
        reads: kind of each source operand ('*' = as it is).
        writes: kind of each result.
        sources: source operands.
        results: destination registers (or sinks).
        context: see ``function``.
    """

    function: Callable[..., Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sources: tuple[Operand, ...]
    results: tuple[Reg | Sink, ...]
    context: bool = False


@dataclass(frozen=True)
class Env:
    """What an instruction may refer to beside registers.

    Args:
        kernel: the flat kernel.
        addresses: name of a global or constant variable to its address.
        capability: whose arithmetic is emulated.
        param_address: of the kernel's parameters.
    """

    kernel: Kernel
    addresses: Mapping[str, int]
    capability: tuple[int, int]
    param_address: int = 0

    def address(self, name: str, instr: Instr) -> int:
        """The state-space address of a variable.

        Raises:
            BuildError: nothing of that name.
        """
        kernel = self.kernel
        if name in kernel.frame:
            return kernel.frame[name]
        if name in kernel.shared:
            return kernel.shared[name]
        if name in kernel.params:
            return self.param_address + kernel.params[name][0]
        if name in self.addresses:
            return self.addresses[name]
        raise unsupported(instr, f"{name} is not declared")

    def special(self, name: str, instr: Instr) -> str:
        """The kind of a special register.

        Raises:
            BuildError: not emulated.
        """
        from gpulab.emulator.special import KINDS

        if name not in KINDS:
            raise unsupported(instr, f"special register {name}")
        return KINDS[name]


Builder = Callable[[Instr, Env], Op]
_BUILDERS: dict[str, Builder] = {}


def family(*bases: str) -> Callable[[Builder], Builder]:
    """Register a builder for opcodes (their part before the first dot)."""

    def add(builder: Builder) -> Builder:
        for base in bases:
            _BUILDERS[base] = builder
        return builder

    return add


def unsupported(instr: Instr, why: str = "") -> BuildError:
    """The error for an instruction that is not implemented: full text and source line."""
    location = instr.location
    where = f" at {location.file}:{location.line}" if location else ""
    reason = f" ({why})" if why else ""
    return BuildError(
        f"the emulated device does not implement `{instr.text}`{reason}"
        f"{where} (PTX line {instr.ptx_line})",
        fix="write it with instructions that docs/emulator.md lists, or run it on a card",
        opcode=instr.opcode,
        text=instr.text,
        file=location.file if location else None,
        line=location.line if location else None,
        ptx_line=instr.ptx_line,
    )


def build(instr: Instr, env: Env) -> Op:
    """What ``instr`` computes.

    Raises:
        BuildError: opcode, modifier or operand form not implemented.
    """
    builder = _BUILDERS.get(instr.base)
    if builder is None:
        raise unsupported(instr)
    try:
        return builder(instr, env)
    except (KeyError, IndexError, ValueError) as error:
        raise unsupported(instr, f"{type(error).__name__}: {error}") from None


def simple(
    instr: Instr,
    function: Callable[..., Any],
    reads: tuple[str, ...],
    writes: str,
    context: bool = False,
) -> Op:
    """An op with one result, the first operand, and the rest as sources.

    Raises:
        BuildError: the number of operands is not the one ``reads`` says.
    """
    first, *rest = instr.operands
    if len(rest) != len(reads) or not isinstance(first, Reg | Sink):
        raise unsupported(instr, "operand form")
    return Op(function, reads, (writes,), tuple(rest), (first,), context)


def effect(
    instr: Instr, function: Callable[..., Any], reads: tuple[str, ...], sources: tuple[Operand, ...]
) -> Op:
    """A context op without results."""
    return Op(function, reads, (), sources, (), context=True)


def literal(instr: Instr) -> int:
    """The only operand of an instruction whose operand is a literal.

    Raises:
        BuildError: the operand is not a literal.
    """
    (only,) = instr.operands
    if not isinstance(only, Imm):
        stop(instr, "a literal is needed")
    return only.bits


def elements(operand: Operand) -> tuple[Operand, ...]:
    """The items of a vector operand, or the operand alone."""
    return operand.items if isinstance(operand, Vec) else (operand,)


def result_registers(instr: Instr, operand: Operand) -> tuple[Reg | Sink, ...]:
    """Destination registers of a scalar or vector operand.

    Raises:
        BuildError: not registers.
    """
    found = elements(operand)
    for item in found:
        if not isinstance(item, Reg | Sink):
            raise unsupported(instr, "destination form")
    return tuple(i for i in found if isinstance(i, Reg | Sink))


def only(instr: Instr, words: tuple[str, ...], *allowed: str) -> None:
    """Refuse modifiers outside ``allowed``: nothing is ever ignored silently.

    Raises:
        BuildError: a modifier that is not known to the family.
    """
    for word in words:
        if word not in allowed:
            raise unsupported(instr, f"modifier .{word}")


def spelled(instr: Instr, pattern: str) -> None:
    """Refuse an opcode that ``pattern``, a regular expression, does not match as a whole.

    Raises:
        BuildError: another spelling.
    """
    if re.fullmatch(pattern, instr.opcode) is None:
        raise unsupported(instr, "form")


def stop(instr: Instr, why: str = "") -> NoReturn:
    """Raise ``unsupported``.

    Raises:
        BuildError: always.
    """
    raise unsupported(instr, why)
