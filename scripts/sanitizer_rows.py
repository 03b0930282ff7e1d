"""The rows of the comparison with compute-sanitizer: what agrees, what is explained, and why."""

from __future__ import annotations

import re
from typing import Any

import corpus
from corpus import Case
from sanitizer_output import LATE, TOOLS, Output

ITS_WORD = {"async_in_flight": "race", "warp_divergence": "barrier_divergence"}
"""Kinds that compute-sanitizer sorts under another."""
WATCHED = {
    "racecheck": ("__shared__", "racecheck watches shared memory, of which this kernel has none"),
    "synccheck": (
        r"__sync|_sync\(|mbarrier",
        "synccheck watches barriers and member masks, of which this kernel has none",
    ),
}
"""What a kernel must hold for a tool's silence on it to mean something, and the words if not."""


def bug_row(case: Case, output: Output | None, model: dict[str, Any]) -> dict[str, Any]:
    """The row of a planted bug; ``output`` is None where no tool can see it."""
    row: dict[str, Any] = {"case": case.label, "tool": case.tool or None, "fault": case.fault}
    row |= {"marked_lines": case.lines(case.fault), "emulated": model, "applies": True}
    row |= {"found": None, "agreement": False, "note": "", "explanation": ""}
    if output is None and case.tool:
        return row | {"note": "was not run"}
    if output is None:
        return row | {"applies": False, "agreement": None, "explanation": case.reason}
    row["tool"] = output.tool
    if output.problem is not None:
        return unended(case, row | {"note": output.problem})
    hits = output.of(case.label)
    if case.fault == "trap":  # ends the context: told by the call that notices, without a line
        hits += [f for f in output.findings if f.kind == "trap" and f not in hits]
    right = [f for f in hits if f.kind == ITS_WORD.get(case.fault, case.fault)]
    row |= {"found": bool(right), "kind": right[0].kind if right else None}
    row |= {"lines": sorted({line for f in right for line in f.lines})}
    row |= {
        "severity": right[0].severity if right else None,
        "text": right[0].text if right else None,
    }
    placed = all(set(f.lines) <= set(case.lines()) for f in right)
    same = bool(right) and placed and model["kind"] == case.fault
    note = "" if same else f"{len(hits)} findings: {[f.text for f in hits][:2]}"
    return row | {"agreement": same, "note": note}


def unended(case: Case, row: dict[str, Any]) -> dict[str, Any]:
    """The row of a bug under which a tool came to nothing: explained if such waits never end."""
    waits = row["note"] == LATE and case.endless and row["emulated"]["kind"] == case.fault
    if not waits:
        return row
    return row | {"applies": False, "agreement": None, "explanation": case.endless}


def explain_by_controls(rows: list[dict[str, Any]]) -> None:
    """Take out the bugs that their tool does not report while it reports their controls."""
    by_name = {row["case"]: row for row in rows}
    for row in rows:
        case = corpus.get(row["case"])
        if not case.control or row["found"] is not False or row["emulated"]["kind"] != case.fault:
            continue
        control = by_name[case.control]
        if control["agreement"] and control["tool"] == row["tool"]:
            seen = {"case": case.control, "lines": control["lines"], "text": control["text"]}
            row |= {"applies": False, "agreement": None, "control": seen}
            row["explanation"] = case.reason


def blind(case: Case, tool: str, armed: bool) -> str:
    """Why the tool's silence on a correct kernel means nothing; empty if it means something."""
    if not armed:
        return f"{tool} found none of its planted bugs in this run: its silence means nothing"
    needed, words = WATCHED.get(tool, ("", ""))
    code = re.sub(r"//[^\n]*", "", case.source.read_text())
    return "" if re.search(needed, code) else words


def twin_row(case: Case, output: Output, armed: bool, model: dict[str, Any]) -> dict[str, Any]:
    """The row of a correct kernel under one tool."""
    row: dict[str, Any] = {"case": case.label, "tool": output.tool, "fault": None}
    row |= {"emulated": model, "applies": True, "found": None, "agreement": False}
    row |= {"note": "", "explanation": ""}
    if output.problem is not None:
        return row | {"note": output.problem}
    hits = output.of(case.label)
    row |= {"found": bool(hits), "lines": sorted({line for f in hits for line in f.lines})}
    row |= {"note": f"{[f.text for f in hits][:2]}" if hits else ""}
    why = blind(case, output.tool, armed)
    if why and not hits and not model["found"]:
        return row | {"applies": False, "agreement": None, "explanation": why}
    return row | {"agreement": bool(hits) == model["found"]}


def judge(
    outputs: dict[tuple[str, str], Output], models: dict[str, dict[str, Any]], shared: bool
) -> list[dict[str, Any]]:
    """Rows from the outputs, keyed (tool, case or "twins"), and from the emulated device."""
    rows = [
        bug_row(case, outputs.get((tool_for(case, shared), case.label)), models[case.label])
        for case in corpus.cases()
        if case.fault
    ]
    explain_by_controls(rows)
    armed = {row["tool"] for row in rows if row["found"]}
    for tool in TOOLS:
        output = outputs[tool, "twins"]
        rows += [
            twin_row(case, output, tool in armed, models[case.label])
            for case in corpus.cases()
            if not case.fault
        ]
    return rows


def tool_for(case: Case, shared: bool) -> str:
    """The tool that can see a bug; newer initchecks watch shared memory too."""
    return "initcheck" if case.name == "uninitialised_shared" and shared else case.tool


def judge_anew(
    recorded: list[dict[str, Any]], models: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Recorded rows with the verdicts that follow now from what the tool said then.

    Args:
        recorded: rows as ``judge`` made them, with or without further fields.
        models: what the emulated device says of each case now.
    """
    derived = {"emulated", "applies", "agreement", "explanation", "control", "marked_lines"}
    rows = []
    for old in recorded:
        case = corpus.get(old["case"])
        row = {key: value for key, value in old.items() if key not in derived}
        row |= {"emulated": models[case.label], "applies": True}
        row |= {"agreement": False, "explanation": ""}
        if case.fault:
            row["marked_lines"] = case.lines(case.fault)
            if row["tool"] is None:
                row |= {"applies": False, "agreement": None, "explanation": case.reason}
            elif row["found"] is None:
                row = unended(case, row)
            else:
                right = row["found"] and row["kind"] == ITS_WORD.get(case.fault, case.fault)
                placed = set(row["lines"]) <= set(case.lines())
                row["agreement"] = right and placed and row["emulated"]["kind"] == case.fault
        rows.append(row)
    explain_by_controls([row for row in rows if row["fault"] is not None])
    armed = {row["tool"] for row in rows if row["fault"] is not None and row["found"]}
    for row in rows:
        if row["fault"] is None and row["found"] is not None:
            why = blind(corpus.get(row["case"]), row["tool"], row["tool"] in armed)
            if why and not row["found"] and not row["emulated"]["found"]:
                row |= {"applies": False, "agreement": None, "explanation": why}
            else:
                row["agreement"] = row["found"] == row["emulated"]["found"]
    return rows
