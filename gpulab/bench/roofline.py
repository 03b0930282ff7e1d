"""How near a row comes to what its card can do, by ceilings measured in the same run.

A row can be no faster than its instruction's rate, nor than its inputs and outputs pass through
memory once; the one of the two that it comes nearer to binds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.table import Table

from gpulab.bench import ceilings
from gpulab.lab.render import case_name, number
from gpulab.numerics.split import PRODUCTS, TF32_SPLIT
from gpulab.runtime.cuda_clock import clock_of
from gpulab.runtime.device import Device

Record = dict[str, Any]

BANDWIDTH = "copy"
_FAMILIES = ("mma.sync", "wgmma")
_CUDA_CORES = "fma"


class Roofline:
    """Ceilings of a card, each measured when a timed row first needs it.

    Args:
        device: the card.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.ceilings: list[Record] = []

    def over(self, records: Sequence[Record]) -> list[Record]:
        """``with_fractions`` of the records; ceilings that are missing are measured first."""
        timed = {_multiplied(r) for r in records if r.get("time_ms")}
        if timed:
            needed = (timed | {"fp32", "bytes"}) - {str(c["format"]) for c in self.ceilings}
            self.ceilings += ceilings.measure(
                self.device,
                clock_of(self.device),
                lambda c: c.format in needed and c.kind != "read",
            )
        return with_fractions(records, self.ceilings)


def with_fractions(records: Sequence[Record], measured: Sequence[Record]) -> list[Record]:
    """The records with ``roofline``: None where they have no time or their limit no ceiling.

    Args:
        records: rows of an operation.
        measured: ceilings of the same card, from the same run.
    """
    good = [c for c in measured if c["verdict"] == "PASS"]
    return [r | {"roofline": _fraction(r, good)} for r in records]


def _fraction(record: Record, measured: Collection[Record]) -> dict[str, Any] | None:
    if not record.get("time_ms"):
        return None
    rate = _rate(record, measured)
    moved = next((c for c in measured if c["kernel"] == BANDWIDTH), None)
    if rate is None or moved is None:
        return None
    compute, memory = _limit(rate, "tflops", record), _limit(moved, "gb_per_s", record)
    bound = max(compute, memory, key=lambda limit: float(limit["fraction"]))
    found = bound | {"compute": compute, "memory": memory}
    if record.get("kernel_alone"):
        alone = record["kernel_alone"]["tflops"] / rate["tflops"]
        found["kernel_fraction_of_compute"] = alone
    return found


def _limit(ceiling: Record, unit: str, record: Record) -> dict[str, Any]:
    return {
        "binds": ceilings.name(ceiling),
        "ceiling": ceiling[unit],
        "unit": unit,
        "fraction": record[unit] / ceiling[unit],
    }


def _rate(record: Record, measured: Collection[Record]) -> Record | None:
    """The ceiling of the instruction that a row declares; None where that was not measured."""
    instruction = record.get("instruction")
    if not instruction:
        family, fmt = _CUDA_CORES, "fp32"  # operands of any format are multiplied as float32
    else:
        family = next((f for f in _FAMILIES if instruction.startswith(f)), "")
        fmt = _multiplied(record)
    wanted = (family, fmt, record["accumulator"])
    found = (c for c in measured if (c["kernel"], c["format"], c["accumulator"]) == wanted)
    rate = next(found, None)
    if rate is None or not _split(record):
        return rate
    return {**rate, "tflops": rate["tflops"] / PRODUCTS, "format": f"{fmt} / {PRODUCTS}"}


def _split(record: Record) -> bool:
    return record.get("contract") == TF32_SPLIT


def _multiplied(record: Record) -> str:
    """The format that is multiplied."""
    return "tf32" if _split(record) else str(record["format"])


def table(records: Sequence[Record]) -> Table:
    """One line a row that has a fraction, of records that ``with_fractions`` made."""
    title = "share of this card's measured ceilings; the larger one binds"
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("case", "kernel"):
        shown.add_column(column, no_wrap=True)
    for column in ("TFLOP/s", "of compute", "GB/s", "of memory"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("binds", no_wrap=True)
    for r in records:
        line = r.get("roofline")
        if line is None:
            continue
        unit = "TFLOP/s" if line["unit"] == "tflops" else "GB/s"
        shown.add_row(
            case_name(r),
            f"{r['backend']}/{r['kernel']}",
            number(r["tflops"], 4),
            f"{line['compute']['fraction']:.1%}",
            number(r["gb_per_s"], 4),
            f"{line['memory']['fraction']:.1%}",
            f"{line['binds']}: {number(line['ceiling'], 4)} {unit}",
        )
    return shown
