"""Reading what compute-sanitizer prints, strictly: an unclear output is never a clean one.

Formats as of compute-sanitizer 2022 to 2025: the location of an access is ``at kernel(args)+0x70
in file.cu:12`` or, in older versions, ``at 0x70 in /path/file.cu:12:kernel(args)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PREFIX = "========="
LATE = "stopped for time"
"""The problem of a run that did not end within its limit."""
_LINE = re.compile(r"([^\s:()]+\.cuh?):(\d+)")
_SUMMARY = re.compile(r"^ERROR SUMMARY: (\d+) errors?$")
_UNPRINTED = re.compile(r"^\w+ SUMMARY: \d+ \w+ w(?:as|ere) not printed\b")
"""What follows a summary of more reports than the tool's print limit."""
_RACES = re.compile(
    r"^RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)$"
)
_RACE = re.compile(r"^(Error|Warning|Info): Race reported between", re.IGNORECASE)
_INVALID = re.compile(r"^(?:Invalid|Misaligned) __(global|shared|local)__ (read|write|atomic)")
_UNINITIALISED = re.compile(r"^Uninitialized __(global|shared)__ memory read")
_BARRIER = re.compile(r"^Barrier error detected")
_API = re.compile(r"^Program hit (\w+) \(error (\d+)\)")
_BROKEN = re.compile(
    r"Internal Sanitizer Error|Device not supported|not supported on this|"
    r"terminated before first instrumented|Unable to find injection|No attachable process|"
    r"unspecified error while|Maximum number of hazards reached",
    re.IGNORECASE,
)
_ASSERT = re.compile(r"([^\s:]+\.cu):(\d+):.*Assertion `")
TRAPS = {"710", "715", "718", "719"}
"""CUDA errors that a trap or a failed assertion ends in."""


@dataclass(frozen=True)
class Finding:
    """One report: kind as the emulated device spells it, source lines in order of mention."""

    kind: str
    severity: str
    where: tuple[tuple[str, int], ...]
    text: str

    @property
    def case(self) -> str | None:
        """The corpus case whose file is named."""
        return PurePath(self.where[0][0]).stem if self.where else None

    @property
    def lines(self) -> tuple[int, ...]:
        return tuple(sorted({line for _, line in self.where}))


@dataclass(frozen=True)
class Output:
    """What one run of a tool says; ``problem`` is why nothing may be concluded from it."""

    tool: str
    findings: tuple[Finding, ...]
    errors: int | None
    launched: tuple[str, ...]
    failed: tuple[str, ...]
    problem: str | None

    def of(self, case: str) -> list[Finding]:
        """Findings in the source of a case, hints left out."""
        return [f for f in self.findings if f.case == case and f.severity != "info"]


def _records(text: str) -> Iterator[list[str]]:
    """Paragraphs of sanitizer lines: a first line and its indented followers."""
    record: list[str] = []
    for raw in text.splitlines():
        if not raw.startswith(PREFIX):
            continue
        body = raw[len(PREFIX) :]
        if body.startswith((" " * 2, "\t")) or body.lstrip().startswith("and "):
            record.append(body.strip())
            continue
        if record:
            yield record
        record = [body.strip()] if body.strip() else []
    if record:
        yield record


def told(text: str) -> str:
    """A report as it is kept: without folders, and not longer than it need be."""
    return re.sub(r"(?:/[^\s/:]+)+/(?=[^\s/:]+\.cuh?\b)", "", text)[:300]


def _finding(record: list[str]) -> Finding | None:
    first, whole = record[0], " ".join(record)
    kind = severity = None
    if race := _RACE.match(first):
        kind, severity = "race", race[1].lower()
    elif _INVALID.match(first):
        misaligned = "misaligned" in whole.lower()
        kind, severity = "misaligned" if misaligned else "out_of_bounds", "error"
    elif _UNINITIALISED.match(first):
        kind, severity = "uninitialised", "error"
    elif _BARRIER.match(first):
        kind, severity = "barrier_divergence", "error"
    elif api := _API.match(first):
        kind, severity = ("trap" if api[2] in TRAPS else f"api error {api[2]}"), "api"
    if kind is None or severity is None:
        return None
    # Backtraces name host frames; the access itself is in the lines before them.
    device = [line for line in record if not line.startswith(("Host Frame", "Saved host"))]
    where = tuple((m[1], int(m[2])) for line in device for m in _LINE.finditer(line))
    return Finding(kind, severity, where if kind == "race" else where[:1], told(" ".join(device)))


def parse(tool: str, text: str, exit_code: int | None, wanted: tuple[str, ...]) -> Output:
    """Read one run.

    Args:
        tool: which one was asked for.
        text: stdout and stderr.
        exit_code: of compute-sanitizer; None if it was stopped for time.
        wanted: the cases that the program under test was to launch.
    """
    bodies = [line[len(PREFIX) :].strip() for line in text.splitlines() if line.startswith(PREFIX)]
    findings = [found for record in _records(text) if (found := _finding(record)) is not None]
    launched = tuple(re.findall(r"^launched (\w+)$", text, re.MULTILINE))
    failed = tuple(re.findall(r"^failed (\w+):", text, re.MULTILINE))
    asserted = _ASSERT.search(text)
    if asserted is not None:
        place = ((asserted[1], int(asserted[2])),)
        findings.append(Finding("trap", "error", place, told(asserted[0])))
    pattern = _RACES if tool == "racecheck" else _SUMMARY
    summaries = [m for body in bodies if (m := pattern.match(body))]
    known = (pattern, _UNPRINTED)
    other = [b for b in bodies if "SUMMARY" in b and not any(form.match(b) for form in known)]
    errors: int | None = None
    if len(summaries) == 1:
        numbers = [int(n) for n in summaries[0].groups()]
        errors = numbers[1] + numbers[2] if tool == "racecheck" else numbers[0]
    problem = None
    if exit_code is None:
        problem = LATE
    elif broken := _BROKEN.search(text):
        problem = f"the tool says: {broken[0]}"
    elif "COMPUTE-SANITIZER" not in text:
        problem = "no compute-sanitizer header"
    elif len(summaries) != 1 or other:
        problem = f"{len(summaries)} summaries of {tool}, {len(other)} of another form"
    elif missing := [case for case in wanted if case not in launched + failed]:
        problem = f"never launched: {', '.join(missing)}"
    elif errors and not findings:
        problem = f"{errors} errors but none of a form known here"
    elif not errors and any(
        f.severity in ("error", "warning") for f in findings if f.kind != "trap"
    ):
        problem = "reports and a summary of zero"
    return Output(tool, tuple(findings), errors, launched, failed, problem)
