"""Judge every fixture of the checker with several seeds; one JSON object a line.

    python scripts/check_fixtures.py                        all, ten seeds, on the emulated device
    python scripts/check_fixtures.py --device cuda --seeds 1 --output FILE
    python scripts/check_fixtures.py --only softmax

Fixtures are the solutions and starters of all exercises, tests/submissions and tests/exploits. A
line has the fixture, the seed, what was wanted and what came; the exit status is 1 if any differs.
Lines that FILE has are kept and not judged again, so that a run that was stopped goes on; where it
has both devices, a fixture whose verdict or diagnosis is not the same on both is told, and differs.
On the emulated device fixtures are judged without a process each (``--isolated``: with one). The
exploits in Python are always confined, and skipped where that cannot be; the others are trusted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab import exercises
from gpulab.bench import records
from gpulab.check import sandbox
from gpulab.check.client import Client
from gpulab.check.judge import check
from gpulab.check.local import LocalClient
from gpulab.check.session import Options
from gpulab.errors import DeviceMissingError
from gpulab.exercises.base import Language
from gpulab.numerics.cache import Cache

ROOT = Path(__file__).resolve().parents[1]
SUBMISSIONS = ROOT / "tests" / "submissions"
EXPLOITS = ROOT / "tests" / "exploits"
LANGUAGES: tuple[Language, ...] = ("cu", "py")


@dataclass(frozen=True)
class Fixture:
    """A file and what it must get.

    Args:
        name: as in records: ``solution/fp16-matmul.cu``, ``wrong/softmax/missing-max/x.cu``.
        path: the file; a solution or starter in Python is copied to a ``.py`` first.
        exercise: it is for, empty for exploits.
        verdict: wanted.
        slug: diagnosis wanted; ``any``: each but ``unrecognised`` for a starter.
        trusted: nothing about it needs confinement.
    """

    name: str
    path: Path
    exercise: str
    verdict: str
    slug: str = ""
    trusted: bool = True


def fixtures() -> Iterator[Fixture]:
    """All of them."""
    for name, exercise in exercises.catalogue().items():
        for language in LANGUAGES:
            solution, starter = (exercise.file(kind, language) for kind in ("solution", "starter"))
            yield Fixture(f"solution/{name}.{language}", solution, name, "PASS")
            yield Fixture(f"starter/{name}.{language}", starter, name, "FAIL", "any")
    for path in sorted(p for p in SUBMISSIONS.rglob("*") if p.suffix in (".cu", ".py")):
        name = str(path.relative_to(SUBMISSIONS))
        if name.startswith("correct/"):
            yield Fixture(name, path, path.parent.name, "PASS")
        else:
            yield Fixture(name, path, path.parents[1].name, "FAIL", path.parent.name)
    for case in tomllib.loads((EXPLOITS / "cases.toml").read_text()).values():
        if "submission" in case:
            continue  # is among them
        path = EXPLOITS / "files" / case["file"]
        slug = "" if case.get("verdict") == "PASS" else case["slug"]
        wanted = case.get("verdict", "FAIL")
        yield Fixture(f"exploit/{path.name}", path, "", wanted, slug, path.suffix == ".cu")


def judge(one: Fixture, options: Options, cache: Cache, *, isolated: bool) -> dict[str, Any]:
    """One line."""
    workers = Client if isolated or not one.trusted else LocalClient
    with tempfile.TemporaryDirectory() as folder:
        path = one.path
        if path.suffix == ".numba":
            path = Path(folder) / f"{path.stem}.py"
            path.write_text(one.path.read_text())
        told = replace(options, trusted=one.trusted)
        result = check(path, told, cache=cache, workers=workers)
    skipped = None
    if not one.trusted and one.path.suffix == ".py":
        skipped = sandbox.refusal()
    slug = "" if result.diagnosis is None else result.diagnosis.slug
    agrees = result.verdict == one.verdict and (result.exit_code == 0) == (one.verdict == "PASS")
    if one.verdict == "FAIL":
        agrees &= slug != "unrecognised" if one.slug == "any" and one.exercise else True
        agrees &= one.slug in ("any", slug)
        agrees &= result.exit_code == 1 if one.name.startswith("starter/") else True
    facts = result.facts
    return {
        "schema": 1,
        "kind": "fixture",
        "fixture": one.name,
        "seed": options.seed,
        "device": options.device,
        "device_name": facts.get("device_name"),
        "capability": facts.get("capability"),
        "wanted": {"verdict": one.verdict, "diagnosis": one.slug or None},
        "verdict": result.verdict,
        "diagnosis": slug or None,
        "exit_code": result.exit_code,
        "reason": result.reason or None,
        "arithmetic_fraction": (facts.get("arithmetic_gate") or {}).get("fraction"),
        "time_ms": facts.get("time_ms"),
        "claims": facts.get("claims"),
        "seconds": facts.get("seconds"),
        "agrees": agrees or skipped is not None,
        "skipped": skipped,
    }


def apart(lines: Iterable[dict[str, Any]]) -> list[str]:
    """Fixtures that got one verdict or diagnosis on the card and another on the emulated device.

    An exploit of which every diagnosis is right need not have the same on both.
    """
    found: dict[tuple[str, int], dict[str, str]] = {}
    for line in lines:
        if line["skipped"] is None:
            free = line["fixture"].startswith("exploit/") and line["wanted"]["diagnosis"] == "any"
            got = f"{line['verdict']} {'' if free else line['diagnosis'] or ''}".rstrip()
            found.setdefault((line["fixture"], line["seed"]), {})[line["device"]] = got
    return [
        f"{name}, seed {seed}: " + ", ".join(f"{got} on {device}" for device, got in by.items())
        for (name, seed), by in found.items()
        if len(set(by.values())) > 1
    ]


_CACHE: dict[int, Cache] = {}


def _task(one: Fixture, options: Options, isolated: bool) -> dict[str, Any]:
    """In a pool: references of a seed are kept, those of the last one are dropped."""
    if options.seed not in _CACHE:
        _CACHE.clear()
    return judge(one, options, _CACHE.setdefault(options.seed or 0, Cache()), isolated=isolated)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", default="", help="fixtures whose name contains this")
    parser.add_argument("--device", choices=["emulated", "cuda"], default="emulated")
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--untimed", action="store_true", help="on a card, without its times")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen = [f for f in fixtures() if asked.only in f.name]
    if not chosen:
        parser.error(f"no fixture contains {asked.only!r}")
    isolated = asked.isolated or asked.device == "cuda"
    there = records.read(asked.output) if asked.output and asked.output.exists() else []
    if not all({"fixture", "seed", "device", "agrees"} <= r.keys() for r in there):
        parser.error(
            f"--output {asked.output}: has lines that are none of a fixture; name another file"
        )
    known = {(r["fixture"], r["seed"], r["device"]) for r in there}
    out = asked.output.open("a") if asked.output else sys.stdout
    done, wrong = len(there), sum(not r["agrees"] for r in there)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, context) as pool:
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            options = Options(device=asked.device, seed=seed, timed=not asked.untimed)
            left = [f for f in chosen if (f.name, seed, asked.device) not in known]
            waiting = [pool.submit(_task, one, options, isolated) for one in left]
            for future in as_completed(waiting):
                try:
                    line = future.result()
                except DeviceMissingError as error:
                    print(error.message, file=sys.stderr)
                    return error.exit_code
                done, wrong = done + 1, wrong + (not line["agrees"])
                print(json.dumps(line), file=out, flush=True)
                if not line["agrees"]:
                    got = f"{line['verdict']} {line['diagnosis']}: {line['reason']}"
                    print(f"{line['fixture']}, seed {seed}: {got}", file=sys.stderr)
    different = apart(records.read(asked.output)) if asked.output else []
    print("\n".join([*different, f"{done - wrong} of {done} agree"]), file=sys.stderr)
    return 1 if wrong or different else 0


if __name__ == "__main__":
    sys.exit(main())
