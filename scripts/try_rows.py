"""Time a raw row kernel in several shapes, in turns with each other and with copies, on a card.

    python scripts/try_rows.py softmax two_pass --cols 32768 --sweep
    python scripts/try_rows.py layernorm welford --cols 8192 --shape "Kept(512, 2, resident=2048)"
    python scripts/try_rows.py rmsnorm row --cols 262144 --changes "loads past L1" --save

Shapes are those of ``gpulab/kernels/row_shape.py``; ``--sweep`` takes every one that holds the row
in registers or shared memory and that the card has room for, and none the kernel's own. Each is
judged by the operation's gates first, and each timed output is compared with the judged one. With
``--save`` a line a shape goes to docs/results/row_shapes.jsonl, from which docs/performance.md is
made; ``--changes`` says what is changed in the sources of this tree. Exit code 1: a shape fails.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab import arch, registry
from gpulab.bench import bandwidth
from gpulab.errors import GpulabError, UsageError
from gpulab.formats import get
from gpulab.kernels.row_kernel import RowKernel
from gpulab.kernels.row_packs import BATCH, Packs, batch_of
from gpulab.kernels.row_shape import Ahead, Behind, Kept, Shape, Streamed
from gpulab.lab.environment import environment
from gpulab.lab.evaluate import evaluate_all
from gpulab.registry import Capability, Case
from gpulab.runtime.select import open_device

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "row_shapes.jsonl"
KINDS = {kind.__name__: kind for kind in (Kept, Streamed, Behind, Ahead)}
WAYS = {
    "turns": (False, "a block a row"),
    "holds": (True, "parameters of the columns in registers"),
    "polls": (True, "partial results in numbered words, a block's warps first"),
}
"""Fields of a shape that a record tells as changes."""
NAMES = {
    ("softmax", "online"): "softmax online",
    ("softmax", "two_pass"): "softmax two-pass",
    ("logsoftmax", "online"): "logsoftmax",
    ("logsoftmax", "two_pass"): "logsoftmax two-pass",
    ("rmsnorm", "row"): "rmsnorm",
    ("rmsnorm", "residual"): "residual fp32-sum",
    ("rmsnorm", "residual_rounded"): "residual rounded",
    ("layernorm", "two_pass"): "layernorm two-pass",
    ("layernorm", "welford"): "layernorm welford",
    ("crossentropy", "online"): "crossentropy",
}
"""Raw row kernels, as records name them."""
SAME_COPY = {"copy": "4 accesses a thread", "read": "8 accesses a thread"}
"""What all tries are held against, beside the fastest."""


def parse(text: str) -> Shape:
    """A shape as it is written in ``row_tables.py``.

    Raises:
        UsageError: it is none.
    """
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        named = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
        made: Shape = KINDS[call.func.id](*map(ast.literal_eval, call.args), **named)
    except (AssertionError, KeyError, SyntaxError, TypeError, ValueError) as error:
        known = ", ".join(KINDS)
        raise UsageError(f"--shape {text!r} is none of {known} with their fields") from error
    return made


def sweep(row: Packs, capability: Capability) -> list[Shape]:
    """Shapes that keep such rows on the chip, each once, as the card would take them."""
    found: dict[Shape, Shape] = {}
    for shape in (*_kept(row.count), *_streamed(row.count)):
        here = shape.on(capability, row)
        if here is not None and row.count <= here.packs:
            found.setdefault(here, shape)
    return list(found.values())


def _clusters(packs: int, most: int) -> list[int]:
    """The fewest blocks of which each thread of 1024 has no more than so many packs; and twice."""
    least = next((c for c in (1, 2, 4, 8) if packs <= most * 1024 * c), 8)
    return [least, 2 * least] if least < 8 else [8]


def _kept(packs: int) -> Iterator[Shape]:
    for cluster in _clusters(packs, 8)[:1]:
        for group in (32, 64, 128, 256, 512, 1024):
            regs = -(-packs // (group * cluster))
            if regs <= 8:
                for resident in (1024, 1536, 2048):
                    yield Kept(group, regs, cluster=cluster, resident=resident)


def _streamed(packs: int) -> Iterator[Shape]:
    """Rings of whole rows, or of half a row more than one."""
    for cluster in _clusters(packs, 12):
        for group in (128, 256, 512, 1024):
            mine = -(-packs // (group * cluster))
            if mine > 16 or mine < 2:
                continue
            batches = mine // batch_of(mine)
            for blocks in (1, 2, 3, 4):
                for ring in sorted(
                    {batches, batches + (batches + 1) // 2, 2 * batches, 3 * batches}
                ):
                    if ring > batches:
                        yield Streamed(group, mine, ring, blocks, cluster)
                    if blocks > 1 and ring <= 2 * batches:
                        yield Streamed(group, mine, ring, blocks, cluster, turns=False)
                if cluster > 1:
                    yield Behind(group, mine, blocks, cluster)


def case_of(case: Case, shape: Shape) -> Case:
    """The row, but in that shape."""
    kernel = getattr(case.spec.build, "__self__", None)
    if not isinstance(kernel, RowKernel):
        raise UsageError(f"{case.label} is no raw row kernel: its shape is not a table's")
    mine = replace(kernel, table=(shape,))
    name = f"{case.spec.name} {shape}"
    return Case(replace(case.spec, name=name, build=mine.build, plan=mine.plan), case.variant)


def told(shape: Shape, here: Shape) -> tuple[dict[str, Any], list[str]]:
    """The shape as a record has it, and what it says as changes."""
    facts: dict[str, Any] = {
        "holds": type(shape).__name__.lower(), "threads": here.threads, "rows": here.rows,
    }  # fmt: skip
    if isinstance(here, Ahead):
        facts |= {"packs": here.packs, "ahead": BATCH}
    elif isinstance(here, Kept):
        facts |= {"packs": here.regs, "shared": here.shared}
    else:
        facts |= {"packs": here.shared, "ring": here.ring}
        if isinstance(here, Streamed) and here.regs:
            facts["regs"] = here.regs
    facts |= {"blocks": here.blocks, "cluster": here.cluster}
    streamed = isinstance(here, Streamed)
    ways = [text for key, (value, text) in WAYS.items() if streamed and getattr(here, key) == value]
    return facts, ways


def line(
    name: str, record: dict[str, Any], shape: Shape, row: Packs, changes: Sequence[str]
) -> dict[str, Any]:
    """What row_shapes.jsonl has of a timed shape."""
    dims, beside, used = record["dims"], record["bandwidth"], record["resources"] or {}
    here = shape.on(arch.parse(record["capability"]), row)
    assert here is not None
    facts, ways = told(shape, here)
    same = beside["ways_gb_per_s"][SAME_COPY[beside["of"]]]
    found = {
        "schema": 1, "kind": "row_shape", "op": name, "format": record["format"],
        "cols": dims["cols"], "shape": facts,
        "array_bytes": dims["rows"] * dims["cols"] * get(record["format"]).bits // 8,
        "time_ms": record["time_ms"]["median"], "gb_per_s": record["gb_per_s"], "of": beside["of"],
        "yardstick_gb_per_s": same, "fraction": record["gb_per_s"] / same,
        "of_fastest": beside["fraction"],
        "registers": used.get("registers"), "spill_bytes": used.get("spill_bytes"),
    }  # fmt: skip
    every = [*changes, *ways]
    return found | ({"changes": every} if every else {})


def measured(given: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """A line a shape that passed, and whether all did; the others are told on stderr.

    Raises:
        GpulabError: no card, no such kernel, or impossible dims.
    """
    found = [
        c for c in registry.cases(given.op, format=given.format)
        if (c.spec.backend, c.spec.name) == ("raw", given.kernel)
    ]  # fmt: skip
    if (given.op, given.kernel) not in NAMES or not found:
        known = ", ".join(" ".join(key) for key in NAMES)
        raise UsageError(f"{given.op} {given.kernel} is no raw row kernel: {known}")
    device = open_device("cuda")
    (case,) = found
    cols = given.cols
    rows = given.rows or max(1, given.mib * (1 << 20) * 8 // (cols * get(given.format).bits))
    kernel = getattr(case.spec.build, "__self__", None)
    assert isinstance(kernel, RowKernel)
    dims = {"rows": rows, "cols": cols}
    row, _ = kernel.layout(case.variant, device.capability, dims)
    shapes = [parse(text) for text in given.shape]
    shapes += sweep(row, device.capability) if given.sweep else ()
    done = evaluate_all(
        [case, *(case_of(case, shape) for shape in shapes)], device, dims, families=["normal"],
        runs=given.runs, yardstick=bandwidth.yardstick(bandwidth.traffic(given.op)),
    )  # fmt: skip
    around = environment(device)
    lines = []
    for record, shape in zip(done, [None, *shapes], strict=True):
        taken = shape or kernel.layout(case.variant, device.capability, dims)[1]
        if record["verdict"] != "PASS":
            print(f"{taken}: {record['verdict']}: {record['reason']}", file=sys.stderr)
            continue
        name = NAMES[given.op, given.kernel]
        lines.append(line(name, record, taken, row, given.changes) | {"environment": around})
        print(f"{lines[-1]['of_fastest']:.3f} {'' if shape else 'the own '}{taken}", flush=True)
    return lines, len(lines) == len(done)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("op")
    parser.add_argument("kernel")
    parser.add_argument("--cols", type=int, required=True)
    parser.add_argument("--rows", type=int, help="default: as many as fill --mib")
    parser.add_argument("--mib", type=int, default=64, help="size of x")
    parser.add_argument("--format", default="bf16")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--changes", action="append", default=[])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    try:
        lines, passed = measured(given)
    except GpulabError as error:
        print(f"{error.message}\n{error.fix or ''}".strip(), file=sys.stderr)
        return error.exit_code
    if given.save:
        with OUT.open("a") as out:
            out.writelines(json.dumps(each) + "\n" for each in lines)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
