"""Time the bf16 attention kernel of the tensor cores beside copies of it that leave a cost out.

    python scripts/attention_limits.py          # needs a card of capability 9.0; under a minute

What a kernel waits for shows in what it gains without it. A copy that leaves something out
computes something else by design: it is never judged, and its record says so. The source that is
edited gives, unedited, the machine code of the shipped kernel, which is checked first. Other tile
shapes of the shipped source are timed in the same turns: they are judged at a small size, and each
of their timed outputs is compared with their first one bit for bit. The rate of the instruction
itself is measured in the same run.

Exit code 0: recorded; 1: a tile shape computes something wrong; 7: no card.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attention_variants import (
    HEAD_DIM,
    JUDGED,
    PROBLEMS,
    SOURCE,
    Candidate,
    candidates,
    machine_code,
    shipped,
)

from gpulab import ops
from gpulab.bench import ceilings, records
from gpulab.bench.compiling import compile_ahead
from gpulab.errors import BuildError, GpulabError, UsageError
from gpulab.kernels.attention import mma
from gpulab.lab.environment import environment
from gpulab.lab.evaluate import resources
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.cache import Cache
from gpulab.registry import Case, Dims
from gpulab.runtime import assembly
from gpulab.runtime.device import POISONS, Device, DeviceArray
from gpulab.runtime.select import open_device
from gpulab.runtime.timing import Clock, Subject, Timing, time_interleaved

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "results" / "attention_limits.jsonl"
CEILING = "mma.sync bf16"
CAPABILITY = (9, 0)
Record = dict[str, Any]


def check_unedited(device: Device, folder: Path) -> None:
    """The source that is edited is the shipped kernel's.

    Raises:
        UsageError: unedited, it gives other machine code.
    """
    tile, codes = mma.tile(device.target, HEAD_DIM), []
    params = shipped().spec.params(shipped().variant)
    for edits in (None, ()):
        request = Candidate(tile, "shipped", edits=edits).request(device.target, folder)
        made = assembly.prepare(request, params, device.target, kit=device.kit)
        if made.cubin_path is None:
            raise BuildError(f"{SOURCE}: no machine code was made")
        codes.append(machine_code(made.cubin_path.read_bytes(), made.entry))
    if codes[0] != codes[1]:
        raise UsageError(f"{SOURCE} with its headers in one text is another kernel than shipped")


class Bound:
    """A candidate on the inputs of a problem.

    Args:
        runner: of its case.
        sent: the inputs on the device.
        same: every output must have the bits of the first one.
    """

    def __init__(self, runner: KernelRunner, sent: Mapping[str, DeviceArray], same: bool) -> None:
        self.device, self.out = runner.device, runner.outputs()
        self.start = runner.bind({**sent, **self.out})
        self.first: dict[str, DeviceArray] = {}
        if same:
            self.first = runner.outputs(POISONS[1])
            runner.bind({**sent, **self.first})()

    def subject(self, moved_bytes: int) -> Subject:
        """For the clock."""
        return Subject(lambda _: self.start(), 1, moved_bytes, self.refill, self.verify)

    def refill(self, _: int) -> None:
        for array in self.out.values():
            self.device.refill(array, POISONS[0])

    def verify(self, _: int) -> str | None:
        """Which output is not the first one's, or None."""
        for name, first in self.first.items():
            if not self.device.same(self.out[name], first):
                return f"{name} differs from that of the first run"
        return None

    def free(self) -> None:
        self.device.free(*self.out.values(), *self.first.values())


def judged(candidate: Candidate, case: Case, device: Device, cache: Cache) -> Record:
    """Verdict and reason at the small size; of an edited kernel none."""
    if candidate.edits:
        reason = f"wrong by design: {candidate.left_out}; it is never judged"
        return {"verdict": None, "reason": reason}
    found = ops.get("attention").judge(
        case.variant,
        JUDGED,
        KernelRunner(case, device, JUDGED),
        capability=device.capability,
        families=("normal",),
        cache=cache,
    )
    why = found.reason.text if found.reason else None
    return {"verdict": found.verdict, "reason": why, "judged_at": JUDGED}


