"""Judges one submission, stage by stage. Seeds, references and the verdict live here alone."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpulab import exercises
from gpulab.check import (
    beyond,
    claims,
    diagnose,
    measuring,
    ptx,
    sampling,
    speed,
    submission,
    unset,
)
from gpulab.check.client import Client
from gpulab.check.evidence import Diagnosis, Result
from gpulab.check.gathering import gather
from gpulab.check.runner import Submitted
from gpulab.check.session import Check, Options
from gpulab.check.subject import Subject
from gpulab.errors import (
    EXIT_INCONCLUSIVE,
    BuildError,
    FaultError,
    GpulabError,
    KernelTimeoutError,
    UsageError,
)
from gpulab.exercises.base import Shape
from gpulab.numerics.cache import Cache
from gpulab.numerics.structure import POISONS
from gpulab.numerics.verdict import Judgement

REASON_FIX = {
    "nonfinite": "NaN and infinity must reach exactly the elements they belong to: check how the "
    "special codes are read, and that nothing replaces them",
    "nondeterministic": "look for a missing __syncthreads()",
}
MOST_LOOKED_AT = 4
"""Failing inputs of a case that are run again to see what they look like."""
NORMAL = "normal"
"""The family on which a case is looked at where the gates name none."""


def check(
    path: Path,
    options: Options,
    *,
    cache: Cache | None = None,
    progress: Callable[[str], object] = lambda _: None,
    workers: type[Client] = Client,
) -> Result:
    """Check one file.

    Args:
        path: the submission.
        options: how.
        cache: references shared by submissions that are checked with one seed.
        progress: told what happens next.
        workers: what runs it; ``LocalClient`` for files that are trusted.

    Raises:
        DeviceMissingError: there is no such device.
    """
    begun = time.monotonic()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    result = Result(str(path))
    result.facts.update(device=options.device, seed=seed, exercise=None)
    try:
        progress("parse")
        parsed = submission.parse(path, lambda name: exercises.get(name).dims)
        exercise = exercises.get(parsed.exercise)
        if options.only is not None and options.only.exercise != exercise.name:
            raise UsageError(
                f"the token is of {options.only.exercise}, {path.name} is for {exercise.name}",
                fix="name the file whose check printed the token",
            )
    except UsageError as error:
        _stop(result, "parse", error)
    else:
        result.note("parse", "PASS")
        result.facts.update(exercise=exercise.name, language=parsed.language, sha256=parsed.sha256)
        kept = cache or Cache()
        _run(Check(result, parsed, exercise, options, seed, kept, progress, workers))
    result.facts["seconds"] = round(time.monotonic() - begun, 2)
    return result


def _stop(result: Result, stage: str, error: GpulabError, subject: Subject | None = None) -> None:
    """A stage after which nothing can follow."""
    result.note(stage, "FAIL", error.message)
    result.verdict, result.exit_code = "FAIL", error.exit_code
    result.reason = error.message
    result.diagnosis = diagnose.of_error(error, subject)
    if error.fix:
        result.diagnosis = replace(result.diagnosis, fix=error.fix)
    result.facts["error"] = error.to_json()


def _run(check: Check) -> None:
    """Everything; errors of the submission become its result."""
    with contextlib.ExitStack() as stack:

        def worker(device: str) -> Client:
            return stack.enter_context(check.workers(device, check.options.memory_bytes))

        client = worker(check.options.device)
        try:
            check.progress("compile")
            alone = check.options.device == "emulated"
            submitted = check.compile(client, client if alone else worker("emulated"))
            shapes = check.shapes()
        except UsageError as error:
            _stop(check.result, "compile", error)
            if error.details.get("refused"):  # not looked at: says nothing about the kernel
                check.result.verdict = "INCONCLUSIVE"
                check.result.diagnosis = Diagnosis("refused", error.message, error.fix or "")
            return
        except (BuildError, KernelTimeoutError, FaultError) as error:
            _stop(check.result, "compile", error)
            slug = {"build": "does-not-compile"}.get(error.kind)
            if check.result.diagnosis and "opcode" in error.details:
                slug = "not-emulated"  # says nothing about the kernel
                check.result.verdict, check.result.exit_code = "INCONCLUSIVE", EXIT_INCONCLUSIVE
            if slug and check.result.diagnosis:
                check.result.diagnosis = replace(check.result.diagnosis, slug=slug)
            return
        check.result.note("compile", "PASS")
        _stages(check, submitted, shapes)
        if submitted.printed:
            check.result.facts["printed"] = submitted.printed


def _right_at_once(check: Check, submitted: Submitted, shape: Shape) -> bool:
    """Whether one launch of a case is right, on its first family; False where it is replayed."""
    if check.options.only is not None:
        return False
    inputs = check.stored(shape)
    got = submitted.at(shape.dims)(inputs, poison=POISONS[0]).outputs
    return measuring.right(check, shape, inputs, got)


def _stages(check: Check, submitted: Submitted, shapes: Sequence[Shape]) -> None:
    for shape in shapes:
        check.progress(" ".join(f"{k}={v}" for k, v in shape.dims.items()))
        try:
            check.watch(shape)
            submitted.load()
            if shape.once and _right_at_once(check, submitted, shape):
                continue
            check.judge(shape, submitted.at(shape.dims))
        except GpulabError as error:
            _broken(check, error, shape)
            return
        if shape.effort == "full" and check.failing() is not None:
            break  # further shapes would only say so again
    if shapes:
        gather(check)
    try:
        depends = unset.judge(check)
        if depends:
            measuring.races(check)
        elif shapes:
            _diagnose(check, submitted)
            beyond.judge(check, submitted)
            _further(check, submitted)
        right = check.failing() is None and check.result.diagnosis is None
        late = (None, check.timed_token, check.longest_token)
        if right and check.options.only in late:
            sampling.sample(check, submitted)
        if check.options.only is None and check.failing() is None and not depends:
            speed.times(check, submitted)
            claims.claims(check, submitted)
    except GpulabError as error:
        _broken(check, error, check.present or check.exercise.shapes[1])
        return
    check.result.settle()
    if check.result.verdict == "FAIL" and check.result.diagnosis is None:
        check.result.diagnosis = Diagnosis("unrecognised", check.result.reason)


def _broken(check: Check, error: GpulabError, shape: Shape) -> None:
    """A fault, a timeout or an impossible launch: the end of this submission alone."""
    stage = "faults" if isinstance(error, FaultError | KernelTimeoutError) else "structure"
    if error.details.get("fault") == "race":
        stage = "races"
    _stop(check.result, stage, error, check.subject)
    if isinstance(error, KernelTimeoutError) and check.options.device != "cuda" and check.judged:
        # It ended at a smaller size: it may be slow here and right.
        check.result.verdict = "INCONCLUSIVE"
    if isinstance(error, UsageError) and check.result.diagnosis:
        fix = check.result.diagnosis.fix or "change block=, grid= or shared= of the declaration"
        check.result.diagnosis = replace(check.result.diagnosis, slug="launch", fix=fix)
    check.result.facts["replay"] = str(check.token(shape))


def _diagnose(check: Check, submitted: Submitted) -> None:
    """What the worst failing case looks like."""
    found = check.failing()
    if found is None:
        return
    shape, judgement = found
    check.result.facts["replay"] = str(check.token(shape))
    check.progress("diagnose")
    if dict(shape.dims) == dict(check.exercise.timed):
        with check.about(shape):
            sampling.look_beside(check)
        reason = judgement.reasons[0]
        check.result.diagnosis = sampling.there_alone(check, reason.text, reason.index)
        return
    check.result.diagnosis = _looks_like(check, submitted, shape, judgement)
    if check.result.diagnosis is None and judgement.reason is not None:
        reason = judgement.reason
        check.result.diagnosis = Diagnosis(
            reason.code, reason.text, REASON_FIX.get(reason.code, ""), reason.index
        )
    if judgement.notes:
        check.result.facts["notes"] = list(judgement.notes)


def _looks_like(
    check: Check, submitted: Submitted, shape: Shape, judgement: Judgement
) -> Diagnosis | None:
    """The first failing input whose errors are recognised, else what the first one shows."""
    setting = check.setting(shape.dims)
    wheres = [r.where for r in judgement.reasons if r.where]
    wheres.sort(key=lambda where: where not in shape.families)  # stable: families first
    kept: Diagnosis | None = None
    for where in dict.fromkeys([*wheres[:MOST_LOOKED_AT], NORMAL]):
        inputs = check.subject.inputs(setting, where)
        if inputs is None:
            continue
        submitted.load()
        found = diagnose.of_case(check.subject, setting, inputs, submitted.at(shape.dims))
        if found is not None and found.slug not in diagnose.VAGUE:
            return found
        kept = kept or found
    return kept


def _further(check: Check, submitted: Submitted) -> None:
    """Witness, races, state, memory."""
    whole = check.result.diagnosis is None or check.result.diagnosis.slug not in (
        "unwritten", "zeros", "nan",
    )  # fmt: skip
    if whole:
        _witness(check, submitted)
    measuring.races(check)
    measuring.state(check, submitted)
    if check.failing() is None:
        measuring.memory(check)


def _witness(check: Check, submitted: Submitted) -> None:
    check.progress("witness")
    submitted.load()
    setting = check.setting(check.exercise.shapes[0].dims)
    seen = check.subject.witness(setting, submitted.at)
    if seen is not None and seen.wrong and check.failing() is not None:
        check.result.note("witness", "not run", "the result is wrong for another reason")
        return
    text = ptx.arithmetic(submitted.code.ptx, check.instructions)
    against = None
    if seen is not None and seen.wrong:  # where everything else is right
        shown = " ".join(f"{k}={v}" for k, v in submitted.dims.items())
        against = Diagnosis(
            "other-shape",
            f"right at the shapes above, but not at {shown}, where no rounding is left to tell",
            "look for what is another there: dims that are whole vectors or tiles while others are "
            "not",
        )
    elif seen is not None:
        text, against = f"{text}; {seen.text}", seen.against
    if against is None and not check.instructions and check.exercise.tensor_cores == "required":
        against = Diagnosis(
            "no-tensor-cores",
            "the exercise asks for tensor cores, the compiled kernel has no mma instruction",
            "multiply the tiles with mma.sync (see 'gpulab exercise show')",
        )
    if against is None and check.exercise.shared_tiles and not check.shared_bytes:
        against = Diagnosis(
            "no-tiles",
            "the exercise asks for tiles in shared memory, the kernel uses none",
            "bring tiles of the inputs to __shared__ arrays, then read them from there",
        )
    facts = dict((seen and seen.facts) or {})
    check.result.facts["witness"] = {**facts, "text": text}
    if against is None:
        check.result.note("witness", "PASS", text)
        return
    check.result.note("witness", "FAIL", against.text)
    check.result.facts.setdefault("replay", str(check.token(check.exercise.shapes[1])))
    narrow = (None, "unrecognised", "narrow-arithmetic", "rms", "exact-probe", "interval")
    kept = check.result.diagnosis
    known = kept is not None and kept.slug == "narrow-arithmetic"
    if known and against.slug == "narrow-accumulator":
        return  # the products, not the sum
    if (kept.slug if kept else None) in narrow:
        check.result.diagnosis = against if kept is None else replace(
            kept, slug=against.slug, text=f"{against.text}. {kept.text}", fix=against.fix
        )  # fmt: skip
