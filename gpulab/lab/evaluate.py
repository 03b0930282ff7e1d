"""Judge rows of the ladder, then time them on a card or count their work on the emulated device.

Every row gets one record (its fields are those of the lab's JSON schema). A row that cannot run on
the device has a reason instead of a verdict. A row that does not build, hangs or faults FAILs with
its error, and the other rows go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpulab import arch, ops
from gpulab.emulator.occupancy import occupancy
from gpulab.errors import GpulabError
from gpulab.lab import measure
from gpulab.lab.compiling import Ahead
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.cache import Cache
from gpulab.ops.base import Effort, Op
from gpulab.registry import Case, Dims
from gpulab.runtime.device import Device

Record = dict[str, Any]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while rows were judged or measured: what there is by then.

    Args:
        doing: what was under way.
        records: of the rows that were judged, or refused, before; a row that was under way has
            none, and no row has a time if not all have one.
        left: rows that could run but were not judged; None: not known.
    """

    def __init__(self, doing: str, records: Sequence[Record] = (), left: int | None = None) -> None:
        super().__init__(f"interrupted while {doing}")
        self.doing, self.records, self.left = doing, list(records), left


def _nothing(_: Any) -> None:
    return None


def identity(case: Case, device: Device, dims: Dims) -> Record:
    """The fields of a record that identify the row, and those to be measured, still empty."""
    spec, v = case.spec, case.variant
    return {
        "schema": 1,
        "op": spec.op,
        "kernel": spec.name,
        "backend": spec.backend,
        "format": v.format,
        "accumulator": v.accumulator,
        "output": v.output,
        "contract": v.contract,
        "instruction": v.instruction(device.target),
        "lesson": v.lesson,
        "shows_on": list(v.caught_on),
        "shown_by": list(v.shown_by),
        "note": v.note,
        "speed": ops.get(spec.op).speed,
        "device": device.kind,
        "device_name": device.name,
        "capability": arch.dotted(device.capability),
        "dims": dict(dims),
        "verdict": None,
        "reason": None,
        "time_ms": None,
        "tflops": None,
        "gb_per_s": None,
        "counters": None,
    }


def host_bytes(op: Op, dims: Dims) -> int:
    """Bytes of host memory that judging needs, roughly; dims are checked first.

    Raises:
        UsageError: impossible dims.
    """
    op.check_dims(dims)
    return op.host_bytes(dims)


def evaluate_all(
    cases: Sequence[Case],
    device: Device,
    dims: Dims,
    *,
    op: Op | None = None,
    seed: int = 0,
    effort: Effort = "quick",
    families: Sequence[str] | None = None,
    measured: bool = True,
    runs: int = 10,
    warmup: int = 3,
    yardstick: measure.MakeYardstick | None = None,
    ahead: Ahead | None = None,
    cache: Cache | None = None,
    on_case: Callable[[Case], object] = _nothing,
) -> list[Record]:
    """Records of the cases at one size, in their order.

    Args:
        cases: rows of one op.
        device: where they run.
        dims: the op's dims.
        op: the operation where it is not the registered one (another eps); None: the registered.
        seed: of inputs and probes.
        effort: which exact probes are run.
        families: input families; None: all that the op judges by.
        measured: also time the rows (card) or count their work (emulated device).
        runs: timed runs of each row, interleaved.
        warmup: untimed runs of each row before those.
        yardstick: makes the memory traffic that is timed in turns with the rows (card).
        ahead: background compilations, shared with other sizes; None: they are started here.
        cache: references shared with other sizes of the op; None: not shared.
        on_case: called before each row.

    Raises:
        UsageError: impossible dims.
        Interrupted: Ctrl-C; it holds the records of what was judged.
    """
    rows = _Rows(device, dims, op, seed, effort, families, cache or Cache())
    try:
        with contextlib.ExitStack() as left:
            ahead = ahead or left.enter_context(Ahead(device))
            ahead.submit(cases, dims)
            for case in cases:
                on_case(case)
                rows.judge(case, ahead)
        if measured:
            rows.measure(runs, warmup, yardstick)
    except KeyboardInterrupt:
        raise Interrupted(
            rows.doing, rows.whole(), judgeable(rows.left(cases), device, dims)
        ) from None
    return rows.whole()


def judgeable(cases: Sequence[Case], device: Device, dims: Dims) -> int:
    """How many of the rows the device can run at these dims."""
    return sum(case.refusal(device.target, device.kind, dims) is None for case in cases)


