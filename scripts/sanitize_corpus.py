"""Compare compute-sanitizer with the emulated device on the planted bugs. Needs a card.

    python scripts/sanitize_corpus.py [--out docs/results/sanitizer_corpus.jsonl] [--jobs 6]

Every kernel of tests/emulated/bugs is compiled once with line information; small child processes
load the cubins through CuPy and run under memcheck, racecheck, initcheck and synccheck. A bug is
run alone under the tool that can see it, the correct twins together under each tool. One JSON row
a (kernel, tool). A tool agrees with the emulated device if both find the same kind on a line the
source marks, or if neither finds anything; a twin counts only under a tool that has found a
planted bug in this very run. Exit code 0: all agree; 1: some row does not; 7: no card or tool.
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

from gpulab.errors import FaultError, GpulabError, KernelTimeoutError

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 75
ITS_WORD = {"async_in_flight": "race"}
"""Kinds that compute-sanitizer sorts under another."""
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


def bug_row(case: Case, output: Output | None, model: dict[str, Any]) -> dict[str, Any]:
    """The row of a planted bug; ``output`` is None where no tool can see it."""
    row: dict[str, Any] = {"case": case.label, "tool": case.tool or None, "fault": case.fault}
    row |= {"marked_lines": case.lines(case.fault), "emulated": model, "note": case.reason}
    if output is None:
        return row | {"applies": False, "found": None, "agreement": None}
    if output.problem is not None:
        return row | {"applies": True, "found": None, "agreement": False, "note": output.problem}
    hits = output.of(case.label)
    if case.fault == "trap":  # ends the context: told by the call that notices, without a line
        hits += [f for f in output.findings if f.kind == "trap" and f not in hits]
    right = [f for f in hits if f.kind == ITS_WORD.get(case.fault, case.fault)]
    row |= {"applies": True, "found": bool(right), "kind": right[0].kind if right else None}
    row |= {"lines": sorted({line for f in right for line in f.lines})}
    row |= {
        "severity": right[0].severity if right else None,
        "text": right[0].text if right else None,
    }
    placed = all(set(f.lines) <= set(case.lines()) for f in right)
    same = bool(right) and placed and model["kind"] == case.fault
    note = "" if same else f"{len(hits)} findings: {[f.text for f in hits][:2]}"
    return row | {"agreement": same, "note": note}


def twin_row(case: Case, output: Output, armed: bool, model: dict[str, Any]) -> dict[str, Any]:
    """The row of a correct kernel under one tool."""
    row: dict[str, Any] = {"case": case.label, "tool": output.tool, "fault": None}
    row |= {"emulated": model, "applies": True}
    if output.problem is not None:
        return row | {"found": None, "agreement": False, "note": output.problem}
    if not armed:
        why = "this tool found none of its planted bugs here"
        return row | {"found": None, "agreement": False, "note": why}
    hits = output.of(case.label)
    note = f"{[f.text for f in hits][:2]}" if hits else ""
    return row | {
        "found": bool(hits),
        "lines": sorted({line for f in hits for line in f.lines}),
        "agreement": bool(hits) == model["found"],
        "note": note,
    }


def judge(
    outputs: dict[tuple[str, str], Output], models: dict[str, dict[str, Any]], shared: bool
) -> list[dict[str, Any]]:
    """Rows from the outputs, keyed (tool, case or "twins"), and from the emulated device."""
    rows = [
        bug_row(case, outputs.get((tool_for(case, shared), case.label)), models[case.label])
        for case in corpus.cases()
        if case.fault
    ]
    armed = {row["tool"] for row in rows if row["found"]}
    for tool in TOOLS:
        output = outputs[tool, "twins"]
        rows += [
            twin_row(case, output, tool in armed, models[case.label])
            for case in corpus.cases()
            if not case.fault
        ]
    return rows


def tool_for(case: Case, shared: bool) -> str:
    """The tool that can see a bug; newer initchecks watch shared memory too."""
    return "initcheck" if case.name == "uninitialised_shared" and shared else case.tool


def _asked(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--logs", type=Path, help="keep the tools' outputs here")
    options = parser.parse_args()
    started = time.monotonic()
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
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    apart = [row for row in rows if row["agreement"] is False]
    for row in apart:
        print(f"apart: {row['case']} under {row['tool']}: {row['note']}")
    agree = sum(row["agreement"] is True for row in rows)
    print(f"{agree} rows agree, {len(apart)} do not, {len(rows) - agree - len(apart)} do not apply")
    print(f"wrote {options.out} in {time.monotonic() - started:.0f} s; logs in {folder}")
    return 1 if apart else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(Path(sys.argv[2]), sys.argv[3:]))
    try:
        sys.exit(main())
    except GpulabError as error:
        print(f"{error.message}\n{error.fix or ''}".strip(), file=sys.stderr)
        sys.exit(error.exit_code)
