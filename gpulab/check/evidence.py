"""What the stages of a check hand on: findings, results, and the record of a submission."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from gpulab.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, FaultError
from gpulab.numerics.verdict import Verdict


def printable(name: str | PurePath) -> str:
    """A file's name as text of one line: what is no UTF-8 or not printable is escaped."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


STAGES = (
    "parse", "compile", "structure", "exact probes", "arithmetic", "contract", "non-finite",
    "repeat", "timed size", "witness", "faults", "races", "state", "memory", "timing", "claims",
    "power",
)  # fmt: skip
"""In the order in which they are reported."""

STAGE_OF = {
    "shape": "structure",
    "inputs-changed": "structure",
    "unwritten": "structure",
    "nonfinite": "non-finite",
    "nondeterministic": "repeat",
    "exact-probe": "exact probes",
    "interval": "arithmetic",
    "rms": "arithmetic",
    "contract": "contract",
}
"""The stage of a reason code of ``numerics.verdict``."""


@dataclass(frozen=True)
class Diagnosis:
    """What a mistake looks like.

    Args:
        slug: short name, stable.
        text: one or two sentences: where, and what it looks like.
        fix: what to do next.
        index: first bad element.
        got: value there.
        wanted: float64 reference there.
        bound: how far it may be off.
        share: of the elements that are wrong.
    """

    slug: str
    text: str
    fix: str = ""
    index: tuple[int, ...] | None = None
    got: float | None = None
    wanted: float | None = None
    bound: float | None = None
    share: float | None = None


@dataclass
class Stage:
    """One stage's outcome: PASS, FAIL, INCONCLUSIVE, ``note`` or ``not run``."""

    name: str
    status: str
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """For records."""
        return {"stage": self.name, "status": self.status, "text": self.text}


@dataclass
class Result:
    """Everything about one checked submission.

    Args:
        file: as given.
        verdict: of the whole.
        exit_code: see ``gpulab.errors``.
        reason: one sentence, empty for PASS.
        stages: in order.
        diagnosis: for a failure.
        facts: further fields of the record.
    """

    file: str
    verdict: Verdict = "INCONCLUSIVE"
    exit_code: int = EXIT_INCONCLUSIVE
    reason: str = ""
    stages: list[Stage] = field(default_factory=list)
    diagnosis: Diagnosis | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def note(self, name: str, status: str, text: str = "") -> None:
        """Record a stage; a later FAIL of the same stage replaces what was there."""
        for stage in self.stages:
            if stage.name == name:
                if stage.status != "FAIL":
                    stage.status, stage.text = status, text or stage.text
                return
        self.stages.append(Stage(name, status, text))
        self.stages.sort(key=lambda s: STAGES.index(s.name))

    def settle(self) -> None:
        """The verdict that the stages give, where no error has given one."""
        failed = [s for s in self.stages if s.status == "FAIL"]
        open_ = [s for s in self.stages if s.status == "INCONCLUSIVE"]
        if failed:
            faulty = any(s.name in ("faults", "races") for s in failed)
            self.verdict, self.exit_code = "FAIL", FaultError.exit_code if faulty else EXIT_FAIL
            self.reason = self.reason or f"{failed[0].name}: {failed[0].text}"
        elif open_:
            self.verdict, self.exit_code = "INCONCLUSIVE", EXIT_INCONCLUSIVE
            self.reason = self.reason or f"{open_[0].name}: {open_[0].text}"
        else:
            self.verdict, self.exit_code, self.reason = "PASS", EXIT_PASS, ""

    def to_json(self) -> dict[str, Any]:
        """The record: one JSON object."""
        d = self.diagnosis
        shown = None if d is None else {"slug": d.slug, "text": d.text, "fix": d.fix}
        return {
            "schema": 1,
            "kind": "check",
            "file": printable(self.file),
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "reason": self.reason or None,
            "diagnosis": shown,
            "first_bad_index": None if d is None or d.index is None else list(d.index),
            "got": None if d is None else finite(d.got),
            "wanted": None if d is None else finite(d.wanted),
            "bound": None if d is None else finite(d.bound),
            "wrong_share": None if d is None else d.share,
            "stages": [s.to_json() for s in self.stages],
            **self.facts,
        }


def finite(value: float | None) -> float | str | None:
    """A number as JSON has it: NaN and infinities by name."""
    if value is None or value - value == 0:
        return value
    return str(value)


def beside(record: Mapping[str, Any]) -> str:
    """What stands beside a verdict: a diagnosis, or what a pass says nothing about."""
    if record["verdict"] == "PASS":
        unseen = record.get("not_looked_at")
        return f"{unseen} not looked at" if unseen else ""
    found = record.get("diagnosis")
    return "" if found is None else str(found["slug"])
