"""PTX text to tokens with line numbers."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpulab.errors import BuildError


class Token(NamedTuple):
    """One token: its text, its line (from 1) and its place in the text."""

    text: str
    line: int
    start: int
    end: int


_TOKEN = re.compile(
    r"""(?P<newline>\n)
      | (?P<blank>[ \t\r]+|//[^\n]*)
      | (?P<comment>/\*.*?\*/)
      | (?P<string>"[^"\n]*")
      | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b
                |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
      | (?P<name>[%$A-Za-z_][\w$]*(?:\.[\w]+(?:::[\w]+)*)*(?:::[\w.]+)*)
      | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
      | (?P<mark>[\[\](){},;:+\-=<>@!|*&~])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str) -> list[Token]:
    """All tokens of ``text``; comments and white space are dropped.

    Raises:
        BuildError: a character that no PTX token starts with, with its line.
    """
    tokens: list[Token] = []
    line, position, size = 1, 0, len(text)
    match = _TOKEN.match
    while position < size:
        found = match(text, position)
        if found is None:
            if text[position] == "\0":
                break
            raise BuildError(
                f"PTX line {line}: unexpected {text[position]!r}", ptx_line=line, stage="parse"
            )
        kind, end = found.lastgroup, found.end()
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += found.group().count("\n")
        elif kind != "blank":
            tokens.append(Token(found.group(), line, position, end))
        position = end
    return tokens