@dataclass
class _Rows:
    """The rows of an op at one size, as far as they are judged and measured.

    The first fields are the arguments of ``evaluate_all``.

    Attributes:
        records: of the rows that were judged or refused, in order.
        ready: runners of those that can be measured, and their records.
        doing: what is under way, for people.
    """

    device: Device
    dims: Dims
    op: Op | None
    seed: int
    effort: Effort
    families: Sequence[str] | None
    cache: Cache
    records: list[Record] = field(default_factory=list)
    ready: list[tuple[KernelRunner, Record]] = field(default_factory=list)
    doing: str = "compiling the rows"

    def judge(self, case: Case, ahead: Ahead) -> None:
        """Judge a row, and record it when that is done."""
        self.doing = f"judging {case.spec.op} {case.label}"
        record = identity(case, self.device, self.dims)
        record["reason"] = case.refusal(self.device.target, self.device.kind, self.dims)
        if record["reason"] is None:
            try:
                ahead.wait(case, self.dims)
                runner = KernelRunner(case, self.device, self.dims, self.op)
                record.update(
                    _judge(case, runner, self.seed, self.effort, self.families, self.cache)
                )
            except GpulabError as error:
                _failed(record, error)
            else:
                record["scalars"] = dict(runner.op.scalars(case.variant, self.dims))
                record["resources"] = resources(runner)
                self.ready.append((runner, record))
        self.records.append(record)

    def measure(self, runs: int, warmup: int, yardstick: measure.MakeYardstick | None) -> None:
        """Time the judged rows in turns (card), or count the work of each."""
        if self.device.kind != "cuda":
            self.doing = "counting the work of the rows"
            measure.count_rows(self.ready, seed=self.seed, cache=self.cache)
            return
        self.doing, untimed = "timing the rows", [dict(record) for record in self.records]
        try:
            measure.time_rows(
                self.ready, seed=self.seed, runs=runs, warmup=warmup, cache=self.cache,
                yardstick=yardstick,
            )  # fmt: skip
        except KeyboardInterrupt:  # rows are timed in turns: none without the others
            self.records = untimed
            raise

    def left(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Those of the cases that were not come to."""
        return cases[len(self.records) :]

    def whole(self) -> list[Record]:
        """The records, lessons compared with their twins."""
        _compare_accumulators(self.records)
        return self.records


def _judge(
    case: Case,
    runner: KernelRunner,
    seed: int,
    effort: Effort,
    families: Sequence[str] | None,
    cache: Cache,
) -> dict[str, Any]:
    judgement = runner.op.judge(
        case.variant,
        runner.dims,
        runner,
        capability=runner.device.capability,
        families=families,
        seed=seed,
        effort=effort,
        atomics=case.spec.atomics,
        cache=cache,
    )
    return judgement.to_record()


def _failed(record: Record, error: GpulabError) -> None:
    """A row that does not build, hangs or faults: FAIL, with the error and without numbers."""
    record.update(
        verdict="FAIL",
        reason=error.message,
        error=error.to_json(),
        max_abs_err=None,
        max_rel_err=None,
        storage_err=None,
        contract_gate={"rtol": None, "atol": None, "fraction": None, "passed": False},
        arithmetic_gate={"fraction": None, "passed": False},
        first_bad_index=None,
    )


def resources(runner: KernelRunner) -> dict[str, Any] | None:
    """Registers, spills, shared memory and occupancy of the code compiled for the target."""
    if runner.function is None or runner.plan is None or runner.function.resources is None:
        return None
    used, plan = runner.function.resources, runner.plan
    threads = plan.block[0] * plan.block[1] * plan.block[2]
    shared = used.shared_bytes + plan.shared_bytes
    held = occupancy(arch.get(runner.device.target), threads, used.registers, shared)
    return {
        "registers": used.registers,
        "spill_bytes": used.spill_bytes,
        "shared_bytes": shared,
        "threads_per_block": threads,
        "blocks_per_sm": held.blocks_per_sm,
        "occupancy": held.fraction,
        "occupancy_limited_by": list(held.limited_by),
    }


def _compare_accumulators(records: Sequence[Record]) -> None:
    """Lessons: the ratio of the kernel's own max error to its float-accumulator twin's."""
    for record in records:
        if not record["lesson"] or record.get("max_abs_err_stored") is None:
            continue
        for twin in records:
            same = all(twin[f] == record[f] for f in ("backend", "kernel", "format"))
            if same and not twin["lesson"] and twin.get("max_abs_err_stored"):
                record["error_vs_float_accumulator"] = (
                    record["max_abs_err_stored"] / twin["max_abs_err_stored"]
                )
