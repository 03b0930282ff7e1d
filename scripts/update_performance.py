"""Write docs/performance.md, and the plot beside it, from docs/results/*.jsonl.

    python scripts/update_performance.py            # the page; the plot where matplotlib is there
    python scripts/update_performance.py --check    # exit 1 where the page is not what they say

No number of the page is typed in: what is not recorded is said to be missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import performance_attention as attention
import performance_row_shapes as shapes
import performance_rows as rows
import performance_tables as tables

from gpulab.bench import plot, records
from gpulab.errors import UsageError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "performance.md"
PLOT = RESULTS / "matmul_large"

HEAD = """# Performance

Generated from `docs/results/*.jsonl` by `scripts/update_performance.py`; no number is typed in.
`scripts/card_performance.py` records what it says of matmul on one card of capability 9.0
(`--list` shows in which parts), `gpulab bench` any part of it, row operations and attention too,
`scripts/attention_limits.py` what limits attention.

## How it is measured

- A row and its library's take turns, run by run, in one process: a drift of the clocks meets both.
  "vs library" is the library's median time divided by the row's; above 1 the row is faster.
- Before each run the L2 is overwritten; a kernel under 50 us is timed in a graph that rotates over
  up to 16 sets of inputs, together at least twice the L2; inputs too small for that are timed with
  a warm L2 (`timing.l2` of a record says which). Copies and compilation are outside of the time.
- Inputs are drawn from N(0, 1) in full significands. Zeros and small integers switch fewer wires,
  draw less power and let a card that is bound by power run faster than it does on data.
- Every row is judged against float64 by both gates before it is timed, and every timed output is
  compared with the judged one bit for bit. Error and speed stand in one table.
- Formats that wgmma takes in one layout only (tf32, fp8) need B transposed first. That launch is
  part of the row's time, and of cuBLASLt's; "kernel" is what is left without it.
- "of ceiling" is the share of what the card was measured to do at most in the same run: the rate
  of the row's own instruction, or the copy bandwidth, whichever it comes nearer to.
"""

SECTIONS = (
    ("What the card does at most", "ceilings", tables.ceilings),
    ("Against the library, by size", "matmul_large", tables.by_size),
    ("Targets", "matmul_large", tables.targets),
    ("Every row", "matmul_large", tables.rows),
    ("Smaller sizes, every kernel", "matmul", tables.by_size),
    ("The ladder", "ladder", tables.ladder),
    ("fp8: fast and promoted sums", "fp8_growth", tables.growth),
    ("Row operations", "rows", rows.row_operations),
    ("Row operations: shapes that were tried", "row_shapes", shapes.row_shapes),
    ("Attention", "attention", attention.attention),
    ("Attention: what limits it", "attention_limits", attention.limits),
    ("First and later calls", "first_call", tables.first_call),
    ("What a tile costs", "tune", tables.tune),
    ("What was tried and did not help", "tries", tables.tries),
)
"""Heading, file of its records, and what makes text of them."""

MISSING = {
    "ceilings": "Not recorded yet: `gpulab bench ceilings`.",
    "rows": "Not recorded yet: `gpulab bench rmsnorm --save docs/results/rows.jsonl`, and so the "
    "other row operations.",
    "row_shapes": "Not recorded yet.",
    "attention": "Not recorded yet: `gpulab bench attention --sizes 4096,16384 --save "
    "docs/results/attention.jsonl`.",
    "attention_limits": "Not recorded yet: `scripts/attention_limits.py`.",
    "tries": "None is recorded. `scripts/record_try.py` makes a record of two runs of "
    "`gpulab bench`, before and after.",
}


def load(name: str, folder: Path) -> list[tables.Record]:
    """The records of a file; none where it is not there."""
    path = folder / f"{name}.jsonl"
    return records.read(path) if path.exists() else []


def page(folder: Path | None = None) -> str:
    """The whole text, from the committed results unless told."""
    folder = RESULTS if folder is None else folder
    parts = [HEAD]
    for heading, name, make in SECTIONS:
        found = load(name, folder)
        text = MISSING.get(name, "Not recorded yet: `scripts/card_performance.py`.")
        if found:
            text = (
                f"{tables.places(found)} (`docs/results/{name}.jsonl`).\n\n{make(found)}".rstrip()
            )
        parts.append(f"## {heading}\n\n{text}\n")
        if name == PLOT.name and make is tables.by_size and (folder / f"{PLOT.name}.svg").exists():
            parts.append(f"![speed and error by size](results/{PLOT.name}.svg)\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        if PAGE.read_text() == page():
            return 0
        print(
            "docs/performance.md is not what docs/results says: run scripts/update_performance.py"
        )
        return 1
    large = load(PLOT.name, RESULTS)
    if large:
        try:
            plot.draw(large, PLOT)
        except UsageError as error:
            print(f"no plot: {error.message}")
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
