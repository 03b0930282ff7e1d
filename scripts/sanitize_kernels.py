"""Run the lab's own kernels under compute-sanitizer. Needs a card.

    python scripts/sanitize_kernels.py [--out docs/results/sanitizer_kernels.jsonl] [--jobs 6]
    python scripts/sanitize_kernels.py --only wgmma --tools memcheck,racecheck

Each run is one command of the lab, at a small size with tails, under one tool; the lab judges the
outputs of that very run. One JSON row a (command, tool): how many reports, the first of them, and
the verdict. A run is clean when the tool's output is complete and reports nothing, and every row of
the command passes (a lesson: fails as it must). Exit code 0: every run is clean; 1: one is not; 7:
no card or tool.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sanitizer_output import TOOLS, parse

from gpulab.errors import GpulabError
from gpulab.lab.environment import environment
from gpulab.runtime.select import open_device

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "results" / "sanitizer_kernels.jsonl"
LIMIT_S = 150
MATMUL = "matmul --m 200 --n 336 --k 272"
RUNS = {
    "wgmma": f"{MATMUL} --kernel wgmma",
    "wgmma_3xtf32": f"{MATMUL} --kernel wgmma_3xtf32",
    # Few tiles are halved between two blocks; these are too many for that on 132 multiprocessors.
    "blocked_tma": f"{MATMUL} --kernel blocked_tma",
    "blocked_tma_whole": "matmul --m 1570 --n 1292 --k 48 --kernel blocked_tma",
    "mma": f"{MATMUL} --kernel mma,mma_3xtf32",
    "cuda_cores": f"{MATMUL} --kernel simt,blocked --backend raw",
    **{
        op: f"{op} --rows 5 --cols 4099 --format bf16 --backend raw"
        for op in ("rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy")
    },
    "rmsnorm_residual": "rmsnorm --residual --rows 5 --cols 4099 --format bf16 --backend raw",
    **{
        f"long_{op}": f"{op} --rows 40 --cols 131072 --format bf16 --backend raw"
        for op in ("rmsnorm", "layernorm", "softmax", "logsoftmax")
    },
    "long_residual": "rmsnorm --residual --rows 40 --cols 131072 --format bf16 --backend raw",
    "long_row": "softmax --rows 2 --cols 140000 --format bf16 --backend raw",
    "attention": "attention --batch 1 --heads 2 --seq-q 130 --seq-k 200 --head-dim 64 --causal "
    "--backend raw",
}
"""Commands of the lab by the name of their run."""


def sanitized(name: str, tool: str, port: int) -> dict[str, Any]:
    """One run of one tool, as a row."""
    command = ["compute-sanitizer", "--tool", tool, "--port", str(port), "--print-limit", "20"]
    command += [sys.executable, "-m", "gpulab", *RUNS[name].split(), "--device", "cuda"]
    command += ["--no-time", "--json"]
    begun = time.monotonic()
    own = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, env=own, check=False
        )
        printed, text, code = done.stdout, done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        printed, text, code = "", "", None
    read = parse(tool, text, code, ())
    records = [json.loads(line) for line in printed.splitlines() if line.startswith('{"')]
    judged = [r for r in records if r.get("verdict") is not None]
    wrong = [r for r in judged if r["verdict"] != ("FAIL" if r["lesson"] else "PASS")]
    problem = read.problem or (None if judged else f"no verdict; exit code {code}")
    clean = problem is None and not read.errors and not read.findings and not wrong
    return {
        "schema": 1,
        "kind": "sanitized",
        "run": name,
        "command": f"gpulab {RUNS[name]}",
        "tool": tool,
        "kernels": sorted({f"{r['backend']}/{r['kernel']} {r['format']}" for r in judged}),
        "reports": read.errors,
        "first": read.findings[0].text if read.findings else None,
        "wrong": len(wrong),
        "problem": problem,
        "clean": clean,
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--only", default=",".join(RUNS), help="names of runs")
    parser.add_argument("--tools", default=",".join(TOOLS))
    given = parser.parse_args()
    names, tools = given.only.split(","), given.tools.split(",")
    if unknown := [n for n in names if n not in RUNS] + [t for t in tools if t not in TOOLS]:
        parser.error(f"unknown: {', '.join(unknown)}; runs {', '.join(RUNS)}; tools {TOOLS}")
    if shutil.which("compute-sanitizer") is None:
        print("needs compute-sanitizer, of the CUDA toolkit", file=sys.stderr)
        return 7
    try:
        around = environment(open_device("cuda"))
    except GpulabError as error:
        print(f"{error.message}\n{error.fix or ''}".strip(), file=sys.stderr)
        return error.exit_code
    given.out.parent.mkdir(parents=True, exist_ok=True)
    asked = [(name, tool) for name in names for tool in tools]
    dirty = 0
    with given.out.open("w") as out, ThreadPoolExecutor(max_workers=given.jobs) as pool:
        rows = pool.map(lambda i: sanitized(*asked[i], 49152 + 16 * i), range(len(asked)))
        for row in rows:
            out.write(json.dumps(row | {"environment": around}) + "\n")
            out.flush()
            dirty += not row["clean"]
            state = "clean" if row["clean"] else row["problem"] or f"{row['reports']} reports"
            print(
                f"{row['run']:18s} {row['tool']:10s} {row['seconds']:6.1f} s  {state}", flush=True
            )
    return int(dirty > 0)


if __name__ == "__main__":
    sys.exit(main())
