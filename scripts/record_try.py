"""Record an idea that was tried, by two runs of `gpulab bench matmul --save`: before and after.

    python scripts/record_try.py "IDEA" --expected "WHY" --before A.jsonl --after B.jsonl

Rows that both files hold are compared and appended to docs/results/tries.jsonl, from which
docs/performance.md lists what did not help. Both runs must be of one card and driver, and every row
must pass. Exit code 2: they cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab.bench import records
from gpulab.errors import UsageError

TRIES = Path(__file__).resolve().parents[1] / "docs" / "results" / "tries.jsonl"
KEY = ("op", "backend", "kernel", "format", "accumulator", "output", "contract")
SAME = ("device_name", "driver", "nvrtc")

Record = dict[str, Any]


def measured(record: Record) -> Record:
    """The figures of a row that are compared."""
    used = record.get("resources") or {}
    return {
        "median_ms": record["time_ms"]["median"],
        "tflops": record["tflops"],
        "vs_library": (record.get("vs_library") or {}).get("ratio"),
        "max_abs_err": record["max_abs_err"],
        "registers": used.get("registers"),
        "spill_bytes": used.get("spill_bytes"),
    }


def keyed(found: list[Record]) -> dict[tuple[Any, ...], Record]:
    """Rows of the lab that passed and were timed, by what they are."""
    return {
        (*(r.get(k) for k in KEY), *r["dims"].items()): r
        for r in found
        if r.get("verdict") == "PASS" and r.get("time_ms") and r["backend"] != "library"
    }


def compare(idea: str, expected: str, before: list[Record], after: list[Record]) -> list[Record]:
    """One record a row that both runs hold.

    Raises:
        UsageError: there is none, or the runs are of different cards, drivers or compilers.
    """
    mine, theirs = keyed(before), keyed(after)
    made = []
    for key in (k for k in mine if k in theirs):
        one, other = mine[key], theirs[key]
        for field in SAME:
            values = [r["environment"].get(field) for r in (one, other)]
            if values[0] != values[1]:
                raise UsageError(f"{field} differs: {values[0]} before, {values[1]} after")
        first, second = measured(one), measured(other)
        made.append({
            "schema": 1, "kind": "try", "idea": idea, "expected": expected,
            **{k: one.get(k) for k in KEY}, "dims": one["dims"], "verdict": "PASS",
            "before": first, "after": second, "gain": first["median_ms"] / second["median_ms"],
            "environment": other["environment"],
        })  # fmt: skip
    if not made:
        raise UsageError("no row passes in both runs: there is nothing to compare")
    return made


def main(argv: list[str] | None = None, out: Path = TRIES) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("idea")
    parser.add_argument("--expected", required=True, help="why it was thought to help")
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    arguments = parser.parse_args(argv)
    try:
        before, after = records.read(arguments.before), records.read(arguments.after)
        made = compare(arguments.idea, arguments.expected, before, after)
    except UsageError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    with out.open("a") as lines:
        for record in made:
            lines.write(json.dumps(record) + "\n")
            print(f"{record['kernel']} {record['format']} {record['dims']}: {record['gain']:.3f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
