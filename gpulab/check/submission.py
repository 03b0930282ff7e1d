"""A submission: one file, read as text and never executed here.

``NAME.cu`` carries its declaration in comments::

    // gpulab: exercise=fp16-matmul
    // gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
    // gpulab: claim max_abs_err=3.6e-3 gate_fraction=0.0026 speedup_from="half the bytes"

``NAME.py`` carries the same as two literal dictionaries, LAUNCH and (optionally) CLAIM::

    LAUNCH = {"exercise": "fp16-matmul", "block": "16,16", "grid": "ceil(n/16),ceil(m/16)"}
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpulab.check.launch import Expression, Where, parse_list
from gpulab.errors import UsageError
from gpulab.registry import LaunchPlan

MAX_BYTES = 1 << 20
HEADER_LINES = 400
NUMBERS = ("max_abs_err", "gate_fraction", "time_ms", "baseline_ms")
TEXTS = ("speedup_from",)
KEYS = ("exercise", "block", "grid", "shared")
_HEADER = re.compile(r"^\s*//\s*gpulab\s*:(.*)$")
_PAIR = re.compile(r'\s*(\w+)\s*=\s*("[^"]*"|[^\s"]+)')


@dataclass(frozen=True)
class Launch:
    """The launch shape as expressions over the exercise's dims."""

    block: tuple[Expression, ...]
    grid: tuple[Expression, ...]
    shared: Expression | None

    def plan(self, dims: Mapping[str, int]) -> LaunchPlan:
        """Grid, block and shared memory at these dims.

        Raises:
            UsageError: division by zero, or a negative or impossible value.
        """

        def three(parts: Sequence[Expression], least: int) -> tuple[int, int, int]:
            values = [*(self._at_least(e, dims, least) for e in parts), 1, 1, 1][:3]
            return values[0], values[1], values[2]

        shared = self._at_least(self.shared, dims, 0) if self.shared else 0
        return LaunchPlan(three(self.grid, 1), three(self.block, 1), shared)

    @staticmethod
    def _at_least(part: Expression, dims: Mapping[str, int], least: int) -> int:
        value = part(dims)
        if value < least:
            shown = " ".join(f"{k}={v}" for k, v in dims.items())
            named = part.text if part.text == str(value) else f"{part.text} is {value} at {shown}"
            fix = f"round up with ceil(a/b), or use max({least}, ...)"
            raise part.where.error(f"{named}: at least {least} is needed", fix=fix)
        return value


@dataclass(frozen=True)
class Submission:
    """A parsed file.

    Args:
        path: the file.
        language: ``cu`` or ``py``.
        text: its content.
        exercise: name in its declaration.
        launch: its launch shape.
        claims: what it says about itself, unchecked: numbers and texts by name.
    """

    path: Path
    language: Literal["cu", "py"]
    text: str
    exercise: str
    launch: Launch
    claims: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()


DimsOf = Callable[[str], tuple[str, ...]]
"""The dims of an exercise by its name; raises UsageError for an unknown one."""


