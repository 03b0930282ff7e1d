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

sys.path.insert(0, str(Path(__file__).resolve().parents[0]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from performance_tables import release

from gpulab.lab.render import case_name

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
MATMUL = (("matmul", 2048), ("matmul_large", 4096))
"""Tables of square products: the file, the size; docs/performance.md has all sizes."""
SPEEDS = tuple(RESULTS / f"{name}.jsonl" for name in ("rows", "attention"))
"""What ``gpulab bench`` of row operations and attention saved."""


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


def heading(records: list[dict], file: Path) -> str:
    around = records[0]["environment"]
    return (
        f"{around['device_name']}, driver {release(around['driver'])}, NVRTC {around['nvrtc']}, "
        f"{around['date']} (`docs/results/{file.name}`).\n"
    )


def speed(record: dict) -> str:
    """GB/s and its share of the bandwidth measured beside it, or TFLOP/s and its share of the
    tensor cores' ceiling."""
    if record["speed"] == "gb_per_s":
        share = record["bandwidth"]["fraction"]
    else:
        line = record.get("roofline")
        share = line["compute"]["fraction"] if line else None
    return cell(record[record["speed"]], 4) + (f" ({share:.2f})" if share is not None else "")


def speed_tables(records: list[dict], file: Path) -> str:
    """One table an operation, one column a shape; the error is the largest of all shapes."""
    out = [heading(records, file)]
    for op in dict.fromkeys(r["op"] for r in records):
        mine = [r for r in records if r["op"] == op]
        shapes = list(dict.fromkeys(tuple(r["dims"].items()) for r in mine))
        fixed = set.intersection(*(set(shape) for shape in shapes)) if len(shapes) > 1 else set()
        names = [", ".join(f"{k} {v}" for k, v in x if v and (k, v) not in fixed) for x in shapes]
        unit = {"gb_per_s": "GB/s and share of the bandwidth", "tflops": "TFLOP/s and share"}
        same = ", ".join(f"{k} {v}" for k, v in shapes[0] if v and (k, v) in fixed)
        out.append(f"\n{op}{', ' + same if same else ''}: {unit[mine[0]['speed']]}\n")
        out.append(f"| case | kernel | max abs err | {' | '.join(names)} | verdict |")
        out.append("| --- | --- | ---: |" + " ---: |" * len(shapes) + " --- |")
        rows: dict[tuple, dict] = {}
        for r in mine:
            key = (case_name(r), f"{r['backend']}/{r['kernel']}")
            rows.setdefault(key, {})[tuple(r["dims"].items())] = r
        for (case, kernel), at in rows.items():
            errors = [r["max_abs_err"] for r in at.values() if r["max_abs_err"] is not None]
            cells = [speed(at[x]) if x in at and at[x]["time_ms"] else "-" for x in shapes]
            worst = next((r["verdict"] for r in at.values() if r["verdict"] != "PASS"), "PASS")
            out.append(
                f"| {case} | {kernel} | {cell(max(errors, default=None))} "
                f"| {' | '.join(cells)} | {worst} |"
            )
    return "\n".join(out) + "\n"


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def table(file: Path, size: int) -> str:
    """Error beside speed, ratio to the library row of the same run."""
    records = [r for r in read(file) if set(r["dims"].values()) == {size}]
    if not records:
        return ""
    out = [heading(records, file), f"\n{size} x {size} x {size} (m x n x k)\n"]
    out.append(
        "| case | kernel | max abs err | gate frac | arith frac | time (ms) "
        "| TFLOP/s | vs library | verdict |"
    )
    out.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for r in records:
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
    files = [(RESULTS / f"{name}.jsonl", size) for name, size in MATMUL]
    parts = [table(file, size) for file, size in files if file.exists()]
    parts += [speed_tables(read(file), file) for file in SPEEDS if file.exists()]
    return "\n".join(parts) or "No results are committed.\n"


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
