"""Source lines of compiled instructions, read from the ``.loc`` lines of the PTX.

An instruction has a chain of places: the line it was written on, the line that line's function was
inlined at, and so on to the kernel itself. A .loc names one step of it, and a step is written once:
where a function is inlined at several lines, several chains are possible.

Numba gives inlined functions the file name of the kernel, with their own line numbers. The
functions that the kernel can reach are known, so the file is found again: it is one that has code
on that line which can have become the instruction, the kernel's own where several have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import gpulab
from gpulab.runtime import sources
from gpulab.runtime.assembly import Code

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_LOC = re.compile(
    r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?", re.MULTILINE
)
WRAPPERS = ("ptx/", "common/formats.cuh", "common/pack.cuh", "attention/half.cuh")
"""Files that wrap one instruction or one conversion: the line that uses them says more."""
_DEEPEST, _MOST = 12, 12
_FAR = 1 << 30


@dataclass(frozen=True, order=True)
class Place:
    """A line of a source file.

    Args:
        file: relative to the folder of device code, or to that of the package.
        line: from 1.
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def text(self) -> str:
        """The line itself, without its indentation; empty where the file is not at hand."""
        for folder in _folders():
            if (folder / self.file).is_file():
                lines = _lines(folder / self.file)
                return lines[self.line - 1].strip() if self.line <= len(lines) else ""
        return ""


Chain = tuple[Place, ...]
"""Innermost first."""


def _folders() -> tuple[Path, ...]:
    return sources.root(), Path(gpulab.__file__).parent


@lru_cache(maxsize=64)
def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def shown(path: str) -> str:
    """A path as places name it."""
    for folder in _folders():
        if Path(path).is_relative_to(folder):
            return Path(path).relative_to(folder).as_posix()
    return Path(path).name


def chains(code: Code) -> dict[int, tuple[Chain, ...]]:
    """PTX line -> the chains its instruction may have, the likeliest first; behind a .loc."""
    names = {int(n): shown(path) for n, path in _FILE.findall(code.ptx)}
    locate = _python_files(code.numba.function) if code.numba is not None else None
    parents: dict[_Point, list[_Point]] = {}
    found: dict[int, tuple[Chain, ...]] = {}
    current: tuple[Chain, ...] = ()
    for number, text in enumerate(code.ptx.splitlines(), 1):
        loc = _LOC.match(text)
        if loc is None:
            found[number] = current
            if locate is not None and current:
                first, *outer = current[0]
                found[number] = ((locate(first, text), *outer),)
            continue
        if int(loc[2]) == 0:  # the compiler's own code: the last known line stays
            continue
        here, outer_point = (loc[1], loc[2], loc[3]), (loc[4], loc[5], loc[6])
        if loc[4] is not None:
            known = parents.setdefault(here, [])
            if outer_point in known:
                known.remove(outer_point)
            known.insert(0, outer_point)  # the latest is the likeliest
        current = tuple(
            tuple(Place(names.get(int(file), "?"), int(line)) for file, line, _ in way)
            for way in _ways(here, outer_point if loc[4] is not None else None, parents)
        )
    return found


_Point = tuple[str, str, str]
"""File number, line and column."""


def _ways(
    here: _Point, outer: _Point | None, parents: dict[_Point, list[_Point]]
) -> list[tuple[_Point, ...]]:
    """The chains that begin with ``here``, inlined at ``outer``."""
    if outer is None:
        return [(here,)]
    done: list[tuple[_Point, ...]] = []
    todo: list[tuple[_Point, ...]] = [(here, outer)]
    while todo and len(done) < _MOST:
        way = todo.pop(0)
        further = [p for p in parents.get(way[-1], ()) if p not in way]
        if not further or len(way) >= _DEEPEST:
            done.append(way)
        todo += [(*way, p) for p in further] if len(way) < _DEEPEST else []
    return done


def nearest(choices: tuple[Chain, ...], to: Chain) -> Chain:
    """Of the chains an instruction may have, the one most like that of what made its number.

    That is the one whose telling line is nearest to the other's, where both are in one file and
    behind it rather than before; then the one with the most outer lines in common; then the
    shortest.
    """
    made = telling(to)

    def unlike(chain: Chain) -> tuple[int, int, int]:
        same, line = 0, telling(chain)
        while same < min(len(chain), len(to)) and chain[-1 - same] == to[-1 - same]:
            same += 1
        apart = _FAR
        if made is not None and line is not None and made.file == line.file:
            apart = 2 * abs(made.line - line.line) + (line < made)
        return apart, -same, len(chain)

    return min(choices, key=unlike, default=())


def telling(chain: Chain) -> Place | None:
    """The innermost place outside the wrappers; the innermost of all where there is none."""
    for place in chain:
        if not place.file.startswith(WRAPPERS) and "/" in place.file:
            return place
    return chain[0] if chain else None


_HINTS = {
    "add": r"\+", "sub": "-", "mul": r"\*", "fma": r"fma|\*", "max": "max|larger", "ex2": "exp",
    "cvt": "narrow|store|float|widen", "shfl": "shfl", "div": "/", "rcp": "/", "sqrt": "sqrt",
}  # fmt: skip
"""What a line of Python must hold to have become an instruction."""


def _python_files(function: Callable[..., Any]) -> Callable[[Place, str], Place]:
    """The place of an instruction of a Numba kernel, given the place that its .loc names."""
    spans: list[tuple[str, frozenset[int]]] = []
    for code in _reachable(function):
        lines = frozenset(line for _, _, line in code.co_lines() if line)
        spans.append((shown(code.co_filename), lines))

    @cache
    def best(named: Place, base: str) -> Place:
        if named.text.startswith("def "):  # code that Numba made belongs to no line of the body
            return named
        files = {file for file, lines in spans if named.line in lines} | {named.file}
        holders = sorted((Place(file, named.line) for file in files), key=lambda p: p != named)
        hint = _HINTS.get(base, "")
        return next((p for p in holders if re.search(hint, p.text)), named)

    def locate(named: Place, instruction: str) -> Place:
        words = instruction.split()
        opcode = next((w for w in words if not w.startswith(("@", "{"))), "")
        return best(named, opcode.partition(".")[0])

    return locate


def _reachable(function: Any) -> Iterable[CodeType]:
    """The code of a function and of every function it closes over."""
    seen: set[int] = set()
    todo = [function]
    while todo:
        each = todo.pop()
        each = getattr(each, "py_func", each)
        code = getattr(each, "__code__", None)
        if code is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield code
        todo += [cell.cell_contents for cell in each.__closure__ or ()]
