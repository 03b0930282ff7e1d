"""From a failed case to what the mistake looks like.

The case is run again, twice, on the same inputs with two poison colours: what follows the poison
was never written, what differs otherwise is nondeterministic, and the rest is compared with the
float64 reference and with what the operation's usual mistakes would have given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check import patterns
from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import Evidence, Hypothesis, as_rows
from gpulab.check.subject import Arrays, Setting, Subject
from gpulab.errors import FaultError, GpulabError, KernelTimeoutError
from gpulab.formats import get
from gpulab.numerics import structure
from gpulab.ops.base import Runner

Floats = NDArray[np.float64]

FAULTS = {
    "out_of_bounds": ("out-of-bounds", "guard the access: {guard}"),
    "address_space": ("out-of-bounds", "guard the access: {guard}"),  # an address far off
    "guard_zone": ("out-of-bounds", "guard the store: {guard}"),
    "misaligned": (
        "misaligned",
        "a vector access needs an address that is a multiple of its size; rows start anywhere "
        "when their length is odd",
    ),
    "uninitialised": (
        "uninitialised",
        "fill every element of a tile before it is read, zeros beyond the data; do not add to "
        "an output that you have not written",
    ),
    "async_in_flight": ("uninitialised", "wait for the asynchronous copy before reading"),
    "race": (
        "race",
        "a __syncthreads() is missing between the store and the read, or before the tile is "
        "overwritten",
    ),
    "barrier_divergence": (
        "barrier-divergence",
        "move __syncthreads() out of the branch: every thread of the block must reach it",
    ),
    "warp_divergence": ("barrier-divergence", "every lane of the mask must reach the exchange"),
    "trap": ("trap", "the kernel's own assert or __trap() stopped it"),
    "memory": ("memory", "print less, and keep no large tables"),
    "crash": ("crash", "reduce the file until it no longer happens"),
}
"""Fault kind -> (slug, what to do)."""


WHERE_SAYS_MORE = ("zeros", "dropped-terms", "row-scale")
"""Diagnoses that say less than a telling place."""
VAGUE = ("unrecognised", "row-scale")
"""Diagnoses that another failing input may make more precise."""


def of_error(error: GpulabError, subject: Subject | None = None) -> Diagnosis:
    """What a fault or a timeout looks like."""
    if isinstance(error, KernelTimeoutError):
        return Diagnosis(
            "timeout",
            error.message,
            error.fix or "look for a loop that does not end: is its counter advanced?",
        )
    kind = str(error.details.get("fault", ""))
    slug, fix = FAULTS.get(kind, (kind or error.kind, ""))
    if isinstance(error, FaultError):
        guard = "threads beyond the data must not touch it" if subject is None else subject.guard
        return Diagnosis(slug, error.message, fix.format(guard=guard))
    return Diagnosis(error.kind, error.message, error.fix or "")


def of_case(subject: Subject, setting: Setting, inputs: Arrays, run: Runner) -> Diagnosis | None:
    """Diagnose a kernel on given stored inputs; None where nothing is wrong on them.

    Args:
        subject: the operation.
        setting: what the case is judged under.
        inputs: as stored.
        run: the kernel.

    Raises:
        GpulabError: the kernel faults.
    """
    first = run(inputs, poison=structure.POISONS[0])
    second = run(inputs, poison=structure.POISONS[1])
    expected = subject.expected(setting, inputs)
    if not first.inputs_unchanged:
        names = " and ".join(one.name for one in expected)
        return Diagnosis(
            "inputs-changed", "the kernel writes to its inputs", f"write only to {names}"
        )
    subtle = None
    whole = {one.name: (one, one.values(first.outputs[one.name])) for one in expected}
    for one, got in whole.values():
        e = Evidence(setting, inputs, one, as_rows(got), as_rows(~one.ok(got)), whole)
        found = _of_output(subject, e, (first.outputs[one.name], second.outputs[one.name]))
        if found is not None and found.share:
            return found if len(expected) == 1 else replace(found, text=f"{one.name}: {found.text}")
        subtle = subtle or found
    return subtle


def _of_output(
    subject: Subject, e: Evidence, stored: tuple[NDArray[Any], NDArray[Any]]
) -> Diagnosis | None:
    """One output of two runs; a share of 0 where no element is outside its bound."""
    one, got = e.whole[e.expected.name]
    unwritten = structure.poisoned(stored[0], structure.POISONS[0]) & structure.poisoned(
        stored[1], structure.POISONS[1]
    )
    bad = e.bad.reshape(got.shape) | unwritten
    repeat = structure.check_repeat(*stored)
    if not bad.any() and repeat is not None and not e.setting.atomics:
        told = _nondeterministic("every element of the first run is right")
        return replace(told, index=repeat.index, share=repeat.count / bad.size)
    if not bad.any():
        seen = _first(subject.subtle, replace(e, bad=np.ones(e.bad.shape, bool)))
        return seen if seen is None else replace(seen, share=0.0)
    e = replace(e, bad=as_rows(bad))
    found = _find(subject, e, as_rows(unwritten), stored)
    at = structure.first_index(unwritten if unwritten.any() else bad)
    assert at is not None
    return replace(
        found,
        index=at,
        got=float(got[at]),
        wanted=float(one.right[at]),
        bound=float(one.slack[at]),
        share=float(bad.mean()),
    )


def _first(hypotheses: Sequence[Hypothesis], e: Evidence) -> Diagnosis | None:
    with np.errstate(all="ignore"):
        return next((d for d in (h(e) for h in hypotheses) if d is not None), None)


def _find(
    subject: Subject,
    e: Evidence,
    unwritten: NDArray[np.bool_],
    stored: tuple[NDArray[Any], NDArray[Any]],
) -> Diagnosis:
    place = patterns.locate(e.bad)
    if unwritten.any():
        return _unwritten(unwritten, subject.store)
    if structure.check_repeat(*stored) is not None and not e.setting.atomics:
        return _nondeterministic(place.text)
    finite = bool(np.isfinite(e.got[e.bad]).all())
    explained = _first(subject.mistakes if finite else subject.special, e)
    if explained is not None:
        if place.slug == "everywhere" or e.bad.all():
            return explained
        if place.slug in ("last-tile", "every-kth-row") and explained.slug in WHERE_SAYS_MORE:
            return Diagnosis(place.slug, f"{place.text}; {explained.text}", explained.fix)
        return replace(explained, text=f"{explained.text}; {place.text}")
    if not finite:
        return _nonfinite(e.got, e.right)
    if place.slug == "last-tile":
        return Diagnosis("last-tile", place.text, "check the guards and the loop bounds at the end")
    if place.slug == "every-kth-row":
        return Diagnosis(
            "every-kth-row", place.text, "an index or a thread is used for the wrong row"
        )
    return Diagnosis(
        "unrecognised",
        f"{place.text}; the values match none of the mistakes this checker knows",
        "replay the smallest shape and compute one wrong element by hand",
    )


def _nondeterministic(where: str) -> Diagnosis:
    return Diagnosis(
        "nondeterministic",
        f"two runs on the same inputs differ; {where}",
        "threads race, memory is read that nobody wrote, or a __device__ variable keeps what an "
        "earlier launch left: look for a missing __syncthreads()",
    )


def _unwritten(mask: NDArray[np.bool_], store: str) -> Diagnosis:
    fix = "does the grid cover the whole result, rounded up? ceil(n/16), not n//16"
    if mask.all():
        return Diagnosis("unwritten", "no element is ever written", f"store the result: {store}")
    place = patterns.locate(mask)
    text = place.text
    for verb in ("are", "is"):
        text = text.replace(f"{verb} wrong", f"{verb} never written")
    share = f"{mask.mean():.1%} of the elements are never written"
    return Diagnosis("unwritten", f"{share}: {text}", fix)


def _nonfinite(got: Floats, right: Floats) -> Diagnosis:
    special = ~np.isfinite(got)
    place = patterns.locate(special).text
    largest = float(get("fp16").max_finite)
    what = "NaN" if np.isnan(got[special]).all() else "infinity"
    if what == "NaN" and special.all():
        return Diagnosis("nan", "every element is NaN", "a sum that starts uninitialised, or 0/0")
    # What overflows does so above a size, and everywhere above it.
    size = np.abs(right)
    least, most = float(size[special].min()), float(size[~special].max(initial=0.0))
    if np.isinf(got[special]).any() and not special.all() and most < 1.01 * least:
        return Diagnosis(
            "overflow",
            f"{special.mean():.1%} of the elements are infinite: all whose right value is above "
            f"{least:.4g} in size, and no other",
            f"something is kept in half, whose largest number is {largest:g}: keep it in float",
        )
    return Diagnosis(
        "nan",
        f"{special.mean():.1%} of the elements are {what}: {place.replace('wrong', what)}",
        "an element is divided by zero or never initialised there",
    )
