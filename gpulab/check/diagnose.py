"""From a failed case to what the mistake looks like.

The case is run again, twice, on the same inputs with two poison colours: what follows the poison
was never written, what differs otherwise is nondeterministic, and the rest is compared with the
float64 reference and with what common mistakes would have given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check import hypotheses, patterns
from gpulab.check.evidence import Diagnosis
from gpulab.errors import FaultError, GpulabError, KernelTimeoutError
from gpulab.formats import decode, get
from gpulab.numerics import gates, structure
from gpulab.numerics.contract import Contract
from gpulab.ops.base import Runner

Floats = NDArray[np.float64]

FAULTS = {
    "out_of_bounds": (
        "out-of-bounds",
        "guard the access: threads beyond the matrix must not touch it "
        "(row < m && column < n for C, the terms of k likewise)",
    ),
    "guard_zone": ("out-of-bounds", "guard the store: row < m && column < n"),
    "misaligned": (
        "misaligned",
        "a vector access needs an address that is a multiple of its size; rows start anywhere "
        "when k or n is odd",
    ),
    "uninitialised": (
        "uninitialised",
        "fill every element of a tile before it is read, zeros beyond the matrix; do not add to "
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


def of_error(error: GpulabError) -> Diagnosis:
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
        return Diagnosis(slug, error.message, fix)
    return Diagnosis(error.kind, error.message, error.fix or "")


def of_case(
    contract: Contract, inputs: dict[str, NDArray[Any]], run: Runner, seed: int
) -> Diagnosis | None:
    """Diagnose a product on given stored inputs; None where nothing is wrong on them.

    Args:
        contract: what it is judged by.
        inputs: stored ``a`` and ``b``.
        run: the kernel.
        seed: for the record only.

    Raises:
        GpulabError: the kernel faults.
    """
    first_run = run(inputs, poison=structure.POISONS[0])
    first = first_run.outputs["c"]
    second = run(inputs, poison=structure.POISONS[1]).outputs["c"]
    if not first_run.inputs_unchanged:
        return Diagnosis("inputs-changed", "the kernel writes to its inputs", "write only to c")
    a, b = (decode(contract.format, inputs[name]) for name in ("a", "b"))
    with np.errstate(invalid="ignore", over="ignore"):
        right, s = a @ b, np.abs(a) @ np.abs(b)
    got = contract.values(first)
    k = a.shape[1]
    allowed = contract.allowance(k)
    d = allowed.relative * s + allowed.absolute
    ok = gates.interval(got, right, d, contract.output_row).ok
    unwritten = structure.poisoned(first, structure.POISONS[0]) & structure.poisoned(
        second, structure.POISONS[1]
    )
    bad = ~ok | unwritten
    if not bad.any():
        found = _only_sizes(contract, a, b, got, right, d, s)
        return found if found is None else replace(found, share=0.0)
    found = _find(contract, a, b, got, right, d, bad, unwritten, first, second)
    at = structure.first_index(unwritten if unwritten.any() else bad)
    assert at is not None
    return replace(
        found,
        index=at,
        got=float(got[at]),
        wanted=float(right[at]),
        bound=float(d[at]),
        share=float(bad.mean()),
    )


def _find(
    contract: Contract,
    a: Floats,
    b: Floats,
    got: Floats,
    right: Floats,
    d: Floats,
    bad: NDArray[np.bool_],
    unwritten: NDArray[np.bool_],
    first: NDArray[Any],
    second: NDArray[Any],
) -> Diagnosis:
    place = patterns.locate(bad)
    if unwritten.any():
        return _unwritten(unwritten)
    if structure.check_repeat(first, second) is not None:
        return Diagnosis(
            "nondeterministic",
            f"two runs on the same inputs differ; {place.text}",
            "threads race, or memory is read that nobody wrote: look for a missing __syncthreads()",
        )
    if not np.isfinite(got[bad]).all():
        return _nonfinite(got, right)
    e = hypotheses.Evidence(a, b, got, right, d, bad, contract.format, contract.output)
    explained = hypotheses.explain(e)
    if explained is not None:
        if place.slug == "everywhere" or bad.all():
            return explained
        if place.slug in ("last-tile", "every-kth-row") and explained.slug in (
            "zeros", "dropped-terms",
        ):  # fmt: skip
            return Diagnosis(place.slug, f"{place.text}; {explained.text}", explained.fix)
        return replace(explained, text=f"{explained.text}; {place.text}")
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


def _unwritten(mask: NDArray[np.bool_]) -> Diagnosis:
    fix = "does the grid cover the whole result, rounded up? ceil(n/16), not n//16"
    if mask.all():
        return Diagnosis(
            "unwritten", "no element is ever written", "store the sum: c[row * n + column] = sum"
        )
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
    if np.isinf(got[special]).any() and most < 1.01 * least:
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


def _only_sizes(
    contract: Contract, a: Floats, b: Floats, got: Floats, right: Floats, d: Floats, s: Floats
) -> Diagnosis | None:
    """Nothing lies outside its bound, but the errors may be too large on the whole."""
    everything = np.ones(got.shape, bool)
    e = hypotheses.Evidence(a, b, got, right, d, everything, contract.format, contract.output)
    return hypotheses.narrow(e)
