"""A segment as one Python function over arrays.

The function is straight-line code: each instruction becomes a call of what it computes
(``ops/``), with operands already viewed as the types the instruction names, so that running it
costs the NumPy calls and little else. Two forms are compiled, when first needed: ``plain`` binds
results, ``merged`` keeps the old value of a register for lanes that are elsewhere and may still
read it. Registers that no segment reads before writing are local variables and never merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import values
from gpulab.emulator.flow import Flow, Segment, destinations, sources
from gpulab.emulator.ops.control import check_end
from gpulab.emulator.ops.registry import Env, Op, build
from gpulab.emulator.ptx.nodes import Imm, Instr, Negated, Operand, Reg, Sink, Special, Sym
from gpulab.errors import BuildError

SegmentFunction = Callable[[Any, list[Any], Any], Any]

_WIDTH = {"pred": "p"}


def register_kind(declared: str) -> str:
    """The unsigned kind of a register's width."""
    if declared == "pred":
        return "p"
    kind = values.kind_of(declared)
    return values.UNSIGNED[values.BYTES[kind]]


class Compiler:
    """Compiles the segments of one kernel; every instruction is resolved on construction.

    Raises:
        BuildError: an instruction that is not implemented, with its full text and source line.
    """

    def __init__(self, flow: Flow, registers: dict[str, str], env: Env) -> None:
        self.flow = flow
        self.env = env
        self.kinds = {name: register_kind(kind) for name, kind in registers.items()}
        self.numbers = {name: i for i, name in enumerate(registers)}
        self.ops: dict[Instr, Op] = {}
        for segment in flow.segments:
            for instr in segment.instrs:
                self.ops[instr] = build(instr, env)
            if segment.last is not None:
                check_end(segment.last)
        self.unset: dict[int, list[Any]] = {}
        self.cache: dict[tuple[int, bool, bool], SegmentFunction] = {}

    def initial_registers(self, bits: int) -> list[Any]:
        """Every register as before its first instruction, with these bits: ``values.UNSET``."""
        if bits not in self.unset:
            self.unset[bits] = [values.constant(bits, kind) for kind in self.kinds.values()]
        return list(self.unset[bits])

    def function(self, segment: Segment, merged: bool, observed: bool) -> SegmentFunction:
        """The compiled form of a segment; ``observed`` reports every instruction."""
        key = (segment.index, merged, observed)
        if key not in self.cache:
            self.cache[key] = _Writer(self, segment, merged, observed).compile()
        return self.cache[key]


