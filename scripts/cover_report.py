"""From the lines of cover_honest.py to one line a kernel, a table and an exit code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cover_spaces import missing, spaces

from gpulab import arch
from gpulab.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpulab.registry import Capability, Case

Line = dict[str, Any]
SHOWN = 5
"""Examples of what is wrong that a summary names."""


def verdict_of(line: Mapping[str, Any]) -> str:
    """PASS where the line is as it must be: a lesson that was caught, a kernel that passed."""
    if line["lesson"] and line["verdict"] != "INCONCLUSIVE":
        return "PASS" if line.get("caught") else "FAIL"
    return str(line["verdict"])


def exit_code(line: Mapping[str, Any]) -> int:
    """Of one line."""
    codes = {"PASS": EXIT_PASS, "INCONCLUSIVE": EXIT_INCONCLUSIVE}
    return int(line.get("exit_code", codes.get(verdict_of(line), EXIT_FAIL)))


def worst_code(codes: Iterable[int]) -> int:
    """The exit code of several: a failure weighs more than what is inconclusive."""
    found = set(codes) - {EXIT_PASS}
    decided = found - {EXIT_INCONCLUSIVE}
    return max(decided) if decided else max(found, default=EXIT_PASS)


def summaries(
    cases: Sequence[Case],
    capabilities: Sequence[Capability],
    expected: Mapping[tuple[str, str, str], Sequence[tuple[Any, Line | None]]],
) -> tuple[list[Line], int]:
    """One line a (kernel, capability), and the exit code of all.

    Args:
        cases: kernels.
        capabilities: the main one first.
        expected: by (operation, kernel, capability) each job with its line, None if it did not run.
    """
    lines, codes = [], [EXIT_PASS]
    for case in cases:
        for number, capability in enumerate(capabilities):
            at = arch.dotted(capability)
            name = (case.spec.op, case.label, at)
            head: Line = {"schema": 1, "op": name[0], "kernel": name[1], "capability": at}
            head["lesson"] = case.variant.lesson
            refusal = case.refusal(capability, "emulated")
            if refusal is not None:
                lines.append(head | {"not_run": refusal})
                continue
            all_of_it = expected.get(name, ())
            if not all_of_it:
                why = (
                    f"same code as {_texts(capabilities[:number])}"
                    if number
                    else _why(case, capability)
                )
                lines.append(head | {"not_run": why})
                continue
            ran = [(job, line) for job, line in all_of_it if line is not None]
            line = head | _counted(ran) | {"to_go": len(all_of_it) - len(ran)}
            left = set()
            if number == 0 and not case.variant.lesson:
                for space in spaces(case.spec.op):
                    there = [job.values for job, _ in ran if job.space.name == space.name]
                    left |= {
                        (space.name, *pair) for pair in missing(space, case, capability, there)
                    }
            line["pairs_left_out"] = len(left)
            if left:
                line["left_out"] = sorted(map(repr, left))[:SHOWN]
            lines.append(line)
            codes += [exit_code(one) for _, one in ran]
            codes += [EXIT_INCONCLUSIVE] * (line["to_go"] > 0) + [EXIT_FAIL] * (len(left) > 0)
    if not any("cases" in line for line in lines):
        codes.append(EXIT_INCONCLUSIVE)
    return lines, worst_code(codes)


def _texts(capabilities: Sequence[Capability]) -> str:
    return ", ".join(f"{a}.{b}" for a, b in capabilities)


def _why(case: Case, capability: Capability) -> str:
    """Why no case of a kernel runs, in its own words on the first case."""
    space = spaces(case.spec.op)[0]
    cheapest = {name: values[0] for name, values in space.factors(()).items()}
    return str(case.refusal(capability, "emulated", space.dims(cheapest)))


def _number(share: float | None) -> float:
    """A share that JSON cannot hold is infinite."""
    return math.inf if share is None else share


def _counted(ran: Sequence[tuple[Any, Line]]) -> Line:
    """Counts of what ran, the largest shares and where, and what is not as it must be."""
    verdicts = Counter(verdict_of(line) for _, line in ran)
    families = {f for job, _ in ran if (f := job.values.get("family")) is not None}
    found: Line = {
        "cases": len(ran),
        "pass": verdicts["PASS"],
        "fail": verdicts["FAIL"],
        "inconclusive": verdicts["INCONCLUSIVE"],
        "families": len(families),
        "seeds": len({job.values["seed"] for job, _ in ran}),
        "sizes": len({tuple(job.dims.values()) for job, _ in ran}),
        "launches": sum(line.get("runs", 0) for _, line in ran),
        "cpu_s": round(sum(line["cpu_s"] for _, line in ran), 1),
    }
    honest = [(job, line) for job, line in ran if "share" in line and not line["lesson"]]
    if honest:
        job, line = max(honest, key=lambda item: _number(item[1]["share"]))
        found["share"] = line["share"]
        found["where"] = {k: line[k] for k in ("part", "on")} | {
            "dims": job.dims,
            "seed": job.values["seed"],
        }
        found["ceiling"] = max((line["ceiling"] for _, line in honest), key=_number)
    wrong = [(job, line) for job, line in ran if verdict_of(line) != "PASS"]
    if wrong:
        found["wrong"] = [
            {"case": job.values, "verdict": line["verdict"], "reason": line.get("reason")}
            for job, line in wrong[:SHOWN]
        ]
    return found


def table(lines: Sequence[Line]) -> str:
    """For people."""
    rows = [("operation", "kernel", "on", "cases", "as it must", "share of the gate", "where")]
    for line in lines:
        name = (line["op"], line["kernel"] + (" (lesson)" if line["lesson"] else ""))
        if "not_run" in line:
            rows.append((*name, line["capability"], "0", "-", "-", f"not run: {line['not_run']}"))
            continue
        where, notes = line.get("where"), []
        if where is not None:
            dims = " ".join(f"{k}={v}" for k, v in where["dims"].items() if v)
            notes.append(f"{where['part']}, {where['on']}, seed {where['seed']}, {dims}")
        for what in ("fail", "inconclusive", "to_go", "pairs_left_out"):
            if line[what]:
                notes.append(f"{what.replace('_', ' ')}: {line[what]}")
        share = f"{_number(line['share']):.3g}" if "share" in line else "-"
        good = f"{line['pass']}/{line['cases']}"
        rows.append((*name, line["capability"], str(line["cases"]), good, share, "; ".join(notes)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
