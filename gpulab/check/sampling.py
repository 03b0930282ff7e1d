"""Without a card: a few blocks at the size that is timed.

The whole of that size is too much to emulate, but blocks that do not wait for each other compute
the same alone. A few of them are launched, drawn from the seed, and what they write is held to the
same bounds as everything else: a kernel that takes another path at large sizes is seen. Races are
looked for there, since loops turn many times, and so is a grid that is too small for the result.

Blocks that meet by atomics are launched with those that they make a part of the result with. Where
what they write is right, it was looked at; where not, it may be unfinished, and nothing is decided.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check import grids, measuring, ptx, together
from gpulab.check.evidence import Diagnosis
from gpulab.check.subject import Arrays, Expected
from gpulab.errors import FaultError, KernelTimeoutError
from gpulab.numerics import structure

if TYPE_CHECKING:
    from gpulab.check.runner import Submitted
    from gpulab.check.session import Check

STAGE = "timed size"
LONGER = "more terms than are timed"
BLOCKS = 4
ROWS = 32
"""Rows judged of inputs that do not repeat."""
BUDGET = 200_000
"""Instructions that these blocks may take."""
UNFINISHED = ("uninitialised", "race", "trap")
"""Faults that blocks may make because others have not run."""
_DRAW = 57


def there_alone(check: Check, text: str, index: tuple[int, ...] | None = None) -> Diagnosis:
    """What is wrong at the timed size and at no smaller one."""
    shown = " ".join(f"{k}={v}" for k, v in check.timed_shape.dims.items())
    fix = "an index that overflows, or a path of its own for large sizes: look for what is another "
    fix += "there than at the smaller shapes"
    found = f"right at the smaller shapes, but at {shown}: {text}"
    return Diagnosis("timed-size", found, fix, index)


def look_beside(check: Check) -> None:
    """Beside a card: look at blocks of the timed size for faults and races, where none meet.

    Raises:
        GpulabError: a fault, or a launch shape that no device takes.
    """
    run = check.watched
    if run is not None and not ptx.meets(run.code.ptx):
        written, chosen, _ = _blocks(check, run)
        with contextlib.suppress(KernelTimeoutError):
            written(chosen)


def sample(check: Check, submitted: Submitted) -> None:
    """Judge the size that is timed, and one with more terms than that.

    Raises:
        GpulabError: a fault, or a launch shape that no device takes.
    """
    only = check.options.only
    if only in (None, check.timed_token):
        _timed(check, submitted)
    if only in (None, check.longest_token) and check.result.diagnosis is None:
        _longest(check, submitted)


def _longest(check: Check, submitted: Submitted) -> None:
    """One launch with more terms than the size that is timed."""
    shape = check.exercise.longest
    emulated = check.options.device == "emulated"
    if shape is None or (emulated and not check.options.timed):
        return
    check.present, inputs = shape, check.stored(shape)
    submitted.load()
    try:
        run = submitted.at(shape.dims, most=BUDGET * 9 // 16 if emulated else None)
        got = run(inputs, poison=structure.POISONS[0]).outputs
    except KernelTimeoutError:
        if not emulated:
            raise
        unseen = check.result.facts.get("not_looked_at")  # it may be slow here and right
        check.result.facts["not_looked_at"] = f"{unseen}, {LONGER}" if unseen else LONGER
        return
    if measuring.right(check, shape, inputs, got):
        return
    shown = " ".join(f"{k}={v}" for k, v in shape.dims.items())
    text = f"right at the smaller shapes, but wrong at {shown}, with more terms than are timed"
    fix = "any size is asked for: an array of a fixed size must not hold a row, or all terms"
    check.result.note(STAGE, "FAIL", text)
    check.result.facts["replay"] = str(check.token(shape))
    check.result.diagnosis = Diagnosis("timed-size", text, fix)


def _timed(check: Check, submitted: Submitted) -> None:
    """Judge what a few blocks write at the timed size; on a card, where it was judged whole, some
    rows of inputs that do not repeat.

    Raises:
        GpulabError: a fault, or a launch shape that no device takes.
    """
    run, shape = check.watched, check.timed_shape
    shown = " ".join(f"{k}={v}" for k, v in shape.dims.items())
    alone = check.options.device == "emulated"
    if alone and not check.options.timed:
        check.result.note(STAGE, "not run", "not asked for")
        return
    check.progress(shown)
    check.present = shape
    if not alone:
        _of_the_whole(check, submitted, shown)
    if run is None or check.result.diagnosis is not None:
        return
    if not alone:
        look_beside(check)
    elif ptx.meets(run.code.ptx):
        _that_meet(check, run, shown)
    else:
        _a_few_blocks(check, run, shown)


def _that_meet(check: Check, run: Submitted, shown: str) -> None:
    """Blocks that meet, with those that they may wait for or share a part of the result with.

    Raises:
        GpulabError: an access outside the arrays.
    """
    dims = check.timed_shape.dims
    inputs = _stored(check)
    count = math.prod(run.at(dims).plan().grid)
    one = together.of_one_element(check.exercise, check.subject)
    for blocks in together.groups(run, one, dims, _choose(count, check.seed)):
        run.load()
        few = run.at(dims, "races", blocks=blocks, most=BUDGET // 2)  # they may wait in vain
        try:
            got = few(inputs, poison=structure.POISONS[0]).outputs
        except KernelTimeoutError:
            continue
        except FaultError as error:
            if error.details.get("fault") in UNFINISHED:
                continue
            raise
        if seen := _right(check, inputs, *_touched(check, got), tell=False):
            text = f"{len(blocks)} of {count} blocks at {shown}, which meet by atomics: all {seen} "
            check.result.note(STAGE, "PASS", f"{text}elements that they write are right")
            return
    text = f"{shown} needs a card: the blocks meet by atomics, and of those emulated no group "
    check.result.note(STAGE, "INCONCLUSIVE", f"{text}writes results that are all right")


def _stored(check: Check) -> Arrays:
    """The inputs of the timed size, made once for all submissions of a seed."""
    shape = check.timed_shape
    variant = check.setting(shape.dims).variant
    key = (check.exercise.name, variant, check.capability, check.seed)
    return check.cache.get(("timed inputs", *key), lambda: _inputs(check) or check.stored(shape))


def _blocks(
    check: Check, run: Submitted
) -> tuple[Callable[[Sequence[int]], Arrays], tuple[int, ...], int]:
    """What gives what blocks write at the timed size, looked at for races; the blocks to look at;
    how many there are."""
    dims, inputs = check.timed_shape.dims, _stored(check)
    run.load()
    count = math.prod(run.at(dims).plan().grid)

    def written(blocks: Sequence[int]) -> Arrays:
        few = run.at(dims, "races", blocks=blocks, most=BUDGET)
        return few(inputs, poison=structure.POISONS[0]).outputs

    return written, _choose(count, check.seed), count


def _a_few_blocks(check: Check, run: Submitted, shown: str) -> None:
    """Judge what a few blocks at the timed size write."""
    written, chosen, count = _blocks(check, run)
    try:
        got = written(chosen)
        seen = _right(check, _stored(check), *_touched(check, got))
        missing = seen and grids.missing(got, written, chosen, count)
    except KernelTimeoutError:
        text = f"{shown} needs a card: {len(chosen)} blocks take too long to emulate"
        check.result.note(STAGE, "not run", text)
        check.result.facts["not_looked_at"] = STAGE
        return
    blocks = f"{len(chosen)} of {count} blocks at {shown}"
    if seen is None:
        return
    if missing:
        fix = (
            "launch as many blocks as the result has tiles, or let each go on in steps of the grid"
        )
        check.result.diagnosis = replace(there_alone(check, missing), fix=fix)
        check.result.note(STAGE, "FAIL", check.result.diagnosis.text)
        check.result.facts["replay"] = str(check.timed_token)
    elif seen:
        check.result.note(STAGE, "PASS", f"{blocks}: all {seen} elements that they write are right")
    else:
        check.result.note(STAGE, "INCONCLUSIVE", f"{blocks} write nothing")


def _inputs(check: Check) -> Arrays | None:
    shape = check.timed_shape
    return check.subject.unrepeated(check.setting(shape.dims), shape.families[0])


def _of_the_whole(check: Check, submitted: Submitted, shown: str) -> None:
    """On a card: all that is computed of inputs that do not repeat, some of it judged."""
    shape, text = check.timed_shape, f"{shown} is judged whole"
    inputs = _inputs(check)
    if inputs is not None:
        submitted.load()
        got = submitted.at(shape.dims)(inputs, poison=structure.POISONS[0]).outputs
        axes = check.subject.moving(check.setting(shape.dims))
        (count,) = {array.shape[axes[name]] for name, array in got.items()}
        places = np.array(_choose(count, check.seed, ROWS), np.intp)
        parts = {name: np.take(array, places, axes[name]) for name, array in got.items()}
        if _right(check, inputs, places, parts, whole=True) is None:
            return
        text += f", and {len(places)} rows of inputs that do not repeat"
    check.result.note(STAGE, "PASS", text)


def _right(
    check: Check,
    inputs: Arrays,
    places: NDArray[np.intp],
    parts: Arrays,
    *,
    whole: bool = False,
    tell: bool = True,
) -> int | None:
    """How many elements are right at these places; None where one is not.

    With ``whole`` poison that is left over is wrong too; with ``tell`` what is wrong is diagnosed.
    """
    seen = 0
    for one in _expected(check, inputs, places) if len(places) else ():
        stored = parts[one.name]
        written = ~structure.poisoned(stored, structure.POISONS[0]) | whole
        wrong = written & ~one.ok(one.values(stored))
        if wrong.any():
            if tell:
                _fail(check, one, stored, wrong, written, places)
            return None
        seen += int(written.sum())
    return seen


def _choose(count: int, seed: int, wanted: int = BLOCKS) -> tuple[int, ...]:
    """The first, the last, and others that follow from the seed."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _DRAW])))
    drawn = rng.integers(0, count, wanted - 2)
    return tuple(sorted({0, count - 1, *map(int, drawn)}))


