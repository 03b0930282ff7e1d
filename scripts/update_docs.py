"""Regenerate what is computed in README.md: the output of ``gpulab run`` and the tables of results.

python scripts/update_docs.py            # results only
python scripts/update_docs.py --run      # the output of the emulated run too (half a minute)
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab.lab.render import case_name

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "matmul.jsonl"


SHAPES = 2
"""Shapes shown in README.md, the largest; all are in the file."""


def between(text: str, name: str, body: str) -> str:
    pattern = re.compile(rf"(<!-- {name}:begin [^>]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"README.md has no {name} markers")
    return pattern.sub(lambda m: m.group(1) + body + m.group(2), text)


def run_output() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gpulab", "run", "--device", "emulated"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return "```\n" + "\n".join(x.rstrip() for x in done.stdout.splitlines()) + "\n```\n"


def cell(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def tables(records: list[dict]) -> str:
    """One table a size: error beside speed, ratio to the library row of the same run."""
    out = []
    around = records[0]["environment"]
    out.append(
        f"{around['device_name']}, driver {around['driver']}, NVRTC {around['nvrtc']}, "
        f"{around['date']} (`docs/results/matmul.jsonl`).\n"
    )
    for shape in sorted({tuple(r["dims"].values()) for r in records})[-SHAPES:]:
        out.append("\n" + " x ".join(map(str, shape)) + " (m x n x k)\n")
        out.append(
            "| case | kernel | max abs err | gate frac | arith frac | time (ms) "
            "| TFLOP/s | vs library | verdict |"
        )
        out.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
        for r in (x for x in records if tuple(x["dims"].values()) == shape):
            ratio = r.get("vs_library")
            verdict = "FAIL (lesson)" if r["lesson"] and r["verdict"] == "FAIL" else r["verdict"]
            out.append(
                f"| {case_name(r)} | {r['backend']}/{r['kernel']} "
                f"| {cell(r['max_abs_err'])} | {cell(r['contract_gate']['fraction'])} "
                f"| {cell(r['arithmetic_gate']['fraction'])} "
                f"| {cell(r['time_ms']['median'] if r['time_ms'] else None, 4)} "
                f"| {cell(r['tflops'], 4)} | {'-' if not ratio else format(ratio['ratio'], '.2f')} "
                f"| {verdict} |"
            )
    return "\n".join(out) + "\n"


def results() -> str:
    if not RESULTS.exists():
        return "No results are committed.\n"
    return tables([json.loads(line) for line in RESULTS.read_text().splitlines()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true")
    arguments = parser.parse_args()
    readme = ROOT / "README.md"
    text = between(readme.read_text(), "results", results())
    if arguments.run:
        text = between(text, "run", run_output())
    readme.write_text(text)


if __name__ == "__main__":
    main()
