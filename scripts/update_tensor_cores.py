"""Rewrite the computed tables of docs/tensor-cores.md.

    python scripts/update_tensor_cores.py [--measure]

The mismatch rates of capability 9.0 come from the sample in tests/data. Those of the other cards
need dot_products_by_gpu.npz (GPULAB_GOLDEN names its folder); without it their table is kept.
``--measure`` times the library on this machine too (one thread).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cpu")]

import golden_data  # noqa: E402
import readings  # noqa: E402

from gpulab.formats import encode  # noqa: E402
from gpulab.numerics import approx, tensorcore  # noqa: E402
from gpulab.numerics._operands import operand_format  # noqa: E402
from gpulab.numerics._parameters import CAPABILITIES, ROWS, Row  # noqa: E402

PAGE = ROOT / "docs" / "tensor-cores.md"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def parameters() -> str:
    """One line for every row of the parameter table, by capability."""
    lines = []
    for capability in CAPABILITIES:
        for row in ROWS:
            if capability in row.capabilities and row.group != "int8":
                lines.append([".".join(map(str, capability)), *described(row)])
    header = ["capability", "instruction", "operands", "C, D", "K", "N", "F", "result", "status"]
    return table(header, lines)


def described(row: Row) -> list[str]:
    pairs = row.pairs or ()
    types = ", ".join("x".join(p) if p[0] != p[1] else p[0] for p in pairs)
    groups = {
        "half": "f16, bf16",
        "fp8": "e4m3, e5m2, mixed",
        "narrow": "fp6 or fp4 with fp8, fp6 or fp4",
    }
    rounding = "RZ, 13 bits" if row.short else "RZ"
    results = ["RNE" if d == "f16" else rounding for d in row.results]
    route = "; through fp16" if row.route == "through_fp16" else ""
    return [
        row.family,
        types or groups.get(row.group, row.group),
        ", ".join(row.results),
        ", ".join(map(str, row.k)),
        ", ".join(str(n) for n in dict.fromkeys(min(row.block, k) for k in row.k)),
        str(row.fraction_bits),
        ", ".join(dict.fromkeys(results)) + route,
        f"assumed: {row.note}" if row.verified == "assumed" else row.note,
    ]


def recorded_misses() -> str:
    """Wrong readings of the recorded forms."""
    columns = list(dict.fromkeys(wrong for _, wrong in readings.readings()))
    rates = {(f, w): readings.miss(f, w) for f, w in readings.readings()}
    lines = []
    for form, name in golden_data.FORMS.items():
        cells = [rates.get((form, wrong)) for wrong in columns]
        lines.append([f"`{name}`", *("-" if c is None else f"{c[0]:.1%}" for c in cells)])
    return table(["instruction", *columns], lines)


def card_misses() -> str:
    """Wrong readings of the other cards' dot products."""
    columns = list(dict.fromkeys(wrong for *_, wrong in readings.card_readings()))
    rates = {(c, n, w): readings.card_miss(c, n, w)[0] for c, n, w in readings.card_readings()}
    lines = []
    for card, name in dict.fromkeys((c, n) for c, n, _ in rates):
        cells = [rates.get((card, name, wrong)) for wrong in columns]
        lines.append([card, name, *("-" if c is None else f"{c:.1%}" for c in cells)])
    return table(["card", "operands", *columns], lines)


def open_readings() -> str:
    """Sets that do not name their instruction."""
    grouped: dict[str, list[str]] = {}
    for (card, name, kind), reading in readings.OPEN.items():
        grouped.setdefault(reading, []).append(f"{card}/{name}/{kind}")
    return table(["sets", "reading that fits"], [[", ".join(v), k] for k, v in grouped.items()])


def approximate() -> str:
    """The approximate instructions and what each rests on."""
    lines = []
    for name in approx.modelled():
        here, note = approx.status(name, (9, 0))
        lines.append([f"`{name}`", here, note])
    return table(["instruction", "on 9.0", "note"], lines)


TIMED = (
    ("mma.sync.m16n8k16.f32.f16.f16.f32", (8, 9)),
    ("mma.sync.m16n8k16.f32.f16.f16.f32", (9, 0)),
    ("mma.sync.m16n8k16.f32.bf16.bf16.f32", (8, 9)),
    ("mma.sync.m16n8k8.f32.tf32.tf32.f32", (8, 9)),
    ("mma.sync.m16n8k16.f16.f16.f16.f16", (8, 9)),
    ("mma.sync.m16n8k32.f32.e4m3.e4m3.f32", (8, 9)),
    ("mma.sync.m16n8k32.f32.e4m3.e4m3.f32", (9, 0)),
    ("wgmma.m64n8k32.f32.e4m3.e4m3", (9, 0)),
)
WARPS = (1, 64, 4096)


def cost() -> str:
    """Best of several runs, nanoseconds of process time a product, M = 16 and N = 8."""
    rng = np.random.default_rng(1)
    lines = []
    for name, capability in TIMED:
        rules = tensorcore.model(name, capability)
        row = operand_format(rules.a_type)
        cells = []
        for warps in WARPS:
            a, b = (
                encode(row, rng.standard_normal(shape))
                for shape in ((warps, 16, rules.k), (warps, rules.k, 8))
            )
            c = np.zeros((warps, 16, 8), np.uint16 if rules.d_type == "f16" else np.uint32)
            work = partial(tensorcore.mma, a, b, c, name, capability)
            best = min(seconds(work) for _ in range(9))
            each = best / (warps * 128 * rules.k) * 1e9
            cells.append(f"{each:.0f}" if each >= 10 else f"{each:.1f}")
        lines.append([f"`{name}`", ".".join(map(str, capability)), *cells])
    return table(["instruction", "on", *(f"{w} warp{'s' * (w > 1)}" for w in WARPS)], lines)


def seconds(work: Callable[[], object]) -> float:
    """Process time of a call; short ones are repeated."""
    start = time.process_time()
    runs = 0
    while (passed := time.process_time() - start) < 0.01 or runs == 0:
        work()
        runs += 1
    return passed / runs


PARTS = {
    "parameters": parameters,
    "recorded misses": recorded_misses,
    "card misses": card_misses,
    "open readings": open_readings,
    "approximate": approximate,
}


def replaced(page: str, name: str, text: str) -> str:
    """The page with the part between its markers exchanged."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{PAGE} has no part {name!r}")
    return pattern.sub(lambda m: m[1] + text + "\n" + m[2], page)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    measured = {"cost": cost} if "--measure" in sys.argv[1:] else {}
    for name, make in (PARTS | measured).items():
        if name == "card misses" and not (golden_data.FULL / "dot_products_by_gpu.npz").exists():
            print("dot_products_by_gpu.npz is not here: its table is kept")
            continue
        page = replaced(page, name, make())
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