class _Writer:
    def __init__(self, compiler: Compiler, segment: Segment, merged: bool, observed: bool) -> None:
        self.compiler = compiler
        self.segment = segment
        self.merged = merged
        self.observed = observed
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "merge": values.merge,
            "guard": values.guard,
            "truncated": values.truncated,
        }
        self.names |= {f"as_{kind}": function for kind, function in values.COERCE.items()}
        self.names |= {f"T{kind}": dtype for kind, dtype in values.DTYPE.items()}
        self.known: dict[str, str] = {}  # register -> kind of the variable that holds it
        self.constants: dict[tuple[int, str], str] = {}

    def compile(self) -> SegmentFunction:
        """The function, named after its place in the kernel."""
        segment = self.segment
        last_use = self._last_uses()
        for at, instr in enumerate(segment.instrs):
            self._instruction(instr)
            dead = [self._variable(name) for name in last_use.get(at, ()) if name in self.known]
            if dead:
                self.lines.append(" = ".join(dead) + " = None")
        self._end()
        text = "def segment(S, R, m):\n" + "".join(f"    {line}\n" for line in self.lines)
        name = f"<segment {segment.index} of {self.compiler.env.kernel.name}>"
        exec(compile(text, name, "exec"), self.names)
        function: SegmentFunction = self.names["segment"]
        return function

    def _last_uses(self) -> dict[int, list[str]]:
        """Instruction index to the registers that may be dropped after it."""
        segment, local = self.segment, self.compiler.flow.local
        tail = segment.last
        kept = set() if tail is None else {r.name for r in (*sources(tail), *destinations(tail))}
        last: dict[str, int] = {}
        for at, instr in enumerate(segment.instrs):
            for reg in (*sources(instr), *destinations(instr)):
                last[reg.name] = at
        found: dict[int, list[str]] = {}
        for name, at in last.items():
            if name in local and name not in kept:
                found.setdefault(at, []).append(name)
        return found

    def _variable(self, name: str) -> str:
        return f"v{self.compiler.numbers[name]}"

    def _constant(self, bits: int, kind: str) -> str:
        key = (bits, kind)
        if key not in self.constants:
            name = self.constants[key] = f"K{len(self.constants)}"
            self.names[name] = values.constant(bits, kind)
        return self.constants[key]

    def _read(self, operand: Operand, kind: str, instr: Instr) -> str:
        """An expression for ``operand`` viewed as ``kind``; '*' takes any kind."""
        if isinstance(operand, Negated):
            return f"(~{self._read(operand.reg, 'p', instr)})"
        if isinstance(operand, Reg):
            return self._read_register(operand.name, kind, instr)
        if isinstance(operand, Imm):
            bits = operand.bits
            if operand.float_bits == 64 and kind == "f32":
                bits = int(np.float32(values.constant(bits, "f64")[0, 0]).view("u4"))
            return self._constant(bits, self._plain_kind(kind, instr))
        if isinstance(operand, Sym):
            address = self.compiler.env.address(operand.name, instr) + operand.offset
            return self._constant(address, self._plain_kind(kind, instr))
        if isinstance(operand, Special):
            have = self.compiler.env.special(operand.name, instr)
            return self._cast(f"S.special({operand.name!r})", have, have, kind)
        raise BuildError(f"operand not understood: {instr.text}", text=instr.text)

    def _plain_kind(self, kind: str, instr: Instr) -> str:
        if kind != "*":
            return kind
        for word in reversed(instr.modifiers):
            if word in values._KIND:
                return values.kind_of(word)
        return "u32"

    def _read_register(self, name: str, kind: str, instr: Instr) -> str:
        width = self.compiler.kinds[name]
        variable = self._variable(name)
        if name not in self.known:
            self.lines.append(f"{variable} = R[{self.compiler.numbers[name]}]")
            self.known[name] = "?"
        return self._cast(variable, self.known[name], width, kind)

    def _cast(self, expression: str, known: str, width: str, kind: str) -> str:
        if kind in ("*", known):
            return expression
        if kind == "p" or width == "p":
            return expression
        if values.BYTES[width] > values.BYTES[kind]:
            return f"truncated({expression}, T{kind})"
        return f"as_{kind}({expression})"

    def _instruction(self, instr: Instr) -> None:
        op = self.compiler.ops[instr]
        number = len(self.names)
        call, here = f"F{number}", f"I{number}"
        self.names[call], self.names[here] = op.function, instr
        mask, indent = "m", ""
        if instr.guard is not None:
            sign = "~" if instr.guard_negated else ""
            self.lines.append(f"g = guard(m, {sign}{self._read(instr.guard, 'p', instr)})")
            mask = "g"
            for result in op.results:  # the old value must be at hand before the branch
                if isinstance(result, Reg):
                    self._read_register(result.name, "*", instr)
        inputs = [self._read(o, k, instr) for o, k in zip(op.sources, op.reads, strict=True)]
        if instr.guard is not None:
            self.lines.append("if g is not False:")
            indent = "    "
        if self.observed:
            self.lines.append(f"{indent}S.note({here}, {mask})")
        if op.context:
            inputs = ["S", here, mask, *inputs]
        expression = f"{call}({', '.join(inputs)})"
        if not op.results:
            self.lines.append(indent + expression)
            return
        single = len(op.results) == 1
        temporaries = [f"t{i}" for i in range(len(op.results))]
        self.lines.append(
            f"{indent}{temporaries[0] if single else ', '.join(temporaries)} = {expression}"
        )
        for temporary, result, kind in zip(temporaries, op.results, op.writes, strict=True):
            if isinstance(result, Reg):
                self._write(result.name, temporary, kind, instr, indent)

    def _write(self, name: str, value: str, kind: str, instr: Instr, indent: str) -> None:
        compiler = self.compiler
        width = compiler.kinds[name]
        if kind not in ("*", "p") and width != "p":
            if values.BYTES[kind] < values.BYTES[width]:
                wide = ("s" if kind[0] == "s" else "u") + width[1:]
                value, kind = f"{value}.astype(T{wide})", wide
            elif values.BYTES[kind] > values.BYTES[width]:
                raise BuildError(
                    f"the result is wider than its register: {instr.text}", text=instr.text
                )
        variable = self._variable(name)
        local = name in compiler.flow.local
        guarded = instr.guard is not None
        if guarded and not self.merged:
            value = f"{value} if g is None else merge(g, {value}, {variable})"
        elif guarded:
            value = f"merge(g, {value}, {variable})"
        elif self.merged and not local:
            value = f"merge(m, {value}, R[{compiler.numbers[name]}])"
        target = variable if local else f"{variable} = R[{compiler.numbers[name]}]"
        self.lines.append(f"{indent}{target} = {value}")
        merged = guarded or (self.merged and not local)
        self.known[name] = "?" if merged or kind == "*" else kind

    def _end(self) -> None:
        last = self.segment.last
        if last is None:
            self.lines.append("return None")
            return
        returned = []
        if last.guard is not None:
            sign = "~" if last.guard_negated else ""
            returned.append(f"{sign}{self._read(last.guard, 'p', last)}")
        else:
            returned.append("None")
        skip = len(destinations(last))
        for operand in last.operands[skip:]:
            if not isinstance(operand, Sink):
                kind = "u32"
                if isinstance(operand, Negated) or (
                    isinstance(operand, Reg) and self.compiler.kinds[operand.name] == "p"
                ):
                    kind = "p"
                returned.append(self._read(operand, kind, last))
        self.lines.append(f"return ({', '.join(returned)},)")
