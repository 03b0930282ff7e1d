"""The stages that follow a right result: races, state, memory traffic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulab import ops
from gpulab.check import building, submission, unset
from gpulab.check.evidence import Diagnosis
from gpulab.check.runner import Submitted
from gpulab.check.subject import Arrays
from gpulab.check.workbench import SCRAMBLES
from gpulab.errors import FaultError, GpulabError
from gpulab.exercises.base import Exercise, Shape
from gpulab.numerics.structure import POISONS

if TYPE_CHECKING:
    from gpulab.check.session import Check

LOADS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
STORES = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"
FMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
WASTEFUL = 1.5
"""Multiple of the starter's sectors per request from which access is called uncoalesced."""
REPEATS = 32
MOST_STRAIGHT = 0.5
"""Share of the bytes of a kernel without tiles that one with tiles may load."""
READS_SLACK = 0.25
"""Reading of inputs that is no pass: a first element again, an overlap."""


def races(check: Check) -> None:
    """One launch under the race detector of the emulated device; what it gives must not depend on
    what nobody set (beside a card ``unset.judge`` has looked)."""
    submitted = check.watched
    if submitted is None:
        check.result.note("races", "not run", f"not looked for: {check.unwatched}")
        return
    shape = check.exercise.shape("full")
    check.progress("races")
    submitted.load()
    try:
        run = submitted.at(shape.dims, "races")
        got = run(check.stored(shape), poison=POISONS[0]).outputs
    except FaultError as error:
        if error.details.get("fault") != "race":
            raise
        check.result.note("races", "FAIL", error.message)
        check.result.facts["error"] = error.to_json()
        check.result.exit_code = error.exit_code
        # On a card it makes wrong results of any kind: it is their cause.
        if check.result.diagnosis is None or check.options.device == "cuda":
            from gpulab.check import diagnose

            check.result.diagnosis = diagnose.of_error(error)
            check.result.facts["replay"] = str(check.token(shape))
    else:
        check.result.note("races", "PASS")
        if check.options.device == "emulated" and check.result.diagnosis is None:
            unset.look(check, shape, got)


def state(check: Check, submitted: Submitted) -> None:
    """A launch must not depend on what an earlier one left in the module's variables.

    On the emulated device, where a launch changed a variable, it is filled with other bytes and
    the result must still be right. On a card many launches of one module must give the same bits.
    """
    shape = check.exercise.shape("full")
    inputs = check.stored(shape)
    if check.options.device == "cuda":
        run = submitted.at(shape.dims)
        run.load()
        first = _bytes(run(inputs, poison=POISONS[0]).outputs)
        for number in range(2, REPEATS + 1):
            if _bytes(run(inputs, poison=POISONS[1]).outputs) != first and not check.atomics:
                depends(check, shape, f"launch {number} of {REPEATS} gives another result")
                return
        check.result.note("state", "PASS", f"{REPEATS} launches of one module agree")
    if check.watched is None:
        return
    run = check.watched.at(shape.dims)
    changed = sorted(run.changed)
    if not changed and check.options.device == "cuda":
        return
    if not changed:
        check.result.note("state", "PASS", "no launch left anything behind")
        return
    check.progress("state")
    for byte in SCRAMBLES:
        run.load()
        run.scramble(byte)
        try:
            got = run(inputs, poison=POISONS[0]).outputs
        except GpulabError as error:
            text = f"with {', '.join(changed)} as an earlier launch might leave it: {error.message}"
            depends(check, shape, text)
            return
        if not right(check, shape, inputs, got):
            depends(check, shape, f"the result depends on what is left in {', '.join(changed)}")
            return
    check.result.note("state", "PASS", f"{', '.join(changed)} change, the result does not")


def _bytes(outputs: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outputs.items()}


def right(check: Check, shape: Shape, inputs: Arrays, got: Mapping[str, Any]) -> bool:
    """Whether every element is within its bound."""
    expected = check.subject.expected(check.setting(shape.dims), inputs)
    return all(bool(one.ok(one.values(got[one.name])).all()) for one in expected)


