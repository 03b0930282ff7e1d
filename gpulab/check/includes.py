"""Which files a CUDA submission may include: the CUDA headers and nothing else.

A compiler reads whatever file an ``#include`` names and prints lines of it in its messages. Every
include directive of a submission must therefore name, literally, a path that is relative, stays
below the header folders and exists there.

A directive has only blanks and whole comments before it on its line. What follows other text on its
line, as in a line comment or in a text literal, is none however the lines above it are read. At the
start of a line inside of a comment of several lines it looks like one: there the compiler is given
the text without the ``#``, which changes nothing in a comment. So the reading of comments here
decides no refusal that the compiler could read otherwise. What is written at the start of a line of
a raw literal counts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpulab.errors import BuildError

_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\v\f]*\r?\n")
"""Compilers differ on all but a backslash right before the end of a line."""
_GAP = r"(?:[^\S\n]|\x00|/\*(?:(?!\*/)(?s:.))*\*/)*"
_MARK = re.compile(r"#|%:|\?\?=")
_DIRECTIVE = re.compile(
    rf"{_GAP}(?P<word>include_next|include|import|embed)\b{_GAP}"
    r'(?:"(?P<quoted>[^"\n]*)"|<(?P<angled>[^>\n]*)>|(?P<other>[^\n]*))'
)
_PROBE = re.compile(r"\b__has_(?:include|include_next|embed)\b")
_BREAK = re.compile(r"[\r\v\f]|\*/")
_SOLID = re.compile(r"[!-\[\]-~]")
"""What no compiler takes for a blank or a part of a splice."""
_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r'|(?:u8|[uUL])?R"(?P<end>[^ ()\\\s]{0,16})\(.*?(?:\)(?P=end)"|\Z)'
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'(?:\\.|[^'\\\n])*'?"
    r"|\.?[0-9](?:'?[\w.])*|[\w$]+",
    re.DOTALL,
)
_HOST = {
    "stdio.h": "printf needs no include in device code",
    "cstdio": "printf needs no include in device code",
    "assert.h": "assert needs no include in device code",
    "cassert": "assert needs no include in device code",
    "math.h": "the math functions, INFINITY and NAN need no include in device code",
    "cmath": "the math functions, INFINITY and NAN need no include in device code",
    "float.h": "FLT_MAX, FLT_MIN and FLT_EPSILON are defined without it",
    "cfloat": "FLT_MAX, FLT_MIN and FLT_EPSILON are defined without it",
    "limits.h": "INT_MAX and INT_MIN are defined without it",
    "climits": "INT_MAX and INT_MIN are defined without it",
    "stdint.h": "use int, unsigned and long long",
    "cstdint": "use int, unsigned and long long",
    **dict.fromkeys(
        (
            "torch/extension.h",
            "iostream",
            "vector",
            "string",
            "stdlib.h",
            "cstdlib",
            "chrono",
            "random",
            "algorithm",
            "time.h",
            "cublas_v2.h",
        ),
        "submit the kernel alone: the checker allocates, launches and compares",
    ),
}


@dataclass(frozen=True)
class _Flat:
    """A text without its line splices.

    Attributes:
        text: what is left.
        source: what it was made of.
        starts: where each piece between two splices starts in ``text``.
        origins: where it starts in ``source``.
        weak: the starts that another compiler may take for starts of lines.
    """

    text: str
    source: str
    starts: list[int]
    origins: list[int]
    weak: list[int]

    def origin(self, at: int) -> int:
        """Where in the source a character of the text is."""
        piece = bisect_right(self.starts, at) - 1
        return self.origins[piece] + at - self.starts[piece]

    def line(self, at: int) -> int:
        """The source's line, from 1."""
        return self.source.count("\n", 0, self.origin(at)) + 1

    def may_start(self, at: int) -> bool:
        """Whether a directive may start here: all before it may be blanks and whole comments."""
        line = self.text.rfind("\n", 0, at) + 1
        after = [line, *(found.end() for found in _BREAK.finditer(self.text, line, at))]
        if (joined := bisect_right(self.weak, at)) > 0:
            after.append(self.weak[joined - 1])
        return _SOLID.search(self.text, max(after), at) is None

    def directives(self) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
        """Whatever may be one that names a file: its mark and the rest."""
        for mark in _MARK.finditer(self.text):
            if self.may_start(mark.start()):
                rest = _DIRECTIVE.match(self.text, mark.end())
                if rest is not None:
                    yield mark, rest


def check(text: str, name: str, folders: Sequence[Path]) -> str:
    """Refuse any include that is not a CUDA header.

    Args:
        text: the submission.
        name: its file name, for messages.
        folders: of the CUDA headers.

    Returns:
        The text to compile: the submission without the marks of what its comments leave out.

    Raises:
        BuildError: names the line and the include.
    """
    text = _muted(_unspliced(text))
    flat = _unspliced(text)
    for mark, match in flat.directives():
        line, word = flat.line(mark.start()), match["word"]
        target = match["quoted"] if match["quoted"] is not None else match["angled"]
        if target is None:
            other = f"#{word} {match['other']}".strip()
            raise _refusal(name, line, f"{other[:80]}: names its file through a macro")
        path = PurePosixPath(target.replace("\\", "/"))
        outside = path.is_absolute() or ".." in path.parts or target != target.strip()
        if outside or word != "include" or not any((f / path).is_file() for f in folders):
            raise _refusal(name, line, f"#{word} {target[:80]}: not a CUDA header", target)
    if probe := _PROBE.search(flat.text):
        line = flat.line(probe.start())
        raise _refusal(name, line, f"{probe[0]}: a submission may not look for files")
    return text


def _muted(flat: _Flat) -> str:
    """The source with blanks for the marks of directives, and the start of probes, in comments."""
    comments = [m.span() for m in _TOKEN.finditer(flat.text) if m["comment"] is not None]
    firsts = [first for first, _ in comments]
    marks = [(*mark.span(), "/*") for mark, _ in flat.directives()]
    marks += [(m.start(), m.start() + 2, "/") for m in _PROBE.finditer(flat.text)]
    source = list(flat.source)
    for start, end, opening in marks:
        first, last = comments[bisect_right(firsts, start) - 1] if comments else (0, 0)
        if first < start and end <= last and flat.text.startswith(opening, first):
            for at in range(start, end):
                source[flat.origin(at)] = " "
    return "".join(source)


def _unspliced(source: str) -> _Flat:
    pieces, starts, origins, weak = [], [0], [0], []
    at = length = 0
    for match in _SPLICE.finditer(source):
        pieces.append(source[at : match.start()])
        length += len(pieces[-1])
        at = match.end()
        starts.append(length)
        origins.append(at)
        if match[0] != "\\\n":
            weak.append(length)
    pieces.append(source[at:])
    return _Flat("".join(pieces), source, starts, origins, weak)


def _refusal(name: str, line: int, message: str, target: str = "") -> BuildError:
    fix = "only headers of CUDA may be included, by name: #include <cuda_fp16.h>"
    text = f"{name}:{line}: {message}"
    fix = f"delete the line, also where #if leaves it out: {_HOST.get(target, fix)}"
    return BuildError(text, fix=fix, file=name, line=line, log=text)
