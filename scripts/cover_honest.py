"""Judge every real kernel over families, seeds and sizes, on the emulated device or on a card.

    python scripts/cover_honest.py                      # 9.0: every pair of values, hours of CPU
    python scripts/cover_honest.py --ops softmax,rmsnorm --capability 9.0,8.9,8.0,7.5
    python scripts/cover_honest.py --ops matmul --full  # the whole product
    python scripts/cover_honest.py --share 3/8 --lines build/cover_3.jsonl   # over eight processes
    python scripts/cover_honest.py --device cuda        # the same cases of a card's own capability

With --share the lines alone are written: put the files of all shares together, then run without.

Each case is one call of the operation's own judge: the kernel, compiled for the capability, runs
on the families of the case with the lab's gates, probes and power certificate. Which cases there
are, says cover_spaces.py. A further capability repeats the cases whose path differs from those
before it: other PTX, another launch shape or other tensor-core arithmetic.

One JSON line a (kernel, case) goes to --lines as soon as it is known, and a run that finds lines
there goes on behind them. The summary, one line a (kernel, capability), goes to --out. Exit code 0:
every honest kernel passed every case, every lesson failed wherever it runs at all, and no pair of
values is left out; else that of the worst case, as the lab's commands have it (1 where a pair is
left out or a lesson passes, 3 where a verdict is inconclusive or a case did not run).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from cover_paths import device, path
from cover_report import summaries, table, verdict_of
from cover_spaces import LONG, OPS, Arrays, Dims, Space, families_of, spaces
from covering import Case as Values

from gpulab import arch, ops, registry
from gpulab.errors import GpulabError
from gpulab.lab.environment import environment
from gpulab.lab.runner import KernelRunner
from gpulab.lab.verdict import lesson_holds
from gpulab.numerics.cache import Cache
from gpulab.numerics.verdict import Judgement, json_number
from gpulab.registry import Capability, Case

ROOT = Path(__file__).resolve().parents[1]
OUT = {
    "emulated": ROOT / "docs" / "results" / "honest_emulated.jsonl",
    "cuda": ROOT / "docs" / "results" / "honest_card.jsonl",
}
"""Where the summary goes, by device."""
LINES = ROOT / "build" / "cover_honest.jsonl"
CACHE_BYTES = 2 << 30
EVERY_S = 30
"""Seconds between two lines of progress."""

Line = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One kernel on one case.

    Args:
        case: kernel and variant.
        capability: of the emulated device.
        space: where the case comes from.
        values: of its factors.
        device: what runs it, ``emulated`` or ``cuda``.
    """

    case: Case
    capability: Capability
    space: Space
    values: Values
    device: str = "emulated"

    @property
    def dims(self) -> Dims:
        return self.space.dims(self.values)

    @property
    def key(self) -> str:
        """What tells a line from all others."""
        kernel = (self.case.spec.op, self.case.label, arch.dotted(self.capability), self.space.name)
        return json.dumps([self.device, *kernel, self.values])


def key_of(line: Line) -> str:
    """The key of the job that a line is of."""
    names = ("device", "op", "kernel", "capability", "space", "case")
    return json.dumps([line[name] for name in names])


def jobs(
    cases: Iterable[Case],
    capabilities: Sequence[Capability],
    *,
    full: bool = False,
    device: str = "emulated",
) -> Iterator[Job]:
    """Everything to run, the cheap first, then what no list of sizes asks for, long rows last;
    kernels that share inputs follow each other. On a card, what the emulated device runs too."""
    arrays = Arrays()
    found: list[tuple[Any, Job]] = []
    for number, case in enumerate(cases):
        for space in spaces(case.spec.op):
            for capability in capabilities:
                if case.refusal(capability, "emulated") is not None:
                    continue
                before = capabilities[: capabilities.index(capability)]
                for values in arrays.cases(space, case, capabilities[0], full=full):
                    job = Job(case, capability, space, values, device)
                    if case.refusal(capability, "emulated", job.dims) is None and not _known(
                        job, before
                    ):
                        found.append((_order(job, capabilities, number), job))
    yield from (job for _, job in sorted(found, key=lambda item: item[0]))


