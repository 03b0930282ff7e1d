"""Records as a table a person reads; everything shown is in the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Record = dict[str, Any]

SPEEDS = {"tflops": "TFLOP/s", "gb_per_s": "GB/s"}
"""Fields of a record that tell a speed, and their unit; an operation names the one that fits it."""
_VERDICT_WIDTH = 40
"""Why a row did not run may take several lines."""
_ANY_WIDTH = 1000
_SHOWN = 3
"""Inputs that are named; of more the number."""


def case_name(record: Record) -> str:
    """``fp16, fp32 acc``; contract and output are named where they are not the usual ones."""
    name = f"{record['format']}, {record['accumulator']} acc"
    if record.get("contract"):
        name += f" {record['contract']}"
    if record["output"] != record["accumulator"]:
        name += f" -> {record['output']}"
    return name


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table cell; ``-`` where there is none."""
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:.{digits}g}"


def share(record: Record, gate: str) -> str:
    """The share used of a gate's bound (``contract_gate``, ``arithmetic_gate``)."""
    fraction = record[gate]["fraction"]
    missing = "-" if record.get("error") else "not finite"  # records have neither NaN nor infinity
    return missing if fraction is None else number(fraction)


def baseline_f32(records: Sequence[Record]) -> Record | None:
    """The row the column ``vs f32`` refers to: raw CUDA-core fp32, the simplest one."""
    for record in records:
        if (
            record["format"] == "fp32"
            and record["backend"] == "raw"
            and record.get("verdict") is not None
        ):
            return record
    return None


def _counter(record: Record, name: str) -> float | None:
    counters = record.get("counters")
    return None if counters is None else counters.get(name)


def sectors(record: Record) -> float | None:
    """Global-memory sectors (32 bytes) of all reads, writes and asynchronous copies, counted."""
    moved = _counter(record, "global_sector_bytes")
    return None if moved is None else moved / 32


def verdict_cell(record: Record) -> str:
    """PASS, FAIL, INCONCLUSIVE; a lesson that fails says so; an error is named."""
    verdict = record["verdict"]
    if record.get("error"):
        return f"[bold red]ERROR: {record['error']['kind']}[/]"
    if record.get("lesson"):
        return {
            "FAIL": "[green]FAIL, as it must[/]",
            "PASS": "[bold red]PASS: the lesson is lost[/]",
        }.get(verdict, f"[yellow]{verdict}[/]")
    colour = {"PASS": "green", "FAIL": "bold red"}.get(verdict, "yellow")
    return f"[{colour}]{verdict}[/]"


def refused_together(records: Sequence[Record]) -> list[list[Record]]:
    """Rows in order; neighbours of one kernel that were refused for one reason are one group."""

    def key(record: Record) -> tuple[Any, ...]:
        return tuple(record.get(field) for field in ("backend", "kernel", "verdict", "reason"))

    groups: list[list[Record]] = []
    for record in records:
        if record.get("verdict") is None and groups and key(groups[-1][0]) == key(record):
            groups[-1].append(record)
        else:
            groups.append([record])
    return groups


def _rows_name(together: Sequence[Record]) -> str:
    """``2 rows: bf16, tf32``; of more than two formats the number alone."""
    formats = list(dict.fromkeys(r["format"] for r in together))
    count = f"{len(together)} rows"
    return f"{count}: {', '.join(formats)}" if len(formats) <= 2 else count


