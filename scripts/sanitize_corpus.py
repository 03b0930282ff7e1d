"""Compare compute-sanitizer with the emulated device on the planted bugs. Needs a card.

    python scripts/sanitize_corpus.py [--out docs/results/sanitizer_corpus.jsonl] [--jobs 6]
    python scripts/sanitize_corpus.py --rejudge RECORDED.jsonl   # no card: a recording judged anew

Every kernel of tests/emulated/bugs is compiled once with line information; small child processes
load the cubins through CuPy and run under memcheck, racecheck, initcheck and synccheck. A bug is
run alone under the tool that can see it, the correct twins together under each tool. One JSON row
a (kernel, tool). A tool agrees with the emulated device if both find the same kind on a line the
source marks, or if neither finds anything. A row that cannot show either says why not in its field
`explanation`: the tool does not watch such bugs; it does not see this one but does see, in this
very run, the control that the manifest names; it did not end in a bug whose threads wait for ever;
the twin holds nothing the tool watches, or the tool has found no planted bug. Exit code 0: every
row agrees or is explained; 1: some row does not; 7: no card or tool.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "emulated" / "bugs"))

import corpus
from corpus import Case
from sanitizer_output import TOOLS, Output, parse
from sanitizer_rows import judge, judge_anew, tool_for

from gpulab.errors import FaultError, GpulabError, KernelTimeoutError

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 40
OUT = ROOT / "docs" / "results" / "sanitizer_corpus.jsonl"


def child(folder: Path, labels: list[str]) -> int:
    """Launch kernels from prepared cubins; runs inside compute-sanitizer."""
    import cupy

    runtime = cupy.cuda.runtime
    for label in labels:
        case, plan = corpus.get(label), json.loads((folder / f"{label}.json").read_text())
        try:
            function = cupy.RawModule(path=str(folder / f"{label}.cubin")).get_function(
                plan["entry"]
            )
            arguments, pointers = [], []
            for arg in case.args:
                scalar = next((kind for kind in corpus.DTYPES if kind in arg), None)
                if scalar is not None:
                    arguments.append(corpus.DTYPES[scalar].type(arg[scalar]))
                    continue
                kind = arg.get("in") or arg.get("inout") or arg["out"]
                nbytes = arg["count"] * corpus.DTYPES[kind].itemsize
                pointer = runtime.malloc(nbytes)
                pointers.append(pointer)
                if "out" not in arg:
                    host = np.ascontiguousarray(corpus.values(arg))
                    runtime.memcpy(pointer, host.ctypes.data, nbytes, runtime.memcpyHostToDevice)
                arguments.append(np.uint64(pointer))
            function(case.grid, case.block, tuple(arguments))
            runtime.deviceSynchronize()
            for pointer in pointers:
                runtime.free(pointer)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            print(f"failed {label}: {error}", flush=True)
            return 1
        except cupy.cuda.driver.CUDADriverError as error:
            print(f"failed {label}: {error}", flush=True)
            return 1
        print(f"launched {label}", flush=True)
    return 0


def compile_all(folder: Path, capability: tuple[int, int]) -> None:
    """The corpus as cubins for this card, with the mangled entry names."""
    from gpulab.runtime import nvrtc

    for case in corpus.cases():
        compiled = nvrtc.compile_cubin(case.source, case.entry, capability)
        assert compiled.cubin is not None
        (folder / f"{case.label}.cubin").write_bytes(compiled.cubin)
        (folder / f"{case.label}.json").write_text(json.dumps({"entry": compiled.lowered}))


def run_tool(tool: str, labels: tuple[str, ...], folder: Path, port: int, shared: bool) -> Output:
    """One compute-sanitizer process."""
    command = ["compute-sanitizer", "--tool", tool, "--port", str(port)]
    if tool == "initcheck" and shared:
        command += ["--initcheck-address-space", "all"]
    command += [sys.executable, __file__, "--child", str(folder), *labels]
    environment = {**os.environ, "CUPY_CACHE_DIR": str(folder / "cupy"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
        )
        text, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        raw = (late.stdout or b"") + (late.stderr or b"")
        text, code = raw.decode(errors="replace") if isinstance(raw, bytes) else raw, None
    (folder / f"{tool}-{labels[0]}-{len(labels)}.log").write_text(text)
    return parse(tool, text, code, labels)


def emulated(case: Case, capability: tuple[int, int]) -> dict[str, Any]:
    """What the emulated device finds in the same kernel."""
    try:
        corpus.emulate(
            case, capability=capability, budget=20_000 if case.fault == "timeout" else None
        )
    except FaultError as fault:
        told = fault.details
        lines = sorted({told["line"], told.get("other_line") or told["line"]})
        return {"found": True, "kind": told["fault"], "lines": lines}
    except KernelTimeoutError as late:
        return {"found": True, "kind": "timeout", "lines": [late.details["line"]]}
    return {"found": False, "kind": None, "lines": []}


def _asked(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


def report(rows: list[dict[str, Any]], out: Path, taken: str) -> int:
    """Write the rows and say what agrees, is explained and differs; the exit code."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    apart = [row for row in rows if not row["agreement"] and not row["explanation"]]
    for row in apart:
        print(f"apart: {row['case']} under {row['tool']}: {row['note']}")
    explained = [row for row in rows if row["explanation"]]
    for words in sorted({row["explanation"] for row in explained if row["fault"] is not None}):
        names = [row["case"] for row in explained if row["explanation"] == words]
        print(f"explained: {', '.join(names)}: {words}")
    agree = len(rows) - len(apart) - len(explained)
    print(f"{agree} rows agree, {len(explained)} do not apply and say why, {len(apart)} differ")
    print(f"wrote {out} in {taken}")
    return 1 if apart else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--logs", type=Path, help="keep the tools' outputs here")
    parser.add_argument("--rejudge", type=Path, help="judge this recording anew, with no card")
    options = parser.parse_args()
    started = time.monotonic()
    if options.rejudge is not None:
        recorded = [json.loads(line) for line in options.rejudge.read_text().splitlines()]
        models = {case.label: emulated(case, (8, 9)) for case in corpus.cases()}
        rows = judge_anew(recorded, models)
        return report(rows, options.out, f"{time.monotonic() - started:.0f} s")
    if shutil.which("compute-sanitizer") is None or shutil.which("nvidia-smi") is None:
        print("needs compute-sanitizer and a card with its driver", file=sys.stderr)
        return 7
    query = ("--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader", "--id=0")
    card, driver, capability_text = (p.strip() for p in _asked("nvidia-smi", *query).split(","))
    capability = tuple(int(part) for part in capability_text.split("."))
    version = _asked("compute-sanitizer", "--version").strip().splitlines()[-1]
    shared = "initcheck-address-space" in _asked("compute-sanitizer", "--help")
    folder = options.logs or Path(tempfile.mkdtemp(prefix="sanitize-"))
    folder.mkdir(parents=True, exist_ok=True)
    compile_all(folder, (capability[0], capability[1]))
    runs = {
        (t, c.label): (c.label,) for c in corpus.cases() if c.fault and (t := tool_for(c, shared))
    }
    twins = tuple(case.label for case in corpus.cases() if not case.fault)
    runs |= {(tool, "twins"): twins for tool in TOOLS}
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        waiting = {
            key: pool.submit(run_tool, key[0], labels, folder, 49152 + 16 * i, shared)
            for i, (key, labels) in enumerate(sorted(runs.items(), key=lambda r: -len(r[1])))
        }
        models = {case.label: emulated(case, (8, 9)) for case in corpus.cases()}
        outputs = {key: job.result() for key, job in waiting.items()}
    about = {"schema": 1, "card": card, "driver": driver, "sanitizer": version}
    about |= {"date": date.today().isoformat()}
    rows = [row | about for row in judge(outputs, models, shared)]
    return report(rows, options.out, f"{time.monotonic() - started:.0f} s; logs in {folder}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(Path(sys.argv[2]), sys.argv[3:]))
    try:
        sys.exit(main())
    except GpulabError as error:
        print(f"{error.message}\n{error.fix or ''}".strip(), file=sys.stderr)
        sys.exit(error.exit_code)
