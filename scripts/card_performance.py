"""Record on a card everything that docs/performance.md is made of. Needs an sm_90 card.

    python scripts/card_performance.py                    # all, the most important first
    python scripts/card_performance.py --only ceilings,matmul_large/4096    # names begin so
    python scripts/card_performance.py --list             # units, files, estimates
    python scripts/card_performance.py --dry --out DIR    # no card: small sizes, emulated

Work is done in units, each in a child process with a time limit, and each writes its records when
it ends: what is interrupted is done again by the next call, what is recorded is not (delete a file
to record it anew). No unit is begun that would not fit into --budget seconds. With --ship the tile
table that the unit `tune` measures, which lies in the output folder too, replaces the shipped one
at once, so that what follows uses it.
Exit code 0: everything asked for is recorded; 1: a unit failed or a row is wrong; 3: not all of it
fitted; 7: no card.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from performance_units import UNITS, HostClock, Place, Unit

from gpulab.bench import records
from gpulab.errors import GpulabError
from gpulab.lab.environment import environment
from gpulab.runtime.emulated import EmulatedDevice

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
BUDGET_S = 720.0
TIMES = ("time_ms", "timing", "tflops", "gb_per_s")
OVERRUN = 3.0
"""A unit is stopped after so many times its estimate."""


def recorded(out: Path) -> set[str]:
    """Names of the units that are in the files."""
    paths = [p for p in sorted(out.glob("*.jsonl")) if p.name in {u.file for u in UNITS}]
    return {str(r.get("unit")) for path in paths for r in records.read(path)}


def child(unit: Unit, arguments: argparse.Namespace) -> int:
    """Do one unit here and write its records; 1 where a row is wrong."""
    if arguments.dry:
        place = Place(EmulatedDevice((9, 0)), HostClock(), arguments.out, True, False)
    else:
        from gpulab.runtime.cuda_clock import clock_of
        from gpulab.runtime.select import open_device

        device = open_device("cuda")
        place = Place(device, clock_of(device), arguments.out, False, arguments.ship)
    begun = time.monotonic()
    found = [r | {"unit": unit.name} for r in unit.work(place)]
    if arguments.dry:  # what the host's clock says is no card's time
        found = [r | dict.fromkeys(TIMES) | {"dry": True} for r in found]
    around = environment(place.device) | {"unit_seconds": round(time.monotonic() - begun, 1)}
    records.append(arguments.out / unit.file, found, around, refused=True)
    return int(any(r["verdict"] == "FAIL" for r in found))


def run(units: list[Unit], arguments: argparse.Namespace) -> int:
    """All units that fit, each in a process of its own."""
    begun, there, worst = time.monotonic(), recorded(arguments.out), 0
    for unit in units:
        left = arguments.budget - (time.monotonic() - begun)
        if unit.name in there:
            print(f"{unit.name}: recorded", flush=True)
            continue
        if unit.estimate_s > left:
            print(f"{unit.name}: {unit.estimate_s:.0f} s do not fit into {left:.0f} s", flush=True)
            worst = worst or 3
            continue
        command = [sys.executable, __file__, "--unit", unit.name, "--out", str(arguments.out)]
        command += [
            flag for flag, on in (("--dry", arguments.dry), ("--ship", arguments.ship)) if on
        ]
        started = time.monotonic()
        try:
            code = subprocess.run(command, timeout=min(left, OVERRUN * unit.estimate_s)).returncode
        except subprocess.TimeoutExpired:
            code = 5
        took = time.monotonic() - started
        print(f"{unit.name}: exit {code}, {took:.0f} s of about {unit.estimate_s:.0f}", flush=True)
        if code == 7:
            return 7
        worst = 1 if code else worst
    return worst


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all of it")
    parser.add_argument("--only", default="", help="units whose name begins with one of these")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--ship", action="store_true", help="use the measured tile table at once")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.dry and arguments.out.resolve() == RESULTS:
        parser.error("a dry run measures nothing: give it an --out of its own")
    arguments.out.mkdir(parents=True, exist_ok=True)
    units = [u for u in UNITS if u.name.startswith(tuple(arguments.only.split(",")))]
    if arguments.list:
        for unit in units:
            print(f"{unit.name:36s} {unit.file:20s} {unit.estimate_s:5.0f} s")
        print(f"{sum(u.estimate_s for u in units):.0f} s together")
        return 0
    if arguments.unit:
        try:
            return child(next(u for u in UNITS if u.name == arguments.unit), arguments)
        except GpulabError as error:
            print(f"error: {error.message}", file=sys.stderr)
            return error.exit_code
    return run(units, arguments)


if __name__ == "__main__":
    sys.exit(main())
