"""The stages that follow a right result: races, state, memory traffic, time, claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab import ops
from gpulab.check import building, submission
from gpulab.check.evidence import Diagnosis
from gpulab.check.runner import Submitted
from gpulab.check.subject import Arrays
from gpulab.check.workbench import SCRAMBLES
from gpulab.check.worker import digest
from gpulab.errors import FaultError, GpulabError
from gpulab.exercises.base import Shape

if TYPE_CHECKING:
    from gpulab.check.session import Check

LOADS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
STORES = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"
WASTEFUL = 1.5
"""Multiple of the starter's sectors per request from which access is called uncoalesced."""
CLAIM_FACTOR = 2.0
"""An error claim stands within this factor of the measured one: inputs differ."""
TIME_FACTOR = 1.25
REPEATS = 32
READS_SLACK = 0.25
"""Reading of inputs that is no pass: a first element again, an overlap."""
ROOFLINE = {
    (9, 0): (4.8e12, 989e12),
}
"""Bytes and half-precision operations a second at most, by capability.

Source: NVIDIA H200 data sheet (4.8 TB/s, 989 TFLOP/s fp16 without sparsity)."""


def races(check: Check, submitted: Submitted) -> None:
    """One launch under the race detector (emulated device)."""
    if check.options.device != "emulated":
        check.result.note("races", "not run", "races are looked for on the emulated device")
        return
    shape = check.exercise.shape("full")
    check.progress("races")
    submitted.load()
    try:
        submitted.at(shape.dims, "races")(check.stored(shape), poison=0xA5)
    except FaultError as error:
        if error.details.get("fault") != "race":
            raise
        check.result.note("races", "FAIL", error.message)
        check.result.facts["error"] = error.to_json()
        check.result.exit_code = error.exit_code
        if check.result.diagnosis is None:
            from gpulab.check import diagnose

            check.result.diagnosis = diagnose.of_error(error)
            check.result.facts["replay"] = check.token(shape)
    else:
        check.result.note("races", "PASS")


def state(check: Check, submitted: Submitted) -> None:
    """A launch must not depend on what an earlier one left in the module's variables.

    Emulated device: where a launch changed a variable, it is filled with other bytes and the
    result must still be right. On a card: many launches of one module must give the same bits.
    """
    shape = check.exercise.shape("full")
    inputs = check.stored(shape)
    changed = sorted(submitted.changed)
    run = submitted.at(shape.dims)
    if check.options.device == "cuda":
        run.load()
        first = _bytes(run(inputs, poison=0xA5).outputs)
        for number in range(2, REPEATS + 1):
            if _bytes(run(inputs, poison=0x5A).outputs) != first and not check.atomics:
                _depends(check, shape, f"launch {number} of {REPEATS} gives another result")
                return
        check.result.note("state", "PASS", f"{REPEATS} launches of one module agree")
        return
    if not changed:
        check.result.note("state", "PASS", "no launch left anything behind")
        return
    check.progress("state")
    for byte in SCRAMBLES:
        run.load()
        run.scramble(byte)
        try:
            got = run(inputs, poison=0xA5).outputs
        except GpulabError as error:
            text = f"with {', '.join(changed)} as an earlier launch might leave it: {error.message}"
            _depends(check, shape, text)
            return
        if not _right(check, shape, inputs, got):
            _depends(check, shape, f"the result depends on what is left in {', '.join(changed)}")
            return
    check.result.note("state", "PASS", f"{', '.join(changed)} change, the result does not")


def _bytes(outputs: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outputs.items()}


def _right(check: Check, shape: Shape, inputs: Arrays, got: Mapping[str, Any]) -> bool:
    expected = check.subject.expected(check.setting(shape.dims), inputs)
    return all(bool(one.ok(one.values(got[one.name])).all()) for one in expected)


def _depends(check: Check, shape: Shape, text: str) -> None:
    check.result.note("state", "FAIL", text)
    check.result.facts["replay"] = check.token(shape)
    if check.result.diagnosis is None:
        check.result.diagnosis = Diagnosis(
            "keeps-state", text, "a launch must compute its result from its arguments alone"
        )


