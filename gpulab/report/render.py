"""The same records as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpulab import arch
from gpulab.registry import Capability
from gpulab.report.capability import Line
from gpulab.report.formats import power_text

Record = Mapping[str, Any]

FORMAT_COLUMNS = (
    "format",
    "s.e.m",
    "largest finite",
    "smallest normal",
    "smallest subnormal",
    "gap at 1.0",
    "Inf, NaN",
    "mma.sync from",
)
BLOCK_COLUMNS = (
    "format",
    "block",
    "element",
    "scale",
    "bits a value",
    "largest finite",
    "smallest subnormal",
    "mma.sync from",
)


_TWO_LINES = (
    "largest",
    "smallest",
    "gap",
    "bits",
    "mma.sync",
    "sign",
)  # heads wider than their cells


def format_row(record: Record) -> tuple[str, ...]:
    """Cells of ``FORMAT_COLUMNS`` for a format without blocks."""
    subnormal = record["smallest_subnormal"]
    special = [word for word, key in (("Inf", "has_inf"), ("NaN", "has_nan")) if record[key]]
    return (
        record["format"],
        f"{record['sign_bits']}.{record['exponent_bits']}.{record['mantissa_bits']}",
        f"{record['largest']:.6g}",
        power_text(record["smallest_normal"]),
        "-" if subnormal is None else power_text(subnormal),
        power_text(record["gap_at_one"]),
        ", ".join(special) or "-",
        lowest_target(record),
    )


def block_row(record: Record) -> tuple[str, ...]:
    """Cells of ``BLOCK_COLUMNS`` for a block format."""
    scale = record["scale"]
    if record["tensor_scale"]:
        scale += f", {record['tensor_scale']}"
    return (
        record["format"],
        str(record["block"]),
        ", ".join(record["elements"]),
        scale,
        f"{record['bits_per_value']:g}",
        f"{record['largest']:.4g}",
        power_text(record["smallest_subnormal"]),
        lowest_target(record),
    )


def lowest_target(record: Record) -> str:
    """Lowest target whose ``mma.sync`` multiplies it, or why there is none."""
    targets = [n["target"] for n in record["needs"] if n["family"] == "mma.sync"]
    if targets:
        return str(targets[0])
    return "scales only" if record["specials"] == "scale" else "CUDA cores"


def other_families(records: Iterable[Record]) -> list[str]:
    """One line a further instruction family: its target and the formats it multiplies."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for need in record["needs"]:
            if need["family"] != "mma.sync":
                found.setdefault((need["family"], need["target"]), []).append(record["format"])
    return [f"{family} from {target}: {', '.join(n)}" for (family, target), n in found.items()]


def split_records(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Plain formats and block formats."""
    every = list(records)
    return [r for r in every if "block" not in r], [r for r in every if "block" in r]


def format_tables(records: Iterable[Record]) -> RenderableType:
    """The table of formats and the table of block formats."""
    every = list(records)
    plain, blocked = split_records(every)
    return Group(
        _table("Number formats", FORMAT_COLUMNS, [format_row(r) for r in plain]),
        Text("s.e.m: sign, exponent and mantissa bits."),
        Text("tf32 occupies a 32-bit register; its bit layout is implementation defined."),
        *(Text(line) for line in other_families(every)),
        Text(),
        _table("Block formats (element x scale)", BLOCK_COLUMNS, [block_row(r) for r in blocked]),
    )


def value_table(records: Sequence[Record]) -> RenderableType:
    """What every format stores of one value: the records of ``value_records``."""
    first = records[0]
    how = "to nearest" if first["rounding"] == "nearest" else "toward zero"
    how += ", saturating" if first["saturate"] else ""
    title = f"{first['text']}: {first['value']} in float64, rounded {how}"
    columns = ("format", "stored", "rel. error", "code", "sign|exponent |mantissa", "remark")
    rows = []
    for r in records:
        error = r["relative_error"]
        rows.append(
            (
                r["format"],
                str(r["stored"]),
                "-" if error is None else "exact" if error == 0 else f"{error:.3e}",
                r["code"] or "-",
                r["fields"] or "-",
                r["flag"],
            )
        )
    notes = [Text(f"{r['format']}: {r['note']}") for r in records if r["note"]]
    return Group(_table(title, columns, rows), *notes)


def capability_table(lines: Sequence[Line], capability: Capability, device: str = "") -> Group:
    """The yes and no lines; ``device`` names the card or emulated device that was asked."""
    row = arch.get(capability)
    title = f"Tensor cores of {arch.sm(capability)} ({row.name}"
    title += f": {device})" if device else f": {', '.join(row.examples)})"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("format", "here", "instruction and reason"):
        table.add_column(column, overflow="fold")
    for line in lines:
        proof = [f"{result.format}: {result.reason}" for result in line.proof]
        texts = [", ".join(line.instructions), line.reason, *line.accumulator, *proof]
        table.add_row(line.name, answer(line), Text("\n".join(texts)))
    if any(line.proof for line in lines):
        return Group(table)
    return Group(table, Text("From the format table: nothing was executed."))


def answer(line: Line) -> Text:
    """``yes`` or ``no``, with what was seen on the device."""
    if not line.supported:
        return Text("no", style="red")
    if not line.proof:
        return Text("yes", style="green")
    good = line.status in ("executed", "emulated")
    return Text(f"yes, {line.status}", style="green" if good else "bold red")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        # Heads wider than their cells take two lines.
        head = column.replace(" ", "\n", 1) if column.startswith(_TWO_LINES) else column
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
