"""Launch expressions: the small language in which a submission says how it is launched.

    expression: term (("+" | "-") term)*
    term:       factor (("*" | "//") factor)*
    factor:     integer | dim | "-" factor | "(" expression ")"
                | "ceil" "(" expression "/" expression ")"
                | ("min" | "max") "(" expression ("," expression)+ ")"

Nothing else is accepted, and nothing is ever executed: a parsed expression is a tree that is
evaluated over the dims of a case.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpulab.errors import UsageError

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(//|[-+*/(),]))")
_GRAMMAR = "integers, the exercise's dims, + - * // ( ) ceil(a/b) min() max()"
MAX_TEXT = 500
MAX_DEPTH = 40
MAX_VALUE = 1 << 62


@dataclass(frozen=True)
class Where:
    """Where an expression stands, for messages.

    Args:
        file: its name.
        line: 1-based; the line's own text is ``text``.
        text: the source line.
        column: 0-based column of the expression's first character in ``text``.
    """

    file: str
    line: int
    text: str
    column: int

    def error(self, message: str, at: int = 0, fix: str | None = None) -> UsageError:
        """The error that points at character ``at`` of the expression."""
        column = self.column + at
        shown = self.text[:MAX_TEXT].replace("\t", " ")
        return UsageError(
            f"{self.file}:{self.line}:{column + 1}: {message}\n  {shown}\n  {' ' * column}^",
            fix=fix,
            file=self.file,
            line=self.line,
            column=column + 1,
        )


Node = Callable[[Mapping[str, int]], int]


@dataclass(frozen=True)
class Expression:
    """A parsed expression."""

    text: str
    where: Where
    evaluate: Node

    def __call__(self, dims: Mapping[str, int]) -> int:
        """Its value at these dims.

        Raises:
            UsageError: division by zero, or a value that no launch has.
        """
        value = self.evaluate(dims)
        if not -MAX_VALUE < value < MAX_VALUE:
            raise self.where.error(f"{self.text} is far too large")
        return value


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str, names: Sequence[str], where: Where) -> None:
        self.text, self.names, self.where = text, names, where
        if len(text) > MAX_TEXT:
            raise where.error(f"an expression of more than {MAX_TEXT} characters")
        self.tokens: list[tuple[str, int]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                what = text[start]
                message = f"{what!r} is not part of a launch expression"
                raise where.error(message, start, f"use {_GRAMMAR}")
            at = match.end()
            self.tokens.append((match[match.lastindex or 0], match.start(match.lastindex or 0)))
        self.tokens.append(("", len(text.rstrip())))
        self.at = self.depth = 0

    @property
    def token(self) -> str:
        return self.tokens[self.at][0]

    @property
    def place(self) -> int:
        return self.tokens[self.at][1]

    def take(self, expected: str | None = None) -> str:
        token, place = self.tokens[self.at]
        if expected is not None and token != expected:
            found = f"{token!r}" if token else "the end"
            raise self.where.error(f"expected {expected!r}, found {found}", place)
        self.at += 1
        return token

    def whole(self) -> list[tuple[str, int, Node]]:
        """Expressions separated by commas: (text, start, node)."""
        found = []
        while True:
            start = self.place
            node = self.expression()
            found.append((self.text[start : self.place].strip(), start, node))
            if self.token != ",":
                break
            self.take(",")
        if self.token:
            hint = "division is only ceil(a/b) or a//b" if self.token == "/" else f"use {_GRAMMAR}"
            raise self.where.error(f"unexpected {self.token!r}", self.place, hint)
        return found

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.where.error(f"nested more than {MAX_DEPTH} deep", self.place)
        node = self.term()
        while self.token in ("+", "-"):
            node = _binary(self.take(), node, self.term())
        self.depth -= 1
        return node

    def term(self) -> Node:
        node = self.factor()
        while self.token in ("*", "//"):
            place, operator = self.place, self.take()
            right = self.factor()
            node = _binary("*", node, right) if operator == "*" else self._floor(node, right, place)
        return node

    def factor(self) -> Node:
        token, place = self.token, self.place
        if token == "-":
            signs = 0
            while self.token == "-":
                self.take()
                signs += 1
            inner = self.factor()
            return inner if signs % 2 == 0 else (lambda dims: -inner(dims))
        if token == "(":
            self.take()
            node = self.expression()
            self.take(")")
            return node
        if token.isdigit():
            if len(token) > 18:
                raise self.where.error("a number of more than 18 digits", place)
            value = int(self.take())
            return lambda dims: value
        if token == "ceil":
            return self._ceil()
        if token in ("min", "max"):
            return self._extreme()
        if token in self.names:
            self.take()
            return lambda dims: dims[token]
        if re.match(r"[A-Za-z_]", token):
            near = difflib.get_close_matches(token.lower(), self.names, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            fix = f"{hint}the dims are {', '.join(self.names)}; constants are written as numbers"
            raise self.where.error(f"unknown name {token!r}", place, fix)
        found = f"{token!r}" if token else "the end"
        raise self.where.error(f"expected a number, a dim or '(', found {found}", place)

    def _ceil(self) -> Node:
        place = self.place
        self.take("ceil")
        self.take("(")
        above = self.expression()
        self.take("/")
        below = self.expression()
        self.take(")")
        down = self._floor(lambda dims: -above(dims), below, place)
        return lambda dims: -down(dims)

    def _extreme(self) -> Node:
        choose: Callable[[Sequence[int]], int] = min if self.take() == "min" else max
        self.take("(")
        nodes = [self.expression()]
        while self.token == ",":
            self.take()
            nodes.append(self.expression())
        self.take(")")
        return lambda dims: choose([node(dims) for node in nodes])

    def _floor(self, above: Node, below: Node, place: int) -> Node:
        def divide(dims: Mapping[str, int]) -> int:
            divisor = below(dims)
            if divisor == 0:
                raise self.where.error("division by zero", place, "divide by at least 1")
            return above(dims) // divisor

        return divide


def _binary(operator: str, left: Node, right: Node) -> Node:
    if operator == "+":
        return lambda dims: left(dims) + right(dims)
    if operator == "-":
        return lambda dims: left(dims) - right(dims)
    return lambda dims: left(dims) * right(dims)


def parse_list(
    text: str, names: Sequence[str], where: Where, most: int = 3
) -> tuple[Expression, ...]:
    """One to ``most`` expressions separated by commas.

    Args:
        text: the source.
        names: dims that may be used.
        where: its place, for messages.
        most: how many may be given.

    Raises:
        UsageError: anything that the grammar does not have; shows the column.
    """
    if not text.strip():
        raise where.error("an empty launch expression")
    found = _Parser(text, names, where).whole()
    if len(found) > most:
        raise where.error(f"{len(found)} values, at most {most}", found[most][1])
    places = [
        Where(where.file, where.line, where.text, where.column + start) for _, start, _ in found
    ]
    return tuple(
        Expression(source, place, node)
        for (source, _, node), place in zip(found, places, strict=True)
    )