def memory(check: Check, submitted: Submitted) -> None:
    """Sectors a request beside the starter's, without tails (emulated device)."""
    if check.options.device != "emulated":
        check.result.note("memory", "not run", "sectors are counted on the emulated device")
        return
    check.progress("memory")
    shape = check.exercise.shape("counted")
    mine = _count(check, submitted, shape)
    base = check.cache.get(
        ("starter", check.exercise.name, check.capability, check.seed),
        lambda: _count(check, _starter(check, submitted), shape),
    )
    submitted.load()
    parts, slow = [], []
    for name, key in (("load", LOADS), ("store", STORES)):
        got, wanted = float(mine.get(key) or 0), float(base.get(key) or 0)
        parts.append(f"{got:.3g} sectors a {name} (starter {wanted:.3g})")
        if wanted and got > WASTEFUL * wanted:
            slow.append(name)
    text = ", ".join(parts)
    if slow:
        text += f"; the {' and '.join(slow)}s are uncoalesced: neighbouring threads should touch "
        text += "neighbouring elements"
    if check.exercise.tensor_cores == "required" and not mine.get("tensor_products"):
        check.result.note("witness", "FAIL", "no product was formed on a tensor core")
        if check.result.diagnosis is None:
            check.result.diagnosis = Diagnosis(
                "no-tensor-cores", "the kernel has mma instructions but executes none", ""
            )
    _passes(check, shape, float(mine.get("global_load_bytes") or 0))
    check.result.facts["counters"] = mine
    check.result.facts["starter_counters"] = {k: base.get(k) for k in (LOADS, STORES)}
    check.result.note("memory", "note", text)


def _passes(check: Check, shape: Shape, loaded: float) -> None:
    """How often the inputs are read, where the exercise limits it."""
    most = check.exercise.most_reads
    if most is None:
        return
    times = loaded / sum(array.nbytes for array in check.stored(shape).values())
    if times <= most + READS_SLACK:
        check.result.note("memory", "note", f"the inputs are read {times:.3g} times")
        return
    text = f"the inputs are read {times:.3g} times, the exercise allows {most}"
    check.result.note("witness", "FAIL", text)
    check.result.facts["replay"] = check.token(shape)
    check.result.diagnosis = Diagnosis(
        "too-many-passes", text, "keep what one pass can find out together in one pass"
    )


def _count(check: Check, submitted: Submitted, shape: Shape) -> dict[str, Any]:
    submitted.load()
    submitted.at(shape.dims, "counters")(check.stored(shape), poison=0xA5)
    return dict(submitted.last.get("counters") or {})


def _starter(check: Check, submitted: Submitted) -> Submitted:
    """The exercise's starter in CUDA C++ in the same worker."""
    from gpulab import exercises

    path = check.exercise.file("starter", "cu")
    parsed = submission.parse(path, lambda name: exercises.get(name).dims)
    code, _ = building.build(parsed, check.exercise, submitted.client, check.capability)
    return Submitted(submitted.client, code, check.exercise, submitted.seconds)