def depends(check: Check, shape: Shape, text: str) -> None:
    """Note that a result depends on something beside the arguments of its launch."""
    check.result.note("state", "FAIL", text)
    check.result.facts["replay"] = str(check.token(shape))
    if check.result.diagnosis is None:
        check.result.diagnosis = Diagnosis(
            "keeps-state", text, "a launch must compute its result from its arguments alone"
        )


def memory(check: Check) -> None:
    """Sectors a request beside the starter's, without tails, on the emulated device."""
    submitted = check.watched
    if submitted is None:
        check.result.note("memory", "not run", f"not counted: {check.unwatched}")
        return
    check.progress("memory")
    shape = check.exercise.shape("counted")
    mine = _count(check, submitted, shape)
    starter = check.exercise.file("starter", "cu")
    base = check.cache.get(
        ("starter", check.exercise.name, check.capability, check.seed),
        lambda: _count(check, own(check, submitted, check.exercise, starter), shape),
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
    _asked_for(check, shape, mine)
    _passes(check, submitted, shape, mine)
    check.result.facts["counters"] = mine
    check.result.facts["starter_counters"] = {k: base.get(k) for k in (LOADS, STORES)}
    check.result.note("memory", "note", text)


def _asked_for(check: Check, shape: Shape, mine: Mapping[str, Any]) -> None:
    """Tensor cores and tiles that the exercise asks for do the work and are no decoration."""
    products = ops.get(check.exercise.op).flops(shape.dims) // 2
    against = None
    formed, elsewhere = mine["tensor_products"], mine[FMA]
    if check.exercise.tensor_cores == "required" and (formed < products or elsewhere >= products):
        against = Diagnosis(
            "no-tensor-cores",
            f"the kernel has mma instructions, but of {products} products tensor cores form "
            f"{formed} and CUDA cores {elsewhere}",
            "multiply all tiles with mma.sync, those with tails filled up with zeros",
        )
    loaded = mine["global_load_bytes"]
    straight = products * sum(p.dtype.itemsize for p in check.exercise.params if p.role == "in")
    if check.exercise.shared_tiles and loaded > straight * MOST_STRAIGHT:
        against = Diagnosis(
            "no-tiles",
            f"the kernel has shared memory, but reads {loaded} bytes of global memory where "
            f"reading it for every product is {straight}",
            "bring tiles of the inputs to __shared__ arrays, then read them from there",
        )
    if against is not None:
        check.result.note("witness", "FAIL", against.text)
        check.result.facts.setdefault("replay", str(check.token(shape)))
        check.result.diagnosis = check.result.diagnosis or against


def _passes(check: Check, submitted: Submitted, shape: Shape, mine: Mapping[str, Any]) -> None:
    """How often the inputs are read, where the exercise limits it: in the longest rows too."""
    most = check.exercise.most_reads
    if most is None:
        return
    long = check.exercise.shapes[-1]
    counts = ((shape, mine), (long, _count(check, submitted, long)))
    times = max(
        counted["global_load_bytes"] / sum(array.nbytes for array in check.stored(at).values())
        for at, counted in counts
    )
    if times <= most + READS_SLACK:
        check.result.note("memory", "note", f"the inputs are read {times:.3g} times")
        return
    text = f"the inputs are read {times:.3g} times, the exercise allows {most}"
    check.result.note("witness", "FAIL", text)
    check.result.facts["replay"] = str(check.token(shape))
    check.result.diagnosis = Diagnosis(
        "too-many-passes", text, "keep what one pass can find out together in one pass"
    )


def _count(check: Check, submitted: Submitted, shape: Shape) -> dict[str, Any]:
    submitted.load()
    submitted.at(shape.dims, "counters")(check.stored(shape), poison=POISONS[0])
    return dict(submitted.last.get("counters") or {})


def own(check: Check, submitted: Submitted, exercise: Exercise, path: Path) -> Submitted:
    """A file of the lab (CUDA C++) in the submission's worker."""
    from gpulab import exercises

    parsed = submission.parse(path, lambda name: exercises.get(name).dims)
    code, _ = building.build(parsed, exercise, submitted.client, check.capability)
    return Submitted(submitted.client, code, exercise, submitted.seconds)
