"""On a card: how long a right submission takes at the timed size, every timed output verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab import arch, ops
from gpulab.check import measuring, ptx
from gpulab.check.runner import Submitted
from gpulab.check.subject import Setting, get_subject
from gpulab.check.worker import digest
from gpulab.exercises.base import Exercise
from gpulab.numerics.structure import POISONS
from gpulab.registry import Capability

if TYPE_CHECKING:
    from gpulab.check.session import Check

RUNS, WARMUP = 20, 3
FAMILY = "normal"
_SHIFTS = 1 << 16
_SECRET = 91
TENSOR_FLOP_PER_CLOCK = {(9, 0): {1: 8192, 2: 4096}}
"""Dense tensor-core operations a clock of an SM by bytes of an operand, by capability.

Source: NVIDIA H100 Tensor Core GPU Architecture (989.4 and 1978.9 TFLOP/s of 132 SMs at 1830 MHz);
docs/results/ceilings.jsonl has what is reached on an H200."""


class WrongOutput(Exception):
    """A timed output that is not the judged one; says which."""


def times(check: Check, submitted: Submitted) -> None:
    """Time a fresh module at the timed size."""
    if check.options.device != "cuda":
        check.result.note("timing", "not run", "the emulated device counts, it has no time to show")
        return
    if not check.options.timed:
        check.result.note("timing", "not run", "not asked for")
        return
    check.progress("timing")
    try:
        answer = take(check, submitted, check.exercise, check.exercise.timed)
    except WrongOutput as error:
        measuring.depends(check, check.timed_shape, str(error))
        check.result.note("timing", "FAIL", str(error))
        return
    op, dims = ops.get(check.exercise.op), check.exercise.timed
    moved, flops = op.bytes_moved(check.exercise.variant, dims), op.flops(dims)
    median = float(answer["time_ms"]["median"])
    check.result.facts.update(
        time_ms=answer["time_ms"],
        timing=answer["timing"],
        timed_dims=dict(dims),
        tflops=flops / median * 1e-9,
        gb_per_s=moved / median * 1e-6,
    )
    text = f"{median:.4g} ms, {len(answer['outputs'])} timed outputs verified"
    least, why = floor(check.exercise, check.capability, answer["peaks"])
    if least <= 0:
        check.result.note("timing", "PASS", f"{text}; {why}")
        return
    check.result.facts["least_ms"] = least
    if median < least:
        text = f"{median:.4g} ms is below the {least:.4g} ms that the card needs at least: {why}"
        check.result.note("timing", "FAIL", text)
        return
    check.result.note("timing", "PASS", f"{text}; the card needs at least {least:.3g} ms: {why}")


def take(
    check: Check, run: Submitted, exercise: Exercise, dims: Mapping[str, int]
) -> dict[str, Any]:
    """Time a kernel, every timed output being compared with what it gives when it is judged.

    Args:
        check: gives seed and capability.
        run: the kernel; the submission or one of the lab's.
        exercise: whose inputs it takes.
        dims: timed.

    Raises:
        WrongOutput: a timed output differs.
    """
    op, subject = ops.get(exercise.op), get_subject(exercise.op)
    setting = Setting(exercise.variant, check.capability, False, dims, check.seed)
    inputs = subject.unrepeated(setting, FAMILY) or subject.inputs(setting, FAMILY)
    assert inputs is not None
    run.load()
    right = run.at(dims)(inputs, poison=POISONS[0]).outputs
    exact = not ptx.adds_atomically(run.code.ptx)
    if exact and not run.repeats:
        raise WrongOutput("before it was timed the kernel gave another result than when judged")
    moving = subject.moving(setting)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([check.seed, _SECRET])))
    first = int(rng.integers(1, _SHIFTS))
    answer, _ = run.client.ask(
        {
            "do": "time",
            "dims": run.numbers,
            "plan": run.wire_plan(),
            "moving": dict(moving),
            "first": first,
            "keeps": bool(ptx.variables(run.code.ptx)),
            "set_bytes": op.bytes_moved(exercise.variant, dims),
            "runs": RUNS,
            "warmup": WARMUP,
        },
        inputs,
        seconds=4 * run.seconds,
        doing="timing the kernel",
    )
    wanted: dict[tuple[int, str], str] = {}
    for index, name, seen in answer["outputs"]:
        if (index, name) not in wanted:
            wanted[index, name] = digest(np.roll(right[name], first + index, axis=moving[name]))
        if seen != wanted[index, name] and exact:
            raise WrongOutput(f"a timed output (input set {index}) is not the judged one")
    return answer


def floor(exercise: Exercise, capability: Capability, peaks: dict[str, int]) -> tuple[float, str]:
    """Milliseconds that no kernel can be under, and what binds; 0 where nothing is known.

    Every input is read and every output written once, at the width and twice the clock of the
    memory bus, and every operation is done at the highest clock: as the driver gives them.
    """
    op, variant, dims = ops.get(exercise.op), exercise.variant, exercise.timed
    bounds = []
    if {"memory_khz", "memory_bits"} <= peaks.keys():
        rate = 2e3 * peaks["memory_khz"] * peaks["memory_bits"] / 8
        moved = op.bytes_moved(variant, dims)
        text = f"{moved / 1e6:.4g} MB at {rate * 1e-12:.3g} TB/s"
        bounds.append((1e3 * moved / rate, text))
    per_clock = _flop_per_clock(exercise, capability)
    if {"sm_khz", "multiprocessors"} <= peaks.keys() and per_clock is not None:
        rate = 1e3 * peaks["sm_khz"] * peaks["multiprocessors"] * per_clock
        flops = op.flops(dims)
        text = f"{flops * 1e-9:.4g} GFLOP at {rate * 1e-12:.4g} TFLOP/s"
        bounds.append((1e3 * flops / rate, text))
    return max(bounds, default=(0.0, "the driver tells no peak of this card"))


def _flop_per_clock(exercise: Exercise, capability: Capability) -> int | None:
    """Operations of an SM in a clock, in the fastest arithmetic that the exercise admits."""
    if exercise.op not in ("matmul", "int4_matmul", "attention"):
        return None  # not what a row kernel is bound by, and partly done in special units
    if exercise.variant.format == "fp32":  # float32 exercises admit no tensor core
        return 2 * arch.get(capability).fp32_fma_per_clock_per_sm
    operand = min(p.dtype.itemsize for p in exercise.params if p.role == "in")
    return TENSOR_FLOP_PER_CLOCK.get(capability, {}).get(operand)