def line(
    candidate: Candidate, dims: Dims, used: Record | None, taken: Timing, said: Record
) -> Record:
    """The record of a candidate at one problem."""
    rate = ops.get("attention").flops(dims) / taken.summary.median * 1e-9
    made = {
        "schema": 1, "kind": candidate.kind, "op": "attention", "kernel": "mma", "backend": "raw",
        "format": "bf16", "left_out": candidate.left_out or None, "tile": asdict(candidate.tile),
        "dims": dict(dims), "time_ms": taken.time_ms(), "tflops": rate, "resources": used,
        "timing": taken.details(), **said,
    }  # fmt: skip
    return made | ({"verdict": "FAIL", "reason": taken.wrong[0]} if taken.wrong else {})


def show(candidate: Candidate, made: Record) -> None:
    """A record on stderr."""
    where = f"seq {made['dims']['seq_q']} causal {made['dims']['causal']}"
    rate = f"{made['tflops']:6.1f} TFLOP/s, {made['verdict'] or 'not judged'}"
    print(f"{where} {candidate.name:36s} {rate}", file=sys.stderr, flush=True)


def measure(
    device: Device,
    clock: Clock,
    wanted: Sequence[Candidate],
    problems: Sequence[Dims],
    folder: Path,
    runs: int,
) -> list[Record]:
    """One record a candidate and problem; those of a problem take turns.

    Args:
        device: the card.
        clock: its clock.
        wanted: what to time.
        problems: dims of attention.
        folder: for edited sources.
        runs: timed runs of each.
    """
    op, variant = ops.get("attention"), shipped().variant
    requests = [c.request(device.target, folder) for c in wanted]
    compile_ahead(device, [(request, shipped().spec.params(variant)) for request in requests])
    cases = [c.case(request) for c, request in zip(wanted, requests, strict=True)]
    cache, found = Cache(), []
    said = [judged(c, case, device, cache) for c, case in zip(wanted, cases, strict=True)]
    for same, group in groupby(problems, key=lambda dims: {**dims, "causal": 0}):
        runner = KernelRunner(cases[0], device, same)
        sent = runner.upload(op.stored_inputs(variant, same, "normal", 0))
        for dims in group:
            runners = [KernelRunner(case, device, dims) for case in cases]
            bound = [Bound(r, sent, not c.edits) for c, r in zip(wanted, runners, strict=True)]
            moved = op.bytes_moved(variant, dims)
            subjects = {c.name: b.subject(moved) for c, b in zip(wanted, bound, strict=True)}
            try:
                taken = time_interleaved(clock, subjects, runs=runs)
            finally:
                for each in bound:
                    each.free()
            for c, runner, mine in zip(wanted, runners, said, strict=True):
                found.append(line(c, dims, resources(runner), taken[c.name], mine))
                show(c, found[-1])
        device.free(*sent.values())
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--runs", type=int, default=7)
    given = parser.parse_args(argv)
    try:
        device = open_device("cuda", capability=CAPABILITY)
        from gpulab.runtime.cuda_clock import clock_of

        clock = clock_of(device)
        with tempfile.TemporaryDirectory() as name:
            check_unedited(device, Path(name))
            found = ceilings.measure(device, clock, lambda c: c.label == CEILING, runs=given.runs)
            found = [r | {"kind": "ceiling"} for r in found]
            wanted = candidates(device.target)
            found += measure(device, clock, wanted, PROBLEMS, Path(name), given.runs)
    except GpulabError as error:
        print(f"attention_limits: {error.message}", file=sys.stderr)
        return error.exit_code
    given.out.unlink(missing_ok=True)
    records.append(given.out, found, environment(device), refused=True)
    wrong = [r for r in found if r["verdict"] not in (None, "PASS")]
    for r in wrong:
        print(f"{r.get('tile', CEILING)}: {r['verdict']}: {r['reason']}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
