"""A walk over tokens with the checks every parsing step needs, and literal values."""

from __future__ import annotations

import struct
from typing import Literal, NoReturn

from gpulab.emulator.ptx.lexer import tokenize
from gpulab.emulator.ptx.nodes import Imm
from gpulab.errors import BuildError


class Cursor:
    """Tokens with a position; ``text`` is the PTX they came from."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words, self.lines, self.starts = tokenize(text)
        self.size = len(self.words)
        self.words += ["", ""]  # what one and two places beyond the end show
        self.at = 0

    @property
    def done(self) -> bool:
        """Whether every token was taken."""
        return self.at >= self.size

    def peek(self, ahead: Literal[0, 1] = 0) -> str:
        """The text of the next token (or of the one after it); empty at the end."""
        return self.words[self.at + ahead]

    def take(self) -> str:
        """Take one token."""
        if self.at >= self.size:
            self.fail("the text ends in the middle of a statement")
        self.at += 1
        return self.words[self.at - 1]

    def accept(self, text: str) -> bool:
        """Take the next token if it is ``text``."""
        if self.words[self.at] == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Take ``text`` or fail."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, got {self.peek()!r}")

    def rest_of_line(self) -> list[str]:
        """Take the tokens up to the end of the line of the last taken token."""
        line, start = self.lines[self.at - 1], self.at
        while not self.done and self.lines[self.at] == line:
            self.at += 1
        return self.words[start : self.at]

    def since(self, start: int) -> str:
        """The text from token number ``start`` to the last one taken, in one line."""
        last = self.at - 1
        text = self.text[self.starts[start] : self.starts[last] + len(self.words[last])]
        return " ".join(text.split())

    def integer(self) -> int:
        """Take a (possibly negative) integer literal."""
        sign = -1 if self.accept("-") else 1
        try:
            return sign * parse_integer(self.take())
        except ValueError:
            self.at -= 1
            self.fail(f"expected a number, got {self.peek()!r}")

    def literal(self, text: str, negative: bool = False) -> Imm:
        """The bits of ``text``, the token that was taken last."""
        try:
            return parse_literal(text, negative)
        except ValueError:
            self.at -= 1
            self.fail(f"expected a literal, got {text!r}")

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        """Stop with a PTX line (the next token's unless told) and its text.

        Raises:
            BuildError: always.
        """
        if line is None:
            line = self.lines[min(self.at, self.size - 1)] if self.size else 0
        shown = self.text.splitlines()[line - 1].strip() if line else ""
        raise BuildError(
            f"PTX line {line}: {message}: {shown}", ptx_line=line, text=shown, stage="parse"
        )


def parse_integer(text: str) -> int:
    """``17``, ``0x1f``, ``0b101``, ``017`` (octal), each with an optional ``U``."""
    text = text.rstrip("U")
    if text[:2] in ("0x", "0X", "0b", "0B"):
        return int(text, 0)
    if len(text) > 1 and text[0] == "0":
        return int(text, 8)
    return int(text)


def is_number(text: str) -> bool:
    """Whether a token is a literal."""
    return bool(text) and text[0].isdigit()


def parse_literal(text: str, negative: bool = False) -> Imm:
    """A literal token as bits; decimal floats are float64, as PTX has them."""
    if text[:2] in ("0f", "0F") and len(text) == 10:
        return Imm(int(text[2:], 16) ^ (0x80000000 if negative else 0), 32)
    if text[:2] in ("0d", "0D") and len(text) == 18:
        return Imm(int(text[2:], 16) ^ (1 << 63 if negative else 0), 64)
    if text[:2] not in ("0x", "0X") and ("." in text or "e" in text or "E" in text):
        value = -float(text) if negative else float(text)
        return Imm(struct.unpack("<Q", struct.pack("<d", value))[0], 64)
    value_int = parse_integer(text)
    return Imm(-value_int if negative else value_int)
