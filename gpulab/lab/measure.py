"""Times on a card, or counts on the emulated device, of rows that were judged before.

Timed rows take turns. Each rotates over several input sets, which are the judged inputs with their
rows shifted. The right answer of a set is therefore the judged answer shifted by as much, and every
timed output is compared with it bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.cache import Cache
from gpulab.runtime import timing
from gpulab.runtime.device import POISONS, Device, DeviceArray
from gpulab.runtime.timing import Clock, Subject, Timing, rotation_sets

Record = dict[str, Any]
Ready = Sequence[tuple[KernelRunner, Record]]
FAMILY = "normal"
_ALONE = "kernel alone: "


@dataclass(frozen=True)
class Yardstick:
    """Memory traffic that is timed in turns with the rows that move as many bytes.

    Args:
        of: the kind of traffic, in one word (``copy``, ``read``).
        moved_bytes: bytes that one launch reads and writes.
        subjects: by the way it is done, how that is launched, and how its result is verified. Rows
            are compared with the fastest.
        free: releases its memory.
    """

    of: str
    moved_bytes: int
    subjects: Mapping[str, Subject]
    free: Callable[[], object]


MakeYardstick = Callable[[Device, Clock, int], Yardstick]
"""(card, clock, bytes that a row moves) -> the yardstick for that row."""


def judged_inputs(runner: KernelRunner, seed: int, cache: Cache) -> dict[str, NDArray[Any]]:
    """The stored inputs of the family ``normal``, the first on which the row was judged."""
    spec, variant = runner.case.spec, runner.case.variant

    def make() -> dict[str, NDArray[Any]]:
        return runner.op.stored_inputs(variant, runner.dims, FAMILY, seed, cache)

    read = tuple(p for p in spec.params(variant) if p.role != "out")
    names = (spec.op, variant.format, variant.contract, read)
    return cache.get(("timed inputs", *names, tuple(runner.dims.items()), seed), make)


def count_rows(ready: Ready, *, seed: int, cache: Cache) -> None:
    """Fill in ``counters``: one counted launch of each row on the emulated device."""
    if not ready:
        return
    from gpulab.runtime.emulated import EmulatedDevice

    device = ready[0][0].device
    counting = EmulatedDevice(device.capability, counters=True, target=device.target)
    for runner, record in ready:
        counted = KernelRunner(runner.case, counting, runner.dims, runner.op)
        counted(judged_inputs(runner, seed, cache))
        record["counters"] = counted.last_report.counters


class _Sets:
    """Device copies of the shifted inputs and their outputs, and what each output must be.

    The first dim of an output names its rows. Inputs with the same first dim are shifted along it,
    and the outputs must be shifted by as much. Where the rows of inputs and outputs repeat, the
    distinct rows alone are shifted. ``launch`` launches the steps and the kernel, ``launch_alone``
    the kernel without them: steps that read no shifted input write the same for every set.
    """

    def __init__(self, runner: KernelRunner, inputs: Mapping[str, NDArray[Any]], sets: int) -> None:
        self.runner, self.device = runner, runner.device
        result = runner(inputs)
        outputs = [p for p in runner.params if p.role == "out"]
        rows = outputs[0].dims[0]
        shifting = {p.name for p in runner.params if p.role == "in" and p.dims[:1] == (rows,)}
        self.formats = {p.name: p.format for p in outputs}
        repeat = all(p.name in result.stands_for for p in outputs)
        inputs = inputs if repeat else runner.whole(inputs)
        self.right = result.outputs if repeat else result.whole()
        self.inputs: list[dict[str, DeviceArray]] = []
        self.outputs: list[dict[str, DeviceArray]] = []
        self.expected: list[dict[str, DeviceArray]] = []
        self.parts: list[Sequence[Callable[[], object]]] = []
        for i in range(sets):
            moved = {n: np.roll(x, i, axis=0) if n in shifting else x for n, x in inputs.items()}
            sent, out = runner.upload(moved), runner.outputs(POISONS[i % 2])
            self.inputs.append(sent)
            self.outputs.append(out)
            self.parts.append(runner.bind_parts({**sent, **out}))
            moved = {n: np.roll(x, i, axis=0) for n, x in self.right.items()}
            self.expected.append(
                {
                    n: self.device.upload(x, n, result.stands_for[n] if repeat else None)
                    for n, x in moved.items()
                }
            )

    def launch(self, i: int) -> None:
        for start in self.parts[i]:
            start()

    def launch_alone(self, i: int) -> None:
        self.parts[i][-1]()

    def refill(self, i: int) -> None:
        for array in self.outputs[i].values():
            self.device.refill(array, POISONS[i % 2])

    def verify(self, i: int) -> str | None:
        """Why the output of set i is wrong, or None. Bits are compared: NaN equals itself."""
        for name, array in self.outputs[i].items():
            expected = self.expected[i][name]
            if self.device.same(array, expected):
                continue
            mine, theirs = self.device.download(array), self.device.download(expected)
            bits = np.dtype(f"u{mine.dtype.itemsize}")
            at = tuple(int(x) for x in np.argwhere(mine.view(bits) != theirs.view(bits))[0])
            fmt = self.formats[name]
            values = [
                float(x[at]) if fmt == "int32" else float(decode(fmt, x[at]))
                for x in (mine, theirs)
            ]
            return f"{name}{list(at)} is {values[0]:.9g}, was {values[1]:.9g} when judged"
        return None

    def free(self) -> None:
        for arrays in (*self.inputs, *self.outputs, *self.expected):
            self.device.free(*arrays.values())


def _moved(runner: KernelRunner) -> int:
    """Bytes that one launch of a row has to move."""
    return runner.op.bytes_moved(runner.case.variant, runner.dims)


def _subjects(
    runner: KernelRunner, inputs: Mapping[str, NDArray[Any]], l2_bytes: int, held: ExitStack
) -> dict[str, Subject]:
    """A row with its steps and, if it has any, without; ``held`` frees its memory."""
    moved, label = _moved(runner), runner.case.label
    count = rotation_sets(moved, l2_bytes)
    sets = _Sets(runner, inputs, count)
    held.callback(sets.free)
    found = {label: Subject(sets.launch, count, moved, sets.refill, sets.verify)}
    if runner.steps:
        found[_ALONE + label] = Subject(sets.launch_alone, count, moved, sets.refill, sets.verify)
    return found


def time_rows(
    ready: Ready,
    *,
    seed: int,
    runs: int,
    warmup: int,
    cache: Cache,
    yardstick: MakeYardstick | None = None,
) -> None:
    """Fill in ``time_ms``, ``timing``, ``tflops``, ``gb_per_s``, ``vs_library``, ``bandwidth``.

    Rows with steps are timed with them; ``kernel_alone`` holds the time without. A row whose timed
    outputs differ from the judged ones FAILs. With a ``yardstick``, its bandwidth is measured in
    the same turns, and each row's bandwidth is also given as a share of it.

    Args:
        ready: runners of the judged rows, and the records to fill in.
        seed: of the inputs.
        runs: timed runs of each row.
        warmup: untimed runs of each row before those.
        cache: shared with the judging.
        yardstick: makes the memory traffic to compare with; None: none is timed.

    Raises:
        UsageError: the device is emulated, and has no time.
        FaultError: a kernel did something illegal.
    """
    if not ready:
        return
    from gpulab.runtime.cuda_clock import clock_of

    device: Device = ready[0][0].device
    clock = clock_of(device)
    subjects: dict[str, Subject] = {}
    beside: dict[int, Yardstick] = {}
    with ExitStack() as held:
        for runner, _ in ready:
            inputs, moved = judged_inputs(runner, seed, cache), _moved(runner)
            subjects |= _subjects(runner, inputs, clock.l2_bytes, held)
            if yardstick is not None and moved not in beside:
                beside[moved] = yardstick(device, clock, moved)
                held.callback(beside[moved].free)
                subjects |= {_beside(moved, w): s for w, s in beside[moved].subjects.items()}
        timings = timing.time_interleaved(clock, subjects, runs=runs, warmup=warmup)
    for runner, record in ready:
        _fill_in(record, runner, timings, beside)
    _against_library(ready)


def _fill_in(
    record: Record,
    runner: KernelRunner,
    timings: Mapping[str, Timing],
    beside: Mapping[int, Yardstick],
) -> None:
    """What the turns say about a row; FAIL if anything that was timed for it is wrong."""
    taken, moved = timings[runner.case.label], _moved(runner)
    flops, median_s = runner.op.flops(runner.dims), taken.summary.median * 1e-3
    record["time_ms"] = taken.time_ms()
    record["timing"] = taken.details()
    record["tflops"] = flops / median_s * 1e-12
    record["gb_per_s"] = moved / median_s * 1e-9
    wrong = [f"timed output differs: {text}" for text in taken.wrong]
    if runner.steps:
        alone = timings[_ALONE + runner.case.label]
        wrong += [f"timed output differs: {text}" for text in alone.wrong]
        record["kernel_alone"] = {
            "without": [step.name for step, _ in runner.steps],
            "time_ms": alone.time_ms(),
            "tflops": flops / alone.summary.median * 1e-9,
        }
    if moved in beside:
        others = {way: timings[_beside(moved, way)] for way in beside[moved].subjects}
        told = f"the {beside[moved].of} timed beside it is wrong: "
        wrong += [told + x for other in others.values() for x in other.wrong]
        record["bandwidth"] = _share(record["gb_per_s"], beside[moved], others)
    if wrong:
        record["verdict"] = "FAIL"
        record["reason"] = wrong[0]


def _beside(moved_bytes: int, way: str) -> str:
    return f"beside {moved_bytes} bytes: {way}"


def _share(gb_per_s: float, yardstick: Yardstick, ways: Mapping[str, Timing]) -> Record:
    """The record of a yardstick, with the row's speed as a share of its fastest way."""
    speeds = {w: yardstick.moved_bytes / t.summary.median * 1e-6 for w, t in ways.items()}
    way = max(speeds, key=speeds.__getitem__)
    there, taken = speeds[way], ways[way]
    return {
        "of": yardstick.of,
        "way": way,
        "moved_bytes": yardstick.moved_bytes,
        "gb_per_s": there,
        "ways_gb_per_s": speeds,
        "time_ms": taken.time_ms(),
        "method": taken.method,
        "l2": taken.l2,
        "fraction": gb_per_s / there,
    }


def _against_library(ready: Ready) -> None:
    """Fill in ``vs_library``: the speed relative to the library row of the same formats and run.

    If no library row has the same output format (or rounding contract), one that agrees in the
    input format alone takes its place.
    """
    bases = [record for _, record in ready if record["backend"] == "library"]
    for _, record in ready:
        same = [base for base in bases if base["format"] == record["format"]]
        for field in ("output", "contract"):
            same = [base for base in same if base[field] == record[field]] or same
        if not same:
            continue
        base = same[0]
        record["vs_library"] = {
            "baseline": f"{base['kernel']} {base['format']}->{base['output']}",
            "ratio": base["time_ms"]["median"] / record["time_ms"]["median"],
        }
        if "kernel_alone" in record or "kernel_alone" in base:
            mine, theirs = (_kernel_ms(each) for each in (record, base))
            record["vs_library"]["kernel_ratio"] = theirs / mine


def _kernel_ms(record: Record) -> float:
    """Milliseconds of the kernel without the steps before it."""
    taken = record.get("kernel_alone", record)["time_ms"]
    return float(taken["median"])
