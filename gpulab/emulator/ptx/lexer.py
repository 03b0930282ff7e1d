"""PTX text to tokens with line numbers."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpulab.errors import BuildError


class Tokens(NamedTuple):
    """Tokens in order: each one's text, its line (from 1) and where it starts in the text."""

    texts: list[str]
    lines: list[int]
    starts: list[int]


_TOKEN = re.compile(
    r"""[ \t\r]*
      (?:
        ( \.loc\b[^\n]*                                 # one token: half of a text is line numbers
        | "[^"\n]*"
        | 0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b
        | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+
        | 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U? | \d+U?
        | [%$A-Za-z_][\w$]*(?:\.\w+(?:::\w+)*)*(?:::[\w.]+)*
        | (?!\.section\b)\.[A-Za-z_]\w*(?:::\w+)*
        | [\[\](){},;:+\-=<>@!|*&~]
        )
      | ( \n | //[^\n]* | /\*.*?\*/ | \.section\b[^{]*\{[^}]*\} )  # debug sections: of no use
      | ( \Z | . )
      )
    """,
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str) -> Tokens:
    """All tokens of ``text``; white space, comments and debug sections are dropped.

    Raises:
        BuildError: a character that no PTX token starts with, with its line.
    """
    texts: list[str] = []
    lines: list[int] = []
    starts: list[int] = []
    line = 1
    for found in _TOKEN.finditer(text):
        kind = found.lastindex
        if kind == 1:
            texts.append(found[1])
            lines.append(line)
            starts.append(found.start(1))
        elif kind == 2:
            line += found[2].count("\n")
        elif found[3] in ("", "\0"):
            break
        else:
            raise BuildError(
                f"PTX line {line}: unexpected {found[3]!r}", ptx_line=line, stage="parse"
            )
    return Tokens(texts, lines, starts)