def ladder(records: Sequence[Record]) -> Table:
    """The ladder: one row differs from the one above in number format and nothing else."""
    ran = [r for r in records if r.get("verdict") is not None]
    timed = any(r.get("time_ms") for r in ran)
    counted = any(r.get("counters") for r in ran)
    base = baseline_f32(ran)
    speed = next((r["speed"] for r in ran if r.get("speed")), "tflops")
    compared = next((r["bandwidth"]["of"] for r in ran if r.get("bandwidth")), None)
    table = Table(box=None, pad_edge=False)
    for name, justify in (
        ("case", "left"), ("kernel", "left"), ("max abs err", "right"), ("max rel", "right"),
        ("gate frac", "right"), ("arith frac", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    if timed:
        last = f"of {compared}" if compared else "vs f32"
        for name in ("time (ms)", SPEEDS[speed], last):
            table.add_column(name, justify="right", no_wrap=True)
    elif counted:
        for name in ("instructions", "sectors", "vs f32"):
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", max_width=_VERDICT_WIDTH)
    for together in refused_together(records):
        r, kernel = together[0], f"{together[0]['backend']}/{together[0]['kernel']}"
        if r.get("verdict") is None:
            blank = [""] * (len(table.columns) - 3)
            name = case_name(r) if len(together) == 1 else _rows_name(together)
            table.add_row(name, kernel, *blank, escape(str(r["reason"])), style="dim")
            continue
        cells = [
            case_name(r),
            kernel,
            number(r["max_abs_err"]),
            number(r["max_rel_err"]),
            share(r, "contract_gate"),
            share(r, "arithmetic_gate"),
        ]
        if timed:
            t = r.get("time_ms")
            cells += [
                number(t["median"], 4) if t else "-",
                number(r.get(speed), 4),
                _compared(r, base) if t else "-",
            ]
        elif counted:
            mine, theirs = sectors(r), sectors(base) if base else None
            cells += [
                number(_counter(r, "instructions"), 6),
                number(mine, 6),
                f"{mine / theirs:.2f}x" if mine and theirs else "-",
            ]
        table.add_row(*cells, verdict_cell(r))
    return table


def _compared(record: Record, base: Record | None) -> str:
    """Share of the bandwidth measured beside it, or else the speed as a ratio to the fp32 row."""
    if record.get("bandwidth"):
        return f"{record['bandwidth']['fraction']:.3f}"
    if base is None:
        return "-"
    return f"{base['time_ms']['median'] / record['time_ms']['median']:.2f}x"


def footnotes(records: Sequence[Record]) -> list[str]:
    """What a reader needs to recompute a bound, and why rows failed."""
    ran = [r for r in records if r.get("verdict") is not None]
    lines = []
    if ran:
        family = next((r["inputs"]["family"] for r in ran if r.get("inputs")), None)
        if family is not None:
            lines.append(
                "max abs err: of |got - R0|, R0 being float64 over the inputs before rounding; max "
                f"rel: relative to R0, large where R0 is near 0; on {family} inputs, as is atol."
            )
        lines.append(
            "gate frac: share of the contract bound used (1 = limit); arith frac: share of the "
            "arithmetic bound; each the largest over all input families and probes. A kernel is "
            "right only where both are at most 1."
        )
        for fmt in dict.fromkeys(r["format"] for r in ran):
            text = next(r["contract_gate"].get("text") for r in ran if r["format"] == fmt)
            if text:
                lines.append(f"  {fmt}: {text}")
    if any(r.get("counters") for r in ran) and not any(r.get("time_ms") for r in ran):
        lines.append(
            "instructions: PTX instructions executed, per warp; sectors: 32-byte sectors of global "
            "memory read and written; vs f32: sectors against the first raw fp32 row. The "
            "emulated device "
            "counts; it has no time to show."
        )
    lines += [_alone(r) for r in ran if r.get("kernel_alone")]
    lines += problems(ran)
    return lines + lessons([r for r in ran if r.get("lesson") and not r.get("error")])


def problems(records: Sequence[Record]) -> list[str]:
    """Why rows did not pass; lessons that fail are no problem."""
    lines = []
    for r in records:
        name = f"{r['op']} {r['backend']}/{r['kernel']} {case_name(r)}"
        if r.get("error"):
            lines.append(f"{r['error']['kind']} in {name}: {r['reason']}")
            if r["error"].get("log"):
                lines.append(str(r["error"]["log"]).rstrip())
            if r["error"].get("fix"):
                lines.append(f"  fix: {r['error']['fix']}")
        elif not r.get("lesson") and r["verdict"] not in (None, "PASS"):
            lines.append(f"{r['verdict']} {name}: {r['reason']}")
    return lines


def _alone(record: Record) -> str:
    """What a row takes without the steps before its kernel."""
    alone = record["kernel_alone"]
    return (
        f"{record['backend']}/{record['kernel']} {case_name(record)}: "
        f"{number(alone['time_ms']['median'], 4)} ms ({number(alone['tflops'], 4)} TFLOP/s) "
        f"without {', '.join(alone['without'])}, which the table's time includes"
    )


def lessons(records: Sequence[Record]) -> list[str]:
    """What each lesson teaches: which gate caught it, its error, and why it is wrong."""
    lines = []
    for note in dict.fromkeys(r["note"] for r in records):
        lines.append(f"lesson: {note}")
        for r in (x for x in records if x["note"] == note):
            ratio = r.get("error_vs_float_accumulator")
            more = f"; its error is {ratio:.3g}x the float accumulator's" if ratio else ""
            shown = r.get("caught_on") or []
            on = f" on {', '.join(shown[:_SHOWN])}" if shown else ""
            if len(shown) > _SHOWN:
                on += f" and {len(shown) - _SHOWN} more"
            lines.append(
                f"  {r['backend']}/{r['kernel']} {case_name(r)}: the contract gate "
                f"{'passes' if r['contract_gate']['passed'] else 'fails'} it, the arithmetic gate "
                f"{'passes' if r['arithmetic_gate']['passed'] else 'fails'} it{on}{more}"
            )
    return lines


_CONFLICTS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "async_copy_bank_conflicts",
)
_COUNTED: dict[str, tuple[str, ...]] = {
    "instructions": ("instructions",),
    "divergent": ("divergent_branches",),
    "M products": ("tensor_products",),
    "ld sect/req": ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",),
    "st sect/req": ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",),
    "async sect": ("async_copy_sectors", "tensor_copy_sectors"),
    "MB moved": ("global_sector_bytes",),
    "conflicts": _CONFLICTS,
}
"""Columns of the counter table: the sum of these counters."""


def counter_table(records: Sequence[Record]) -> Table:
    """Counted work and compiled resources, a row each (``--counters``)."""
    table = Table(
        title="counted work: PTX instructions a warp, millions of tensor-core products, sectors a "
        "global request, megabytes in sectors, shared-memory bank conflicts; resources as compiled",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("case", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    for name in (*_COUNTED, "regs", "spilled", "shared", "occupancy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limited by", no_wrap=True)
    for r in records:
        if not r.get("counters"):
            continue
        cells = [case_name(r), f"{r['backend']}/{r['kernel']}"]
        for name, keys in _COUNTED.items():
            value = sum(r["counters"].get(key, 0) for key in keys)
            cells.append(number(value / 1e6, 4) if name.startswith("M") else number(value, 6))
        used = r.get("resources")
        cells += (
            ["-"] * 5
            if used is None
            else [
                str(used["registers"]),
                str(used["spill_bytes"]),
                str(used["shared_bytes"]),
                f"{used['occupancy']:.0%}",
                ", ".join(used["occupancy_limited_by"]),
            ]
        )
        table.add_row(*cells)
    return table


def print_whole(console: Console, table: Table) -> None:
    """A table, no cell of it cut off: a console that is too narrow gets longer lines."""
    needed = Console(width=_ANY_WIDTH).measure(table).maximum
    if needed > console.width:
        console = Console(file=console.file, quiet=console.quiet, width=needed)
    console.print(table)


def print_ladder(console: Console, records: Sequence[Record], title: str) -> None:
    """Title in one piece, table and footnotes."""
    console.print(escape(title), style="italic", highlight=False, soft_wrap=True)
    print_whole(console, ladder(records))
    console.print()
    for line in footnotes(records):
        console.print(escape(line), highlight=False)
