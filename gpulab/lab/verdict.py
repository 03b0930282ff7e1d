"""From records to one sentence and one exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpulab.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS

NUMERIC_REASONS = ("nonfinite", "interval", "rms", "exact-probe", "contract")
"""Reasons for which a lesson must fail: its arithmetic, not a crash or an unwritten element, unless
it declares that its mistake shows in another way (``Variant.shown_by``)."""


def lesson_holds(record: dict[str, Any]) -> bool:
    """Whether the lesson failed, and only for reasons that its mistake explains."""
    codes = {text.split(":")[0] for text in record.get("reasons", [])}
    allowed = {*NUMERIC_REASONS, *record.get("shown_by", ())}
    return record["verdict"] == "FAIL" and bool(codes) and codes <= allowed


def exit_code(records: Sequence[dict[str, Any]]) -> int:
    """The exit code of a run.

    The code of the error where a row does not build (4), hangs (5) or faults (6), the largest of
    several; else 1 for a wrong row or a lost lesson; else 3 where evidence is lacking: an
    inconclusive row, or no row that ran; else 0: every row passes and every lesson fails.
    """
    ran = [r for r in records if r.get("verdict") is not None]
    errors = [int(r["error"]["exit_code"]) for r in ran if r.get("error")]
    if errors:
        return max(errors)
    for r in ran:
        if r["verdict"] == "FAIL" and not r.get("lesson"):
            return EXIT_FAIL
        if r.get("lesson") and r["verdict"] != "INCONCLUSIVE" and not lesson_holds(r):
            return EXIT_FAIL
    if not ran or any(r["verdict"] == "INCONCLUSIVE" for r in ran):
        return EXIT_INCONCLUSIVE
    return EXIT_PASS


def summary(records: Sequence[dict[str, Any]]) -> str:
    """One sentence: how many rows passed, failed as lessons, were refused."""
    word = {EXIT_PASS: "PASS", EXIT_INCONCLUSIVE: "INCONCLUSIVE"}.get(exit_code(records), "FAIL")
    return f"{word}: {', '.join(_counts(records))}"


def interrupted(
    doing: str, records: Sequence[dict[str, Any]], left: int | None, sizes: int = 0
) -> str:
    """The sentence in its place where a run was interrupted, which is no verdict.

    Args:
        doing: what was under way.
        records: of the rows that were judged or refused before.
        left: rows that were not judged but could have been; None: not known.
        sizes: further sizes that were not begun.
    """
    judged = any(r.get("verdict") is not None for r in records)
    counts = _counts(records) if judged else ["no row judged"]
    rest = [f"{left} not judged yet"] if left else []
    if left == 0 and not sizes:
        rest.append("no row left to judge")
    if sizes:
        rest.append(f"{sizes} further {'size' if sizes == 1 else 'sizes'} not begun")
    return f"INTERRUPTED while {doing}: {', '.join(counts + rest)}"


def _counts(records: Sequence[dict[str, Any]]) -> list[str]:
    ran = [r for r in records if r.get("verdict") is not None]
    rows = [r for r in ran if not r.get("lesson")]
    lessons = [r for r in ran if r.get("lesson")]
    parts = [f"{sum(r['verdict'] == 'PASS' for r in rows)} of {len(rows)} rows pass"]
    if lessons:
        failed = sum(lesson_holds(r) for r in lessons)
        parts.append(f"{failed} of {len(lessons)} lessons fail, as they must")
    unknown = sum(r["verdict"] == "INCONCLUSIVE" for r in ran)
    if unknown:
        parts.append(f"{unknown} inconclusive")
    refused = len(records) - len(ran)
    if refused:
        parts.append(f"{refused} not run")
    return parts
