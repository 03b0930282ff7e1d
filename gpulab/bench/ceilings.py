"""What this card can do at most: matrix instructions and multiply-adds a second, bytes a second.

The kernels are ``bench/ceiling_kernels.py``'s. Their results are known exactly and are compared
after every timed run: a rate whose loop did not do its work is FAIL and has no number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from gpulab import arch
from gpulab.bench.ceiling_kernels import Ceiling, Size, Work, of_capability
from gpulab.bench.compiling import compile_ahead
from gpulab.errors import BuildError
from gpulab.lab.render import number, verdict_cell
from gpulab.registry import LaunchPlan
from gpulab.runtime.device import POISONS, Device, DeviceArray, Function
from gpulab.runtime.timing import Clock, Subject, Timing, time_interleaved

Record = dict[str, Any]

PAIRS = 1024
"""Additions of both products: about a millisecond on an H200, and exact in every accumulator."""
MEMORY_BYTES = 512 << 20
"""Read or copied in one launch: several times the L2 of any card."""
FILL = "random odd integers of the format's whole significand, as wide as their sums stay exact"


def _nothing(_: Ceiling) -> None:
    return None


class Bound:
    """A ceiling's kernel with its arrays on a device.

    Args:
        device: where it runs.
        ceiling: what it measures.
        work: its launch.

    Raises:
        BuildError: it does not compile for the device.
    """

    def __init__(self, device: Device, ceiling: Ceiling, work: Work) -> None:
        self.device, self.ceiling, self.work = device, ceiling, work
        self.function: Function = device.build(ceiling.build, ceiling.params)
        self.inputs = [
            device.upload(np.ascontiguousarray(x), name) for name, x in work.inputs.items()
        ]
        self.right = device.upload(np.ascontiguousarray(work.right), "right")
        self.output = device.empty(work.right.shape, work.right.dtype, name="output")
        self.args: list[DeviceArray | int | float] = [*self.inputs, self.output]
        self.args += [work.dims[p.name] for p in ceiling.params if p.role == "dim"]
        self.launch = device.bind(self.function, work.plan, self.args)

    def otherwise(self, ceiling: Ceiling, plan: LaunchPlan) -> Callable[[], object]:
        """What launches another kernel, which has the same result, on these arrays.

        Raises:
            BuildError: it does not compile for the device.
        """
        function = self.device.build(ceiling.build, ceiling.params)
        return self.device.bind(function, plan, self.args)

    def refill(self, turn: int) -> None:
        """Fill the output with poison."""
        self.device.refill(self.output, POISONS[turn % 2])

    def verify(self) -> str | None:
        """Why the output is wrong, or None; it is only brought back where its bits differ."""
        if self.device.same(self.output, self.right):
            return None
        return difference(self.device.download(self.output), self.work.right)

    def free(self) -> None:
        """Release the arrays."""
        self.device.free(*self.inputs, self.right, self.output)


def difference(got: NDArray[Any], right: NDArray[Any]) -> str | None:
    """The first element that is not what it must be, in words; None where all are."""
    if np.array_equal(got, right):
        return None
    wrong = np.argwhere(~(got == right))
    at = tuple(int(i) for i in wrong[0])
    return f"{len(wrong)} of {right.size} elements are wrong, {[*at]} is {got[at]}, not {right[at]}"


def measure(
    device: Device,
    clock: Clock,
    wanted: Callable[[Ceiling], bool] = lambda _: True,
    *,
    runs: int = 7,
    size: Size | None = None,
    on_ceiling: Callable[[Ceiling], object] = _nothing,
) -> list[Record]:
    """One record a ceiling of the card, in the order of ``ceiling_kernels``.

    Args:
        device: the card.
        clock: its clock.
        wanted: which ones.
        runs: timed runs of each.
        size: how much a launch does; None: what takes an H200 about a millisecond.
        on_ceiling: told before each.

    Raises:
        FaultError: a kernel did something illegal.
    """
    chosen = [c for c in of_capability(device.capability) if wanted(c)]
    compile_ahead(device, [(c.build, c.params) for c in chosen])
    size = size or Size(device.multiprocessors or 1, PAIRS, MEMORY_BYTES)
    records = []
    for ceiling in chosen:
        on_ceiling(ceiling)
        records.append(_one(device, clock, ceiling, size, runs))
    return records


def _one(device: Device, clock: Clock, ceiling: Ceiling, size: Size, runs: int) -> Record:
    work = ceiling.work(size)
    record = identity(device, ceiling, size, work)
    try:
        bound = Bound(device, ceiling, work)
    except BuildError as error:
        return record | {"reason": f"does not build: {error.message.splitlines()[0]}"}
    subject = Subject(
        launch=lambda _: bound.launch(),
        sets=1,
        set_bytes=max(work.moved_bytes, work.right.nbytes),
        refill=bound.refill,
        verify=lambda _: bound.verify(),
    )
    try:
        timing = time_interleaved(clock, {ceiling.label: subject}, runs=runs)[ceiling.label]
    finally:
        bound.free()
    return record | rate(work, timing, device.multiprocessors)


def identity(device: Device, ceiling: Ceiling, size: Size, work: Work) -> Record:
    """What a record is about, with nothing measured yet."""
    return {
        "schema": 1,
        "op": "ceiling",
        "kernel": ceiling.kind,
        "backend": "raw",
        "format": ceiling.format,
        "accumulator": ceiling.accumulator,
        "instruction": ceiling.instruction,
        "device": device.kind,
        "device_name": device.name,
        "capability": arch.dotted(device.capability),
        "dims": {"blocks": work.plan.grid[0], "threads": work.plan.block[0], **work.dims},
        "inputs": {"fill": FILL if work.multiply_adds else "random bytes", "seed": 0},
        "work": {"multiply_adds": work.multiply_adds, "bytes": work.moved_bytes},
        "verdict": None,
        "reason": None,
        "time_ms": None,
        "tflops": None,
        "gb_per_s": None,
    }


def rate(work: Work, timing: Timing, multiprocessors: int | None) -> Record:
    """Verdict, times and the rate; a wrong result has none."""
    found: Record = {"time_ms": timing.time_ms(), "timing": timing.details()}
    if timing.wrong:
        return found | {"verdict": "FAIL", "reason": f"it did not do its work: {timing.wrong[0]}"}
    found["verdict"] = "PASS"
    seconds = timing.summary.median * 1e-3
    if work.moved_bytes:
        return found | {"gb_per_s": work.moved_bytes / seconds * 1e-9}
    found["tflops"] = 2 * work.multiply_adds / seconds * 1e-12
    clocks = [t.sm_clock_mhz for t in (timing.before, timing.after) if t and t.sm_clock_mhz]
    if clocks and multiprocessors:
        cycles = seconds * 1e6 * sum(clocks) / len(clocks)
        found["flop_per_clock_per_sm"] = 2 * work.multiply_adds / cycles / multiprocessors
    return found


def name(record: Record) -> str:
    """``mma.sync bf16``; half accumulators are named."""
    half = record["accumulator"] == "fp16"
    return f"{record['kernel']} {record['format']}" + (", fp16 acc" if half else "")


def table(records: Sequence[Record]) -> Table:
    """One line a ceiling: its rate, what that is a clock, and at which clock and power."""
    shown = Table(title="ceilings", title_justify="left", box=None, pad_edge=False)
    for column in ("ceiling", "instruction"):
        shown.add_column(column, no_wrap=True)
    for column in ("TFLOP/s", "flop/clk/SM", "GB/s", "time (ms)", "SM MHz", "W"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    for r in records:
        if r["verdict"] is None:
            shown.add_row(name(r), r["instruction"] or "", *[""] * 6, escape(str(r["reason"])))
            continue
        reading = (r.get("timing") or {}).get("telemetry_after") or {}
        shown.add_row(
            name(r),
            r["instruction"] or "",
            number(r["tflops"], 4),
            number(r.get("flop_per_clock_per_sm"), 4),
            number(r["gb_per_s"], 4),
            number(r["time_ms"]["median"], 4),
            number(reading.get("sm_clock_mhz"), 4),
            number(reading.get("power_w"), 3),
            verdict_cell(r) + (f" {escape(str(r['reason']))}" if r["reason"] else ""),
        )
    return shown