def _known(job: Job, before: Sequence[Capability]) -> bool:
    """Whether the same code ran on a capability before."""
    earlier = [c for c in before if job.case.refusal(c, "emulated", job.dims) is None]
    if not earlier:
        return False
    mine = path(job.case, job.capability, job.dims)
    return any(path(job.case, c, job.dims) == mine for c in earlier)


def _order(job: Job, capabilities: Sequence[Capability], number: int) -> tuple[Any, ...]:
    dims = job.dims
    work = ops.get(job.case.spec.op).flops(dims)
    late = (dims.get("cols", 0) >= LONG, not job.space.sizes)
    at = (capabilities.index(job.capability), late, OPS.index(job.case.spec.op))
    return (*at, work, json.dumps(dims), job.values["seed"], job.values.get("family", ""), number)


class Bench:
    """Runs jobs; kernels and references are kept while the dims stay the same."""

    def __init__(self) -> None:
        self.cache = Cache(CACHE_BYTES)
        self.dims: Dims = {}
        self.runners: dict[tuple[str, Capability], KernelRunner] = {}

    def run(self, job: Job) -> Line:
        """The line of a job."""
        case, started = job.case, time.process_time()
        line: Line = {
            "device": job.device,
            "op": case.spec.op,
            "kernel": case.label,
            "capability": arch.dotted(job.capability),
            "space": job.space.name,
            "case": job.values,
            "lesson": case.variant.lesson,
        }
        try:
            line |= found(self._judge(job))
        except GpulabError as error:
            line |= {"verdict": "FAIL", "reason": error.message, "exit_code": error.exit_code}
        return line | {"cpu_s": round(time.process_time() - started, 3)}

    def _judge(self, job: Job) -> Judgement:
        case, where = job.case, device(job.capability, job.device)
        if job.dims != self.dims:
            self.dims, self.runners = job.dims, {}
        name = (case.spec.op + case.label, job.capability)
        if name not in self.runners:
            self.runners[name] = KernelRunner(case, where, job.dims)
        return ops.get(case.spec.op).judge(
            case.variant,
            job.dims,
            self.runners[name],
            capability=where.capability,
            families=families_of(job.space, case, job.values.get("family")),
            seed=job.values["seed"],
            atomics=case.spec.atomics,
            cache=self.cache,
        )


def found(judgement: Judgement) -> Line:
    """Verdict, the largest share of the arithmetic gate and where, the largest of the ceiling."""
    shares = [(f.interval_fraction, "interval", f.family) for f in judgement.families]
    shares += [(f.rms_fraction, "rms", f.family) for f in judgement.families]
    shares += [(p.fraction, "probe", p.probe) for p in judgement.probes]
    share, part, on = max(shares)
    record = {"verdict": judgement.verdict, "reasons": [str(r) for r in judgement.reasons]}
    line: Line = {
        "verdict": judgement.verdict,
        "share": json_number(float(f"{share:.4g}")),
        "part": part,
        "on": on,
        "ceiling": json_number(float(f"{judgement.contract_fraction:.4g}")),
        "runs": judgement.runs,
        "caught": lesson_holds(record),
    }
    return line if judgement.reason is None else line | {"reason": str(judgement.reason)[:200]}


def read(lines: Path) -> dict[str, Line]:
    """What earlier runs left, by key; a line cut short by the end of a run, or that says less than
    they do now, is dropped."""
    if not lines.exists():
        return {}
    known = {}
    for one in lines.read_text().splitlines():
        try:
            line = json.loads(one)
            known[key_of(line)] = line
        except (json.JSONDecodeError, KeyError):
            continue
    lines.write_text("".join(json.dumps(line) + "\n" for line in known.values()))
    return known


