"""Records of performance as Markdown tables, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab.bench import ceilings as bench_ceilings
from gpulab.bench import plot
from gpulab.lab.render import case_name
from gpulab.lab.render import number as digits
from gpulab.numerics.split import TF32_SPLIT

Record = dict[str, Any]
Cells = Sequence[str]


def number(value: float | None, count: int = 3) -> str:
    return digits(value, count)


def span(*values: float, unit: str = ".3g") -> str:
    """One value, or from the least to the largest: ``0.912 to 0.945``."""
    return " to ".join(dict.fromkeys(format(x, unit) for x in (min(values), max(values))))


def missed(got: float, least: float) -> str | None:
    """By how much a target is missed, or None; to a digit that is not 0."""
    if got >= least:
        return None
    share = 1 - got / least
    return f"missed by {share:.1%}" if share >= 0.0005 else f"missed by {100 * share:.1g}%"


def table(head: str, lines: Iterable[Cells], left: int = 1) -> str:
    """Columns named in `head` with bars between; all but the first `left` are numbers."""
    names = [name.strip() for name in head.split("|")]
    rules = ["---" if i < left else "---:" for i in range(len(names))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (names, rules, *lines)) + "\n"


def release(driver: str) -> str:
    """``580.65.06``, also of records that say ``driver 580.65.06 (CUDA 13.0)``."""
    return driver.removeprefix("driver ").partition(" ")[0]


def places(records: Sequence[Record]) -> str:
    """Cards, drivers, compilers and dates of the records."""

    def one(record: Record) -> str:
        around = record.get("environment") or record
        parts = (
            around.get("device_name"),
            around.get("driver") and f"driver {release(around['driver'])}",
            around.get("nvrtc") and f"NVRTC {around['nvrtc']}",
            around.get("date"),
        )
        return ", ".join(str(part) for part in parts if part)

    return "; ".join(dict.fromkeys(one(r) for r in records))


def size(record: Record) -> tuple[tuple[str, int], ...]:
    return tuple(record["dims"].items())


def row_name(record: Record) -> str:
    return f"{record['backend']}/{record['kernel']} {case_name(record)}"


def ran(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r["verdict"] is not None and not r.get("lesson")]


def ratio(record: Record) -> float | None:
    versus = record.get("vs_library")
    return None if not versus or record["verdict"] != "PASS" else float(versus["ratio"])


def kernel_ratio(record: Record) -> float | None:
    return (record.get("vs_library") or {}).get("kernel_ratio")


def by_size(records: Sequence[Record]) -> str:
    """Ratios to the library: a line a row, a column a size; TFLOP/s of the library itself."""
    timed = [r for r in ran(records) if r.get("time_ms")]
    columns = sorted({size(r) for r in timed}, key=lambda s: (len({x for _, x in s}) > 1, s))
    lines = []
    for name in dict.fromkeys(row_name(r) for r in timed):
        there = {size(r): r for r in timed if row_name(r) == name}
        cells = []
        for at in columns:
            record = there.get(at)
            if record is None:
                cells.append("")
            elif record["backend"] == "library":
                cells.append(f"{number(record['tflops'], 4)} TF")
            elif record["verdict"] != "PASS":
                cells.append(record["verdict"])
            else:
                cells.append("-" if ratio(record) is None else f"{ratio(record):.2f}")
        lines.append([name, *cells])
    head = " | ".join(["row", *(plot.size_name(s) for s in columns)])
    text = table(head, lines)
    return f"Speed against the library; of library rows, TFLOP/s (TF).\n\n{text}{refusals(records)}"


def refusals(records: Sequence[Record]) -> str:
    """Rows that could not run, with their reasons: another kernel of the list has to do it."""
    found: dict[str, list[str]] = {}
    for r in records:
        if r["verdict"] is None:
            text = f"`{r['backend']}/{r['kernel']}` at {plot.size_name(size(r))}: {r['reason']}"
            found.setdefault(text, []).append(case_name(r))
    lines = [f"- {text} ({'; '.join(dict.fromkeys(names))})" for text, names in found.items()]
    return "\nNot run:\n\n" + "\n".join(lines) + "\n" if lines else ""


def rows(records: Sequence[Record]) -> str:
    """Everything of a row: error, time, shares, clock and power."""
    head = (
        "size | row | max abs err | gate frac | arith frac | time (ms) | TFLOP/s | vs library "
        "| kernel | of ceiling | SM MHz | W | verdict"
    )
    lines = []
    for r in ran(records):
        taken, line = r.get("time_ms"), r.get("roofline")
        reading = (r.get("timing") or {}).get("telemetry_after") or {}
        lines.append([
            plot.size_name(size(r)), row_name(r), number(r["max_abs_err"]),
            number(r["contract_gate"]["fraction"]), number(r["arithmetic_gate"]["fraction"]),
            number(taken["median"], 4) if taken else "-", number(r["tflops"], 4),
            "-" if ratio(r) is None else f"{ratio(r):.3f}",
            "" if kernel_ratio(r) is None else f"{kernel_ratio(r):.3f}",
            "-" if line is None else f"{line['fraction']:.1%} {line['binds']}",
            number(reading.get("sm_clock_mhz"), 4), number(reading.get("power_w")), r["verdict"],
        ])  # fmt: skip
    return table(head, lines, left=2)


@dataclass(frozen=True)
class Target:
    """What a row is meant to reach: a ratio to its library.

    Args:
        text: for people.
        wanted: which records it is about.
        sizes: m = n = k.
        least: the ratio.
        alone: of the kernels, without the transposition before them.
        best: of each size only the fastest row is asked.
    """

    text: str
    wanted: Callable[[Record], bool]
    sizes: tuple[int, ...]
    least: float
    alone: bool = False
    best: bool = False

    def asked(self, records: Sequence[Record]) -> list[Record]:
        """Those of the records, all of one size, that have to reach it."""
        found = [r for r in records if self.wanted(r)]
        return sorted(found, key=lambda r: ratio(r) or 0.0)[-1:] if self.best else found


def _of(kernels: str, *formats: str, output: str | None = None, contract: str = "") -> Any:
    return lambda r: (
        r["kernel"] in kernels.split(",")
        and r["format"] in formats
        and r["contract"] == contract
        and r["output"] == (r["format"] if output == "same" else output or r["output"])
    )


_HALVES = _of("wgmma", "bf16", "fp16", output="same")
TARGETS = (
    Target("wgmma bf16, fp16", _HALVES, (4096, 8192), 1.0),
    Target("wgmma bf16, fp16", _HALVES, (2048, 16384), 0.95),
    Target("wgmma bf16, fp16", _HALVES, (1024,), 0.9),
    Target("wgmma tf32", _of("wgmma", "tf32"), (4096, 8192), 0.9, alone=True),
    Target("wgmma e4m3 fast", _of("wgmma", "e4m3", contract="fast"), (4096, 8192), 0.95, True),
    Target(
        "wgmma e4m3 promoted", _of("wgmma", "e4m3", contract="promoted"), (4096, 8192), 0.9, True
    ),
    Target("mma.sync bf16", _of("mma", "bf16"), (4096, 8192), 0.6),
    Target("CUDA-core fp32", _of("blocked,blocked_tma", "fp32"), (4096, 8192), 0.95, best=True),
    Target("3xTF32", _of("wgmma_3xtf32", "fp32", contract=TF32_SPLIT), (4096, 8192), 2.0),
)


LIMITS = {
    "blocked": "The copies into shared memory are instructions of the threads that multiply.",
    "blocked_tma": "A tile is long: fewer of them than places, or a last round of few, leave "
    "multiprocessors idle, though tiles of that round are halved.",
    "wgmma": "The tiles of a round that is not full leave multiprocessors idle, here as in the "
    "library; sums that are split in K would fill them.",
}
"""What keeps a row that misses its target from it, by kernel."""


def _spread(r: Record) -> str:
    """How the times of a row lie, beside what limits it."""
    t, side = r["time_ms"], r["dims"]["m"]
    return (
        f"- {row_name(r)} at {side}: median {number(t['median'], 4)} ms, least "
        f"{number(t['min'], 4)} ms, nine of ten within {number(t['p90'], 4)} ms. "
        f"{LIMITS.get(r['kernel'], '')}".rstrip()
    )


def targets(records: Sequence[Record]) -> str:
    """Each target with what was measured, by how much it is missed, and what limits what misses."""
    lines, short = [], []
    for target in TARGETS:
        for side in target.sizes:
            cube = [r for r in ran(records) if set(r["dims"].values()) == {side}]
            for r in target.asked(cube):
                whole, kernel = ratio(r), kernel_ratio(r)
                got = kernel if target.alone and kernel is not None else whole
                if whole is None or got is None:
                    said = "no ratio"
                else:
                    said = missed(got, target.least) or "met"
                    if said != "met":
                        short += filter(target.wanted, cube) if target.best else [r]
                shown = ["" if x is None else f"{x:.3f}" for x in (whole, kernel)]
                lines.append([str(side), row_name(r), f"{target.least:.2f}", *shown, said])
    text = table("size | row | wanted | vs library | kernel | result", lines, left=2) + (
        "\nWhere B is transposed first (tf32, fp8) the kernels without that launch are compared.\n"
    )
    if short:
        text += "\nWhat misses its target:\n\n" + "\n".join(map(_spread, short)) + "\n"
    return text


def ceilings(records: Sequence[Record]) -> str:
    lines = []
    for r in ran(records):
        reading = (r.get("timing") or {}).get("telemetry_after") or {}
        lines.append([
            bench_ceilings.name(r), f"`{r['instruction']}`" if r["instruction"] else "",
            number(r["tflops"], 4), number(r.get("flop_per_clock_per_sm"), 4),
            number(r["gb_per_s"], 4), number(reading.get("sm_clock_mhz"), 4),
            number(reading.get("power_w")), r["verdict"],
        ])  # fmt: skip
    head = "ceiling | instruction | TFLOP/s | flop/clk/SM | GB/s | SM MHz | W | verdict"
    return table(head, lines, left=2)


def ladder(records: Sequence[Record]) -> str:
    lines = []
    for r in ran(records):
        used = r.get("resources") or {}
        lines.append([
            plot.size_name(size(r)), r["kernel"], number(r["max_abs_err"]), number(r["tflops"], 4),
            "" if r["gain"] is None else f"{r['gain']:.2f}x",
            "-" if ratio(r) is None else f"{ratio(r):.3f}", str(used.get("registers", "-")),
            str(used.get("shared_bytes", "-")), r["verdict"], r["idea"],
        ])  # fmt: skip
    head = "size | kernel | max abs err | TFLOP/s | gain | vs library | registers | shared bytes"
    return table(head + " | verdict | what it adds", lines, left=2)


def growth(records: Sequence[Record]) -> str:
    """Errors against the stored inputs, by family, K and accumulation."""
    lines = []
    for r in ran(records):
        for family in r["families"]:
            lines.append([
                str(r["dims"]["k"]), family["family"], row_name(r),
                number(family["max_abs_err_stored"]), number(family["rms"]), r["verdict"],
            ])  # fmt: skip
    lines.sort(key=lambda cells: (int(cells[0]), cells[1]))
    return "max abs err against float64 over the stored inputs; rms of error / |A||B|.\n\n" + table(
        "K | inputs | row | max abs err | rms | verdict", lines, left=3
    )


def first_call(records: Sequence[Record]) -> str:
    lines = []
    for r in ran(records):
        later = [number(r[key]["median"]) for key in ("launch_us", "call_us")]
        took = [number(r[key], 4) for key in ("first_ms", "cached_ms")]
        lines.append([row_name(r), plot.size_name(size(r)), *took, *later, r["verdict"]])
    head = "row | size | first call (ms) | code cached (ms) | launch (us) | new arguments (us)"
    about = "The first call compiles; the last two are host time to queue a launch.\n\n"
    return about + table(head + " | verdict", lines)


def tune(records: Sequence[Record]) -> str:
    lines = [
        [r["sums"], r["tile"], number(r["start_us"]), number(r["slab_us"] * 1e3, 4)]
        for r in ran(records)
    ]
    return table("sums | tile | launch (us) | slab (ns)", lines, left=2)


def tries(records: Sequence[Record]) -> str:
    """What `record_try.py` recorded."""
    lines = [
        [
            r["idea"], row_name(r), plot.size_name(size(r)), number(r["before"]["median_ms"], 4),
            number(r["after"]["median_ms"], 4), f"{r['gain']:.3f}x", r["expected"],
        ]
        for r in records
    ]  # fmt: skip
    head = "idea | row | size | before (ms) | after (ms) | gain | what was expected"
    return table(head, lines)
