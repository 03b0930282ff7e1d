"""Function bodies: scopes, declarations, labels, instructions and calls."""

from __future__ import annotations

import re
from dataclasses import replace

from gpulab.arch import WARP_SIZE
from gpulab.emulator.ptx.cursor import Cursor, is_number
from gpulab.emulator.ptx.nodes import (
    TYPE_BYTES,
    CallSite,
    Function,
    Imm,
    Instr,
    Label,
    Location,
    Mem,
    Negated,
    Operand,
    Reg,
    Sink,
    Special,
    Sym,
    Vec,
)
from gpulab.emulator.ptx.variables import parse_variables

_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\b")
_INLINED = re.compile(r"\binlined_at (\d+) (\d+)")


class _Scope:
    """Names declared between two braces, mapped to names unique in the function."""

    def __init__(self, number: int, parent: _Scope | None) -> None:
        self.number = number
        self.parent = parent
        self.names: dict[str, str] = {}
        self.labels: dict[str, str] = {}

    def declare(self, name: str) -> str:
        unique = name if self.parent is None else f"{name}#{self.number}"
        self.names[name] = unique
        return unique

    def find(self, name: str) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def find_label(self, name: str) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None


class BodyParser:
    """Parses one ``{ ... }`` into ``function``; labels are resolved at the end."""

    def __init__(self, cursor: Cursor, function: Function, files: dict[str, str]) -> None:
        self.cursor = cursor
        self.function = function
        self.files = files
        self.scopes = 0
        self.scope = _Scope(0, None)
        self.location: Location | None = None
        self.locations: dict[str, Location | None] = {}
        self.body: list[Instr | Label] = []
        self.pending: list[tuple[int, tuple[str, ...], _Scope]] = []
        self.tables: dict[str, tuple[tuple[str, ...], _Scope]] = {}
        for variable in (*function.params, *function.results):
            self.scope.declare(variable.name)
            function.variables[variable.name] = variable

    def parse(self) -> None:
        """Parse to the closing brace and fill ``function.body``."""
        self.cursor.expect("{")
        depth = 1
        while depth:
            word = self.cursor.peek()
            if word == "{":
                self.cursor.take()
                self.scopes += 1
                self.scope = _Scope(self.scopes, self.scope)
                depth += 1
            elif word == "}":
                self.cursor.take()
                depth -= 1
                if self.scope.parent is not None:
                    self.scope = self.scope.parent
            else:
                self._statement(word)
        for at, names, scope in self.pending:
            old = self.body[at]
            assert isinstance(old, Instr)
            targets = tuple(t for n in names for t in self._targets(n, scope, old.ptx_line))
            self.body[at] = replace(old, targets=targets)
        self.function.body = self.body

    def _targets(self, name: str, scope: _Scope, line: int) -> tuple[str, ...]:
        if name in self.tables:
            names, scope = self.tables[name]
            return tuple(t for n in names for t in self._targets(n, scope, line))
        found = scope.find_label(name)
        if found is None:
            self.cursor.fail(f"branch to an unknown label {name}", line)
        return (found,)

    def _statement(self, word: str) -> None:
        cursor = self.cursor
        if word.startswith((".loc ", ".loc\t")):
            cursor.take()
            self._loc(word)
        elif word == ".reg":
            cursor.take()
            self._registers()
        elif word in (".param", ".local", ".shared"):
            cursor.take()
            for variable in parse_variables(cursor, word[1:]):
                unique = self.scope.declare(variable.name)
                self.function.variables[unique] = replace(variable, name=unique)
            cursor.expect(";")
        elif word == ".pragma":
            cursor.take()
            while not cursor.accept(";"):
                cursor.take()
        elif word == ";":
            cursor.take()
        elif cursor.peek(1) == ":":
            self._label()
        elif word.startswith("."):
            cursor.fail(f"unknown directive {word} in a function")
        else:
            self._instruction()

    def _loc(self, text: str) -> None:
        if text not in self.locations:
            found = _LOC.match(text)
            if found is None:
                self.cursor.fail(f"this is no source line: {text}")
            chain = tuple(self._place(*pair) for pair in _INLINED.findall(text))
            place = self._place(*found.groups())
            # Line 0 is "no line": the compiler's own code. The last known one is kept.
            self.locations[text] = Location(*place, chain) if place[1] else None
        self.location = self.locations[text] or self.location
        if self.function.location is None:
            self.function.location = self.location

    def _place(self, file: str, line: str) -> tuple[str, int]:
        return self.files.get(file, "?"), int(line)

    def _registers(self) -> None:
        cursor = self.cursor
        kind = cursor.take()[1:]
        if kind not in TYPE_BYTES:
            cursor.fail(f"registers of type .{kind} are not supported")
        while True:
            name = cursor.take()
            names = [name]
            if cursor.accept("<"):
                names = [f"{name}{i}" for i in range(cursor.integer())]
                cursor.expect(">")
            for each in names:
                self.function.registers[self.scope.declare(each)] = kind
            if not cursor.accept(","):
                break
        cursor.expect(";")

    def _label(self) -> None:
        cursor = self.cursor
        name = cursor.take()
        cursor.expect(":")
        if cursor.peek() == ".branchtargets":
            cursor.take()
            names = [cursor.take()]
            while cursor.accept(","):
                names.append(cursor.take())
            cursor.expect(";")
            self.tables[name] = (tuple(names), self.scope)
        elif cursor.peek() in (".callprototype", ".calltargets"):
            while not cursor.accept(";"):
                cursor.take()
        else:
            unique = name if self.scope.parent is None else f"{name}#{self.scope.number}"
            self.scope.labels[name] = unique
            self.body.append(Label(unique))

    def _instruction(self) -> None:
        cursor = self.cursor
        first = cursor.at
        guard, negated = None, False
        if cursor.accept("@"):
            negated = cursor.accept("!")
            guard = Reg(self._name(cursor.take()))
        opcode = cursor.take()
        base = opcode.partition(".")[0]
        call: CallSite | None = None
        targets: tuple[str, ...] = ()
        operands: tuple[Operand, ...] = ()
        if base == "call":
            call = self._call()
        elif base in ("bra", "brx"):
            operands, targets = self._branch(base)
        else:
            operands = self._operands(";")
        cursor.expect(";")
        if targets:
            self.pending.append((len(self.body), targets, self.scope))
        self.body.append(
            Instr(
                opcode,
                operands,
                guard,
                negated,
                self.location,
                cursor.lines[first],
                cursor.since(first),
                call=call,
            )
        )

    def _branch(self, base: str) -> tuple[tuple[Operand, ...], tuple[str, ...]]:
        cursor = self.cursor
        if base == "bra":
            return (), (cursor.take(),)
        index = self._operand()
        cursor.expect(",")
        return (index,), (cursor.take(),)

    def _call(self) -> CallSite:
        cursor = self.cursor
        results: tuple[Operand, ...] = ()
        arguments: tuple[Operand, ...] = ()
        prototype = None
        if cursor.accept("("):
            results = self._operands(")")
            cursor.expect(")")
            cursor.expect(",")
        name = cursor.take()
        callee = Reg(self._name(name)) if name.startswith("%") else Sym(name)
        if cursor.accept(","):
            cursor.expect("(")
            arguments = self._operands(")")
            cursor.expect(")")
        if cursor.accept(","):
            prototype = cursor.take()
        return CallSite(callee, results, arguments, prototype)

    def _operands(self, end: str) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while self.cursor.peek() != end:
            found.append(self._operand())
            if self.cursor.accept("|"):
                found[-1] = Vec((found[-1], self._operand()), pair=True)
            if not self.cursor.accept(","):
                break
        return tuple(found)

    def _name(self, name: str) -> str:
        found = self.scope.find(name)
        if found is None:
            self.cursor.fail(f"{name} is not declared")
        return found

    def _operand(self) -> Operand:
        cursor = self.cursor
        word = cursor.take()
        if word == "[":
            inner = self._operand()
            offset = 0
            if isinstance(inner, Sym):
                inner, offset = Sym(inner.name), inner.offset
            elif cursor.peek() in ("+", "-"):
                cursor.accept("+")
                offset = cursor.integer()
            place: tuple[Operand, ...] = ()
            if cursor.accept(","):
                cursor.expect("{")
                place = self._operands("}")
                cursor.expect("}")
            cursor.expect("]")
            if not isinstance(inner, Reg | Sym | Imm):
                cursor.fail("this address form is not supported")
            return Mem(inner, offset, place)
        if word == "{":
            items = self._operands("}")
            cursor.expect("}")
            return Vec(items)
        if word == "!":
            return Negated(Reg(self._name(cursor.take())))
        if word == "-":
            return cursor.literal(cursor.take(), negative=True)
        if is_number(word):
            return cursor.literal(word)
        if word == "_":
            return Sink()
        if word == "WARP_SZ":  # a constant of PTX, which shuffles of halves use
            return Imm(WARP_SIZE)
        found = self.scope.find(word)
        if found is not None and found in self.function.registers:
            return Reg(found)
        if word.startswith("%"):
            return Special(word)
        if not (word[0].isalpha() or word[0] in "_$"):
            cursor.fail(f"unexpected {word!r} in an operand")
        offset = 0
        if cursor.peek() in ("+", "-") and cursor.peek(1)[:1] in "-0123456789":
            cursor.accept("+")
            offset = cursor.integer()
        return Sym(found or word, offset)