def run_all(wanted: Sequence[Job], lines: Path, limit_s: float | None = None) -> dict[str, Line]:
    """Run what has no line yet, for at most so many seconds; the lines of all that ran."""
    lines.parent.mkdir(parents=True, exist_ok=True)
    known, bench = read(lines), Bench()
    todo = [job for job in wanted if job.key not in known]
    started = told = time.monotonic()
    with lines.open("a") as out:
        for done, job in enumerate(todo):
            now = time.monotonic()
            if limit_s is not None and now - started > limit_s:
                print(f"stopped after {limit_s:g} s, {len(todo) - done} to go", file=sys.stderr)
                break
            if now - told > EVERY_S:
                told = now
                print(f"{done}/{len(todo)} {job.case.spec.op} {job.dims}", file=sys.stderr)
            line = bench.run(job)
            if verdict_of(line) != "PASS":
                print(f"{job.key}: {line['verdict']} {line.get('reason')}", file=sys.stderr)
            known[job.key] = line
            out.write(json.dumps(line) + "\n")
            out.flush()
    return known


def share_of(given: str) -> slice:
    """The jobs of share I of N, counted from 1.

    Raises:
        ValueError: no two whole numbers, or none of the shares there are.
    """
    number, _, shares = given.partition("/")
    if not 1 <= int(number) <= int(shares):
        raise ValueError(f"--share {given}: give I/N with 1 <= I <= N")
    return slice(int(number) - 1, None, int(shares))


def cover(
    cases: Sequence[Case],
    capabilities: Sequence[Capability],
    lines: Path,
    *,
    full: bool = False,
    limit_s: float | None = None,
    device: str = "emulated",
) -> tuple[list[Line], int]:
    """Run all cases of the kernels; their summaries and the exit code."""
    wanted = list(jobs(cases, capabilities, full=full, device=device))
    known = run_all(wanted, lines, limit_s)
    expected: dict[tuple[str, str, str], list[tuple[Job, Line | None]]] = {}
    for job in wanted:
        name = (job.case.spec.op, job.case.label, arch.dotted(job.capability))
        expected.setdefault(name, []).append((job, known.get(job.key)))
    return summaries(cases, capabilities, expected)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--kernel", default=None, help="only kernels of these names")
    parser.add_argument("--device", choices=sorted(OUT), default="emulated")
    parser.add_argument("--capability", default="9.0", help="one or several, the main one first")
    parser.add_argument("--full", action="store_true", help="every family, seed and size")
    parser.add_argument("--lines", type=Path, default=LINES)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--share", default=None, help="I/N: only every Nth case, from the Ith on")
    parser.add_argument("--limit-s", type=float, default=None, help="stop after so many seconds")
    given = parser.parse_args(argv)
    try:
        capabilities = [
            (int(major), int(minor))
            for major, minor in (c.split(".") for c in given.capability.split(","))
        ]
        cases = [
            case for op in given.ops.split(",") for case in registry.cases(op, kernel=given.kernel)
        ]
        where = [device(capability, given.device) for capability in capabilities]
        options: dict[str, Any] = {"full": given.full, "device": given.device}
        if given.share is not None:
            share = list(jobs(cases, capabilities, **options))[share_of(given.share)]
            known = run_all(share, given.lines, given.limit_s)
            return int(any(job.key not in known for job in share)) * 3
        found_lines, code = cover(
            cases, capabilities, given.lines, limit_s=given.limit_s, **options
        )
    except (GpulabError, ValueError) as error:
        print(f"cover_honest: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    head = {"schema": 1, "kind": "run", "full": given.full, "environment": environment(where[0])}
    (given.out or OUT[given.device]).write_text(
        "".join(json.dumps(line) + "\n" for line in (head, *found_lines))
    )
    print(table(found_lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