@dataclass
class _Entry:
    """A value of the declaration and where it stands."""

    value: str
    where: Where


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        UsageError: missing, too large, binary or not UTF-8.
    """
    name = path.name
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="name another") from None
    if len(raw) > MAX_BYTES:
        size = path.stat().st_size
        raise UsageError(
            f"{name} has {size / 1e6:.1f} MB; a submission has at most {MAX_BYTES / 1e6:.1f} MB",
            fix="submit the source of the kernel alone; the checker makes all data itself",
        )
    if b"\0" in raw:
        raise UsageError(
            f"{name} is a binary file", fix="submit the source text, not the compiled program"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UsageError(
            f"{name}:{line}: not UTF-8 text", fix="save the file as UTF-8", line=line
        ) from None


def parse(path: Path, dims_of: DimsOf) -> Submission:
    """Read and parse a submission.

    Raises:
        UsageError: anything that does not follow the contract; says where and what to write.
    """
    suffix = path.suffix.lower()
    if suffix not in (".cu", ".py"):
        raise UsageError(
            f"{path.name} is neither .cu nor .py", fix="a submission is one .cu or one .py file"
        )
    text = read_text(path)
    if suffix == ".cu":
        entries, claims = _cuda_header(path.name, text)
        return _assemble(path, "cu", text, entries, claims, dims_of)
    entries, claims = _python_header(path.name, text)
    return _assemble(path, "py", text, entries, claims, dims_of)


def _assemble(
    path: Path,
    language: Literal["cu", "py"],
    text: str,
    entries: dict[str, _Entry],
    claims: dict[str, _Entry],
    dims_of: DimsOf,
) -> Submission:
    for key in ("exercise", "block", "grid"):
        if key not in entries:
            raise UsageError(
                f"{path.name} does not say {key}=", fix=how_to_declare(language), file=path.name
            )
    name = entries["exercise"]
    try:
        dims = dims_of(name.value)
    except UsageError as error:
        raise name.where.error(error.message, fix=error.fix) from None

    def expressions(key: str, most: int) -> tuple[Expression, ...]:
        return parse_list(entries[key].value, dims, entries[key].where, most)

    launch = Launch(
        expressions("block", 3),
        expressions("grid", 3),
        expressions("shared", 1)[0] if "shared" in entries else None,
    )
    checked = {key: _claim(key, entry) for key, entry in claims.items()}
    return Submission(path, language, text, name.value, launch, checked)


def how_to_declare(language: str) -> str:
    """The declaration to write, as an example."""
    if language == "cu":
        return (
            "put these two lines at the top of the file:\n"
            "    // gpulab: exercise=fp16-matmul\n"
            "    // gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0\n"
            "  with the exercise's name ('gpulab exercise list') and your own launch shape"
        )
    return (
        "add a literal dictionary at the top level of the file:\n"
        '    LAUNCH = {"exercise": "fp16-matmul", "block": "16,16", '
        '"grid": "ceil(n/16),ceil(m/16)"}\n'
        "  with the exercise's name ('gpulab exercise list') and your own launch shape"
    )


def _claim(key: str, entry: _Entry) -> float | str:
    if key in TEXTS:
        return entry.value
    try:
        value = float(entry.value)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        message = f"claim {key}={entry.value}: a finite number >= 0 is needed"
        raise entry.where.error(message, fix=f"for example {key}=0.0026")
    return value


def _keep(target: dict[str, _Entry], known: Sequence[str], key: str, entry: _Entry) -> None:
    if key not in known:
        raise entry.where.error(f"unknown key {key!r}", fix=f"the keys are {', '.join(known)}")
    if key in target:
        raise entry.where.error(f"{key} is given twice", fix=f"leave one {key}= out")
    target[key] = entry


# -- .cu ------------------------------------------------------------------------------------------


def _cuda_header(name: str, text: str) -> tuple[dict[str, _Entry], dict[str, _Entry]]:
    entries: dict[str, _Entry] = {}
    claims: dict[str, _Entry] = {}
    for number, line in enumerate(text.splitlines()[:HEADER_LINES], 1):
        match = _HEADER.match(line)
        if match is None:
            continue
        body, offset = match[1], match.start(1)
        word = re.match(r"\s*claim\b(?!\s*=)", body)
        at = word.end() if word else 0
        target, known = (claims, (*NUMBERS, *TEXTS)) if word else (entries, KEYS)
        while body[at:].strip():
            pair = _PAIR.match(body, at)
            if pair is None:
                start = at + len(body[at:]) - len(body[at:].lstrip())
                place = Where(name, number, line, offset + start)
                raise place.error("expected key=value", fix=_pair_hint(body[at:]))
            quoted = pair[2].startswith('"')
            value = pair[2][1:-1] if quoted else pair[2]
            place = Where(name, number, line, offset + pair.start(2) + quoted)
            _keep(target, known, pair[1], _Entry(value, place))
            at = pair.end()
    return entries, claims


def _pair_hint(rest: str) -> str:
    if rest.count('"') % 2:
        return 'close the quotation: speedup_from="..."'
    return "write key=value without spaces inside the value: grid=ceil(n/16),ceil(m/16)"


# -- .py ------------------------------------------------------------------------------------------


def _python_header(name: str, text: str) -> tuple[dict[str, _Entry], dict[str, _Entry]]:
    lines = text.splitlines()
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        line = error.lineno or 1
        place = Where(name, line, "".join(lines[line - 1 : line]), max(1, error.offset or 1) - 1)
        raise place.error(error.msg, fix="correct that line") from None
    except (MemoryError, RecursionError, ValueError) as error:
        raise UsageError(f"{name} cannot be parsed: {error or type(error).__name__}") from None
    entries: dict[str, _Entry] = {}
    claims: dict[str, _Entry] = {}
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
            continue
        target = node.targets[0]
        if not (isinstance(target, ast.Name) and target.id in ("LAUNCH", "CLAIM")):
            continue
        launch = target.id == "LAUNCH"
        known = KEYS if launch else (*NUMBERS, *TEXTS)
        for key, value in _items(name, lines, target.id, node.value):
            _keep(entries if launch else claims, known, key, value)
    return entries, claims


def _where(name: str, lines: Sequence[str], node: ast.expr, inside: int = 0) -> Where:
    text = lines[node.lineno - 1] if node.lineno <= len(lines) else ""
    column = len(text.encode()[: node.col_offset].decode(errors="replace"))
    return Where(name, node.lineno, text, column + inside)


def _items(name: str, lines: Sequence[str], what: str, node: ast.expr) -> list[tuple[str, _Entry]]:
    if not isinstance(node, ast.Dict):
        place = _where(name, lines, node)
        raise place.error(f"{what} must be a literal dictionary", fix=how_to_declare("py"))
    found = []
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            raise _where(name, lines, value).error(f"a key of {what} is not a literal string")
        found.append((key.value, _Entry(*_literal(name, lines, what, value))))
    return found


def _literal(name: str, lines: Sequence[str], what: str, node: ast.expr) -> tuple[str, Where]:
    """A string, a number, or a tuple of them, as the text of the launch language."""
    place = _where(name, lines, node)
    if isinstance(node, ast.Constant) and not isinstance(node.value, bool):
        if isinstance(node.value, str):
            return node.value, _where(name, lines, node, 1)
        if isinstance(node.value, int | float):
            return repr(node.value), place
    if isinstance(node, ast.Tuple | ast.List):
        return ",".join(_literal(name, lines, what, part)[0] for part in node.elts), place
    raise place.error(
        f"a value of {what} is not a literal", fix='write numbers or a string: "block": "16,16"'
    )
