"""A checked submission as a page, a folder of them as a table."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gpulab.check.evidence import beside
from gpulab.check.excerpt import excerpt

Record = dict[str, Any]
SCREEN = 24
"""Rows of a page."""
WIDEST = 500
"""Columns of a table that no terminal shows."""
_COLOURS = {"PASS": "green", "FAIL": "bold red", "INCONCLUSIVE": "yellow", "note": "cyan"}


def _coloured(word: str) -> str:
    return f"[{_COLOURS.get(word, 'dim')}]{word}[/]"


def number(value: Any) -> str:
    """A number as people read it."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def print_page(console: Console, record: Record) -> None:
    """One submission on one screen: verdict, what it looks like, what to do, stages."""
    _verdict(console, record)
    log = (record.get("error") or {}).get("log")
    if log and record["verdict"] != "PASS" and record.get("diagnosis"):
        rows = SCREEN - _rows(console.width, record)
        errors = record["error"].get("errors")
        for line in excerpt(str(log), errors, console.width - 4, rows):
            console.print(Text("    ") + line, highlight=False, style="dim", no_wrap=True)
    _details(console, record)


def _rows(width: int, record: Record) -> int:
    """Of a page without the compiler's lines."""
    out = io.StringIO()
    console = Console(file=out, width=width)
    _verdict(console, record)
    _details(console, record)
    return sum(max(1, -(-cell_len(line) // width)) for line in out.getvalue().splitlines())


def _verdict(console: Console, record: Record) -> None:
    name = escape(str(record["file"]))
    exercise = record.get("exercise") or "no exercise"
    verdict = f"{_coloured(record['verdict'])} {name} ({exercise})"
    if record["verdict"] == "PASS" and beside(record):
        verdict += f", {beside(record)}"
    console.print(verdict, highlight=False)
    found = record.get("diagnosis")
    if record["verdict"] != "PASS" and found:
        console.print(f"  {found['slug']}: {escape(found['text'])}", highlight=False)


def _details(console: Console, record: Record) -> None:
    """What stands below the compiler's lines."""
    found = record.get("diagnosis")
    if record["verdict"] != "PASS" and found:
        if record.get("first_bad_index") is not None:
            at = ", ".join(map(str, record["first_bad_index"]))
            text = f"  first wrong element: \\[{at}]"
            if record["got"] is not None:
                text += f": got {number(record['got'])}, wanted {number(record['wanted'])} within "
                text += f"{number(record['bound'])} before it is rounded"
            console.print(text, highlight=False)
        if found["fix"]:
            said, _, code = found["fix"].partition("\n")
            console.print(f"  next: {escape(said)}", highlight=False)
            if code:  # to be copied: a terminal breaks it where it must, and does not cut it
                console.print(escape(code), highlight=False, soft_wrap=True)
    elif record["verdict"] != "PASS":
        console.print(f"  {escape(str(record['reason']))}", highlight=False)
    _stages(console, record)
    _numbers(console, record)
    if record.get("replay") and record["verdict"] != "PASS":
        command = f"gpulab check {shlex.quote(record['file'])} --replay {record['replay']}"
        if (record.get("isolation") or {}).get("sandbox") is False:
            command += " --trust-python"
        console.print(f"  replay: {escape(command)}", highlight=False, soft_wrap=True)


def _stages(console: Console, record: Record) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    shown = 0
    for stage in record["stages"]:
        if stage["status"] == "PASS" and not stage["text"] and record["verdict"] != "PASS":
            continue
        text = escape(str(stage["text"]).splitlines()[0]) if stage["text"] else ""
        if stage["stage"] in ("parse", "compile") and stage["status"] == "FAIL":
            continue  # said above
        table.add_row(f"  {stage['stage']}", _coloured(stage["status"]), text)
        shown += 1
    if shown:
        console.print(table)


def _share(fraction: float | None) -> str:
    """Of a bound that an error uses; none is recorded where the result is not finite."""
    return "not finite" if fraction is None else number(fraction)


def _numbers(console: Console, record: Record) -> None:
    if record.get("max_abs_err") is not None:
        gate, own = record["contract_gate"], record["arithmetic_gate"]
        console.print(
            f"  max abs err {number(record['max_abs_err'])}, gate fraction "
            f"{_share(gate['fraction'])}, arithmetic fraction {_share(own['fraction'])}",
            highlight=False,
        )
    for claim in record.get("claims") or []:
        value = number(claim["value"])
        console.print(
            f"  claim {claim['claim']}={escape(value)}: {escape(claim['answer'])}", highlight=False
        )
    held = record.get("isolation") or {}
    loose = [name for name, holds in held.items() if not holds]
    if loose:
        console.print(f"  isolation: this system does not hold: {', '.join(loose)}", style="yellow")
    where = record.get("device_name") or record.get("device")
    if record.get("seconds") is not None:
        seed = record.get("seed")
        console.print(f"  on {where}, seed {seed}, {record['seconds']} s", style="dim")


def table(records: Sequence[Record], *, fractions: bool = True) -> Table:
    """A folder, with the fractions of the gates or without."""
    shown = Table(box=None, pad_edge=False)
    paths = [str(r["file"]) for r in records]
    shared = os.path.commonpath([os.path.dirname(p) for p in paths])
    gates = {"gate frac": "contract_gate", "arith frac": "arithmetic_gate"} if fractions else {}
    for name in ("submission", "exercise", "verdict", "diagnosis", *gates):
        shown.add_column(name, overflow="fold", no_wrap=name != "submission")
    timed = any(r.get("time_ms") for r in records)
    if timed:
        shown.add_column("time (ms)", justify="right")
    for r in records:
        cells = [
            escape(os.path.relpath(str(r["file"]), shared or ".")),
            r.get("exercise") or "-",
            _coloured(r["verdict"]),
            beside(r),
            *(number((r.get(gate) or {}).get("fraction")) for gate in gates.values()),
        ]
        if timed:
            cells.append(number((r.get("time_ms") or {}).get("median")))
        shown.add_row(*cells)
    return shown


def print_table(console: Console, records: Sequence[Record]) -> None:
    """A folder; on a terminal that is too narrow for it without the fractions."""
    shown = table(records)
    width = console.measure(shown, options=console.options.update(width=WIDEST)).maximum
    if console.is_terminal and width > console.width:
        shown = table(records, fractions=False)
    elif not console.is_terminal:
        console.width = max(console.width, width)
    console.print(shown)


def summary(records: Sequence[Record]) -> str:
    """One sentence: how many submissions pass, and how many are inconclusive, if any."""
    passed = sum(r["verdict"] == "PASS" for r in records)
    unknown = sum(r["verdict"] == "INCONCLUSIVE" for r in records)
    text = f"{passed} of {len(records)} submissions pass"
    return f"{text}, {unknown} inconclusive" if unknown else text