def _touched(check: Check, got: Arrays) -> tuple[NDArray[np.intp], Arrays]:
    """Where along the axis of independent results something was written, and the results there."""
    axes = check.subject.moving(check.setting(check.timed_shape.dims))
    found: set[int] = set()
    for name, array in got.items():
        written = np.nonzero(~structure.poisoned(array, structure.POISONS[0]))
        found.update(map(int, np.unique(written[axes[name]])))
    places = np.array(sorted(found), np.intp)
    return places, {name: np.take(array, places, axes[name]) for name, array in got.items()}


def _expected(check: Check, inputs: Arrays, places: NDArray[np.intp]) -> tuple[Expected, ...]:
    """The right results there."""
    setting = check.setting(check.timed_shape.dims)
    axes = check.subject.moving(setting)
    dims = {**setting.dims, **dict.fromkeys(check.subject.along, len(places))}
    few = {n: np.take(a, places, axes[n]) if n in axes else a for n, a in inputs.items()}
    return check.subject.expected(replace(setting, dims=dims), few)


def _fail(
    check: Check,
    one: Expected,
    stored: NDArray[Any],
    wrong: NDArray[np.bool_],
    written: NDArray[np.bool_],
    places: NDArray[np.intp],
) -> None:
    at = structure.first_index(wrong)
    assert at is not None
    axis = check.subject.moving(check.setting(check.timed_shape.dims))[one.name]
    share = float(wrong.sum() / written.sum())
    told = there_alone(check, f"{share:.1%} of what was looked at is wrong")
    check.result.note(STAGE, "FAIL", told.text)
    check.result.facts["replay"] = str(check.timed_token)
    check.result.diagnosis = Diagnosis(
        told.slug,
        told.text,
        told.fix,
        (*at[:axis], int(places[at[axis]]), *at[axis + 1 :]),
        float(one.values(stored)[at]),
        float(one.right[at]),
        float(one.slack[at]),
        share,
    )
