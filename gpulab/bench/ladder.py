"""The ladder from mma.sync to wgmma: what each idea gains, with its error, registers and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from gpulab import registry
from gpulab.kernels.matmul.wgmma_ladder import FIRST, LADDER, LAST, LAST_IDEA, VARIANT
from gpulab.lab.render import number, verdict_cell
from gpulab.registry import Case

Record = dict[str, Any]


def rungs() -> list[Case]:
    """The rows of the ladder in order, and the library's for the same formats."""
    found = [
        case
        for case in registry.cases("matmul", format=VARIANT.format, studies=True)
        if case.variant.output == VARIANT.output
        and not case.variant.lesson
        and (case.spec.name in LADDER or case.spec.backend == "library")
    ]
    return sorted(found, key=lambda case: case.spec.order)


def idea(record: Record) -> str:
    """What the rung adds to the one before."""
    if record["kernel"] == LAST:
        return LAST_IDEA
    (spec,) = [
        s
        for s in registry.specs(record["op"])
        if (s.name, s.backend) == (record["kernel"], record["backend"])
    ]
    return spec.idea


def with_gains(records: Sequence[Record]) -> list[Record]:
    """The records with ``gain``: speed as a ratio to the timed rung before; None for the first."""
    found: list[Record] = []
    before: float | None = None
    for record in records:
        took = record["time_ms"]["median"] if record.get("time_ms") else None
        gain = None
        if record["kernel"] in LADDER and took is not None:
            gain = before / took if before is not None else None
            before = took
        found.append(record | {"gain": gain, "idea": idea(record)})
    return found


def table(records: Sequence[Record], title: str) -> Table:
    """One line a rung, of records that ``with_gains`` made."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("kernel", "max abs err", "arith frac", "TFLOP/s", "gain", "vs library", "regs"):
        shown.add_column(name, justify="left" if name == "kernel" else "right", no_wrap=True)
    shown.add_column("shared", justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    shown.add_column("what it adds")
    for r in records:
        if r["verdict"] is None:
            shown.add_row(r["kernel"], *[""] * 7, "", escape(str(r["reason"])), style="dim")
            continue
        used = r.get("resources") or {}
        versus = r.get("vs_library")
        shown.add_row(
            r["kernel"],
            number(r["max_abs_err"]),
            number(r["arithmetic_gate"]["fraction"]),
            number(r.get("tflops"), 4),
            "-" if r["gain"] is None else f"{r['gain']:.2f}x",
            "-" if not versus else f"{versus['ratio']:.3f}",
            str(used.get("registers", "-")),
            str(used.get("shared_bytes", "-")),
            verdict_cell(r),
            "the way that every card from sm_80 on takes" if r["kernel"] == FIRST else r["idea"],
        )
    return shown