def times(check: Check, submitted: Submitted) -> None:
    """On a card: time a fresh module at the timed size, every timed output verified."""
    if check.options.device != "cuda":
        check.result.note("timing", "not run", "the emulated device counts, it has no time to show")
        return
    if not check.options.timed:
        check.result.note("timing", "not run", "not asked for")
        return
    check.progress("timing")
    op, variant = ops.get(check.exercise.op), check.exercise.variant
    shape = Shape(dict(check.exercise.timed), "", ("normal",))
    inputs = check.stored(shape)
    submitted.load()
    run = submitted.at(shape.dims)
    right = run(inputs, poison=0xA5).outputs
    moving = check.subject.moving(check.setting(shape.dims))
    moved, flops = op.bytes_moved(variant, shape.dims), op.flops(shape.dims)
    answer, _ = submitted.client.ask(
        {
            "do": "time",
            "dims": run.numbers,
            "plan": run.wire_plan(),
            "moving": dict(moving),
            "set_bytes": moved,
            "runs": 20,
            "warmup": 3,
        },
        inputs,
        seconds=4 * submitted.seconds,
        doing="timing the kernel",
    )
    wanted: dict[tuple[int, str], str] = {}
    for index, name, seen in answer["outputs"]:
        if (index, name) not in wanted:
            wanted[index, name] = digest(np.roll(right[name], index, axis=moving[name]))
        if seen != wanted[index, name] and not check.atomics:
            _depends(check, shape, f"a timed output (input set {index}) is not the judged one")
            check.result.note("timing", "FAIL", "a timed output is not the judged one")
            return
    median = float(answer["time_ms"]["median"])
    check.result.facts.update(
        time_ms=answer["time_ms"],
        timing=answer["timing"],
        timed_dims=dict(shape.dims),
        tflops=flops / median * 1e-9,
        gb_per_s=moved / median * 1e-6,
    )
    text = f"{median:.4g} ms, {len(answer['outputs'])} timed outputs verified"
    floor = ROOFLINE.get(check.capability)
    if floor is not None:
        least = 1e3 * max(moved / floor[0], flops / floor[1])
        text += f"; the card needs at least {least:.3g} ms"
        if median < least:
            check.result.note(
                "timing", "FAIL", f"{median:.4g} ms is below the {least:.4g} ms that the card needs"
            )
            return
    check.result.note("timing", "PASS", text)


def claims(check: Check) -> None:
    """Answer each claim of the file."""
    made, facts = check.parsed.claims, check.result.facts
    answers: list[dict[str, Any]] = []
    timed = facts.get("time_ms")
    shown = " ".join(f"{k}={v}" for k, v in check.exercise.timed.items())
    at_size = next((j for s, j in check.judged if dict(s.dims) == dict(check.exercise.timed)), None)
    for name, value in made.items():
        measured: float | None = None
        if name == "speedup_from":
            answers.append({"claim": name, "value": value, "answer": _cause(check)})
            continue
        if name == "max_abs_err" and at_size is not None:
            measured = at_size.families[0].max_abs_err
        elif name == "gate_fraction" and at_size is not None:
            measured = at_size.contract_fraction
        elif name == "time_ms" and timed is not None:
            measured = float(timed["median"])
        answer: dict[str, Any] = {"claim": name, "value": value, "measured": measured}
        if measured is None:
            answer["answer"] = f"not verified: needs a card ({shown})"
            if name == "baseline_ms" and timed is not None:
                answer["answer"] = "not verified: the baseline is not part of the submission"
        else:
            factor = TIME_FACTOR if name == "time_ms" else CLAIM_FACTOR
            low, high = sorted((float(value), measured))
            holds = high <= factor * low or high == low
            answer["holds"] = holds
            answer["answer"] = f"{'holds' if holds else 'does not hold'}: measured {measured:.4g}"
        answers.append(answer)
    facts["claims"] = answers
    wrong = [a for a in answers if a.get("holds") is False]
    open_ = [a for a in answers if "measured" in a and a["measured"] is None]
    if not answers:
        check.result.note("claims", "note", "none made")
    elif wrong:
        check.result.note("claims", "note", f"{len(wrong)} of {len(answers)} do not hold")
    else:
        text = f"{len(answers) - len(open_)} answered"
        check.result.note("claims", "note", text + (f", {len(open_)} need a card" if open_ else ""))


def _cause(check: Check) -> str:
    """What was measured that can make the kernel faster than the float32 one."""
    from gpulab.formats import storage_dtype

    variant, counters = check.exercise.variant, check.result.facts.get("counters") or {}
    size = storage_dtype(variant.format).itemsize
    parts = [f"inputs of {size} bytes instead of 4"]
    if counters:
        parts.append(f"{counters.get('global_sector_bytes', 0) / 1e3:.4g} kB moved in sectors")
        products = counters.get("tensor_products") or 0
        parts.append(
            f"{products:.4g} products on tensor cores" if products else "no tensor-core products"
        )
    return "measured: " + ", ".join(parts)
