"""Compare the emulated device's counters with ncu's on the card. Needs a card that lets ncu count.

    python scripts/ncu_counters.py [--out docs/results/counters_vs_ncu.jsonl]
    python scripts/ncu_counters.py --recompare RECORDED.jsonl    # no card: its numbers, judged anew

One child process under ``ncu --clock-control none`` launches every kernel of the list once on the
card; the same kernels with the same inputs then run on the emulated device of that capability.
One JSON row a (kernel, metric) with both numbers. Exit code 0: all sectors and bank conflicts are
equal or say in `explanation` what is not known, and all are equal in six kernels of the lab at
least; 1: one is neither; 7: no card, no ncu, or ncu may not read the counters. Requests and
instructions are listed, and told apart where they differ, but ptxas may merge or repeat
instructions; what is moved and what collides follows from the addresses.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from counter_works import Work, launch, works
from ncu_rows import ALONGSIDE, NEEDED, compare, report

from gpulab.errors import DeviceMissingError, GpulabError, UsageError
from gpulab.runtime.emulated import EmulatedDevice

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "results" / "counters_vs_ncu.jsonl"
LIMIT_S = 60


def child() -> int:
    """Launch everything on the card, once; runs inside ncu."""
    from gpulab.runtime.cuda import CudaDevice

    device = CudaDevice(numba_launch=False)
    for work in works(device.capability):
        launch(device, work)
        print(f"launched {work.label}", flush=True)
    return 0


def read_csv(text: str, expected: list[Work], metrics: list[str]) -> list[dict[str, float]]:
    """The metrics of each launch from ncu's raw page: the expected launches, in their order.

    Raises:
        DeviceMissingError: anything missing, left over, or not a number.
    """
    rows = [line for line in text.splitlines() if line.startswith('"')]
    table = list(csv.DictReader(io.StringIO("\n".join(rows))))
    if not table or "Kernel Name" not in table[0]:
        raise DeviceMissingError("ncu printed no table")
    launches = [row for row in table if (row["ID"] or "").strip()]  # the row of units has no ID
    if len(launches) != len(expected):
        raise DeviceMissingError(f"ncu lists {len(launches)} launches, not {len(expected)}")
    found: list[dict[str, float]] = []
    for work, row in zip(expected, launches, strict=True):
        if work.symbol not in row["Kernel Name"]:
            raise DeviceMissingError(f"{row['Kernel Name']!r} where {work.label} should be")
        values = {}
        for metric in metrics:
            cell = (row.get(metric) or "").replace(",", "")
            if metric not in NEEDED and cell in ("", "n/a"):
                continue
            if not re.fullmatch(r"\d+(\.\d+)?", cell):
                raise DeviceMissingError(f"{work.label}: {metric} is {cell!r}")
            values[metric] = float(cell)
        found.append(values)
    return found


def _asked(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout


def known_metrics(listing: str, wanted: tuple[str, ...]) -> list[str]:
    """Those of ``wanted`` that ``ncu --query-metrics`` lists (without their ``.sum``)."""
    names = set(re.findall(r"^([a-z0-9]+__[a-z0-9_]+)\b", listing, re.MULTILINE))
    return [metric for metric in wanted if metric.rpartition(".")[0] in names]


def profile(expected: list[Work], listing: str) -> list[dict[str, float]]:
    """Run the child under ncu; the metrics of each launch.

    Args:
        expected: the launches, in order.
        listing: what ``ncu --query-metrics`` says.

    Raises:
        DeviceMissingError: ncu fails or may not read the counters; carries its words.
    """
    metrics = known_metrics(listing, NEEDED + ALONGSIDE)
    if lacking := set(NEEDED) - set(metrics):
        raise DeviceMissingError(f"ncu does not list {', '.join(sorted(lacking))}")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            "ncu",
            "--clock-control",
            "none",
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
        ]
        command += ["--log-file", str(log), "--metrics", ",".join(metrics)]
        # Mangled names hold the identifier whoever compiled the kernel, and nothing is cut off.
        symbols = "|".join(sorted({work.symbol for work in expected}))
        command += ["--kernel-name-base", "mangled", "--print-kernel-base", "mangled"]
        command += ["--kernel-name", f"regex:.*({symbols}).*"]
        command += [sys.executable, __file__, "--child"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise DeviceMissingError(f"ncu took more than {LIMIT_S} s") from None
        text = log.read_text() if log.exists() else ""
    launched = [line for line in done.stdout.splitlines() if line.startswith("launched ")]
    if done.returncode != 0 or len(launched) != len(expected):
        words = (done.stdout + done.stderr + text)[-2000:]
        raise DeviceMissingError(
            f"ncu ended with {done.returncode} after {len(launched)} of {len(expected)} launches",
            fix=words,
        )
    return read_csv(text, expected, metrics)


def recompare(recorded: Path) -> list[dict[str, Any]]:
    """A recording's numbers of ncu beside what the emulated device counts now.

    The kernels must be those that were recorded.

    Raises:
        UsageError: a launch of the recording is not in the list, or has other sizes.
    """
    launches: dict[str, list[dict[str, Any]]] = {}
    for line in recorded.read_text().splitlines():
        row = json.loads(line)
        launches.setdefault(row["kernel"], []).append(row)
    major, minor = next(iter(launches.values()))[0]["capability"].split(".")
    capability = (int(major), int(minor))
    known = {work.label: work for work in works(capability)}
    device = EmulatedDevice(capability, counters=True)
    rows = []
    for label, told in launches.items():
        if label not in known:
            raise UsageError(f"{label} is not launched any more", fix="record it on a card")
        counters = launch(device, known[label]) or {}
        judged = compare(known[label], counters, {row["metric"]: row["ncu"] for row in told})
        if judged[0]["dims"] != told[0]["dims"]:
            raise UsageError(f"{label} has other sizes now", fix="record it on a card")
        rows += [
            new | {key: old[key] for key in old if key not in new}
            for new, old in zip(judged, told, strict=True)
        ]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--recompare", type=Path, help="judge this recording anew, with no card")
    options = parser.parse_args()
    started = time.monotonic()
    if options.recompare is not None:
        return report(recompare(options.recompare), options.out, started)
    if shutil.which("ncu") is None or shutil.which("nvidia-smi") is None:
        print("needs ncu and a card with its driver", file=sys.stderr)
        return 7
    query = ("--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader", "--id=0")
    card, driver, text = (part.strip() for part in _asked("nvidia-smi", *query).split(","))
    capability = (int(text.split(".")[0]), int(text.split(".")[1]))
    expected = works(capability)
    with ThreadPoolExecutor() as pool:  # ncu takes seconds to list its metrics
        listing = pool.submit(_asked, "ncu", "--query-metrics")
        device = EmulatedDevice(capability, counters=True)
        counted = [launch(device, work) or {} for work in expected]  # compiles for the child too
    measured = profile(expected, listing.result())
    version = re.search(r"Version (\S+)", _asked("ncu", "--version"))
    about = {"schema": 1, "capability": text, "card": card, "driver": driver}
    about |= {"ncu_version": version[1] if version else None, "date": date.today().isoformat()}
    rows = []
    for work, counters, values in zip(expected, counted, measured, strict=True):
        rows += [row | about for row in compare(work, counters, values)]
    return report(rows, options.out, started)


if __name__ == "__main__":
    try:
        sys.exit(child() if sys.argv[1:2] == ["--child"] else main())
    except GpulabError as error:
        print(f"{error.message}\n{error.fix or ''}".strip(), file=sys.stderr)
        sys.exit(error.exit_code)
