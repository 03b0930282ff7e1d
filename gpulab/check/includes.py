"""Which files a CUDA submission may include: the CUDA headers and nothing else.

A compiler reads whatever file an ``#include`` names and prints lines of it in its messages. Every
include directive of a submission must therefore name, literally, a path that is relative, stays
below the header folders and exists there. Directives are looked for in the text after line
splices were removed, and in comments too: no difference between this reading and the compiler's
can hide one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from gpulab.errors import BuildError

_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_GAP = r"(?:[ \t\v\f]|/\*(?s:.*?)\*/)*"
_DIRECTIVE = re.compile(
    rf"(?:\#|%:|\?\?=){_GAP}(?P<word>include_next|include|import|embed)\b{_GAP}"
    r'(?:"(?P<quoted>[^"\n]*)"|<(?P<angled>[^>\n]*)>|(?P<other>[^\n]*))'
)
_PROBE = re.compile(r"\b__has_(?:include|include_next|embed)\b")
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
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


def check(text: str, name: str, folders: Sequence[Path]) -> None:
    """Refuse any include that is not a CUDA header.

    Args:
        text: the submission.
        name: its file name, for messages.
        folders: of the CUDA headers.

    Raises:
        BuildError: names the line and the include.
    """
    flat, lines = _unspliced(text)
    comments = [m.span() for m in _COMMENT.finditer(flat) if m[0].startswith("/")]
    for match in _DIRECTIVE.finditer(flat):
        line = lines[flat.count("\n", 0, match.start())]
        commented = any(start <= match.start() < end for start, end in comments)
        target = match["quoted"] if match["quoted"] is not None else match["angled"]
        if target is None:
            before = flat[flat.rfind("\n", 0, match.start()) + 1 : match.start()].lstrip()
            if not before.startswith("//") or "*/" in before:  # cannot be a directive otherwise
                other = f"#{match['word']} {match['other']}".strip()
                raise _refusal(name, line, f"{other[:80]}: names its file through a macro")
            continue
        path = PurePosixPath(target.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or target != target.strip():
            raise _refusal(name, line, f"#{match['word']} {target[:80]}: not a CUDA header")
        if commented:
            continue
        if match["word"] != "include" or not any((f / path).is_file() for f in folders):
            raise _refusal(name, line, f"#{match['word']} {target[:80]}: not a CUDA header", target)
    for match in _PROBE.finditer(flat):
        if not any(start <= match.start() < end for start, end in comments):
            line = lines[flat.count("\n", 0, match.start())]
            raise _refusal(name, line, f"{match[0]}: a submission may not look for files")


def _unspliced(text: str) -> tuple[str, list[int]]:
    """The text without line splices, and for each of its lines the original line number."""
    flat, numbers, line = [], [1], 1
    at = 0
    for match in _SPLICE.finditer(text):
        part = text[at : match.start()]
        for _ in range(part.count("\n")):
            line += 1
            numbers.append(line)
        flat.append(part)
        line += 1
        at = match.end()
    for _ in range(text[at:].count("\n")):
        line += 1
        numbers.append(line)
    flat.append(text[at:])
    return "".join(flat), numbers


def _refusal(name: str, line: int, message: str, target: str = "") -> BuildError:
    fix = _HOST.get(target, "include only headers of CUDA, by name: #include <cuda_fp16.h>")
    if target in _HOST:
        fix = f"remove the line: {fix}"
    text = f"{name}:{line}: {message}"
    return BuildError(text, fix=fix, file=name, line=line, log=text)
