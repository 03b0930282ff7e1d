"""Attention whose arithmetic is too narrow, and queries without a key."""

from __future__ import annotations

from functools import partial

import numpy as np

from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import Evidence, histogram, rms
from gpulab.check.subjects.attention_formulas import (
    OfHead,
    View,
    half_queries,
    half_scaled,
    half_scores,
    half_weights,
)
from gpulab.check.subjects.attention_mistakes import TILES
from gpulab.formats import get
from gpulab.numerics.rounding import through
from gpulab.ops.attention_formula import Floats, Mask
from gpulab.ops.attention_simulate import PLAIN, Steps, simulate

_ALIKE = 0.75
"""Share of the elements off the rounded right answer that a rounding must explain."""
_FEWEST = 8
"""Elements off the rounded right answer from which that share tells anything."""
_CLEAR = 1.3
"""Times the error of the declared arithmetic from which an error is another's."""


def masked(view: View, e: Evidence) -> Diagnosis | None:
    """NaN in queries that see no key, and in no other."""
    empty: Mask = np.concatenate([~head.seen.any(axis=1) for head in view.heads()])
    broken = (e.bad & ~np.isfinite(e.got)).reshape(len(empty), -1)
    wrong: Mask = np.asarray(broken.any(axis=1))
    if not wrong.any() or (wrong & ~empty).any():
        return None
    queries = np.flatnonzero(wrong[: view.data.dims["seq_q"]])
    where = "only the first query of a head is" if list(queries) == [0] else "queries are"
    return Diagnosis(
        "masked-nan",
        f"{where} NaN that see no key at all: their answer is 0, and -infinity for lse",
        "(-inf) - (-inf) and 0 / 0 are NaN: while the maximum is -infinity subtract 0, and where "
        "the sum is 0 store 0",
    )


ROUNDED: tuple[tuple[str, str, OfHead], ...] = (
    ("scores-in-half", "q.k is kept in half and scaled afterwards", half_scores),
    ("scores-in-half", "scores are kept in half", half_scaled),
    ("rounded-inputs", "Q is kept in half after it is scaled", half_queries),
    *(
        ("rounded-weights", "exponentials are rounded to half before they are multiplied by V",
         partial(half_weights, tile, summed))
        for tile in (1 << 20, *TILES) for summed in (False, True)
    ),
)  # fmt: skip
"""Roundings whose results are known to the last bit, but for the error of a float32 sum."""


def rounded(view: View, e: Evidence) -> Diagnosis | None:
    """Scores or weights that pass through half: the numbers stored are those of that rounding."""
    ideal = e.expected.ideal.reshape(e.got.shape)
    differs = e.got != ideal
    if e.expected.name != "out" or differs.sum() < _FEWEST:
        return None
    with np.errstate(all="ignore"):
        for slug, text, of_head in ROUNDED:
            found = view.results(of_head)["out"].reshape(e.got.shape)
            same = through(get(e.expected.format), found) == e.got
            if same[differs].mean() > _ALIKE:
                return Diagnosis(slug, f"{text}: the numbers are those of that rounding",
                                 "keep scores, weights and sums in float")  # fmt: skip
    return None


def narrow(view: View, e: Evidence) -> Diagnosis | None:
    """Sums in half."""
    if e.expected.name != "out":
        return None
    with np.errstate(all="ignore"):
        error = e.got - e.right
        size = _size(e, error)
        declared = _size(e, _simulated(view, PLAIN) - e.right)
        if not size > _CLEAR * declared:
            return None
        for name, slug in (("fp16", "half-accumulator"), ("bf16", "bf16-accumulator")):
            summed = _size(e, _simulated(view, Steps(sums=name)) - e.right)
            if 0.4 * summed < size < 2.5 * summed:
                return Diagnosis(
                    slug,
                    f"the errors have the size ({size:.2g} rms of P |V|) that a running sum in "
                    f"{name} makes ({summed:.2g}; in float: {declared:.2g}):\n"
                    f"{histogram(error, get(e.expected.format).unit_roundoff, e.right)}",
                    "declare the sums as float and convert each element before it is used",
                )
    return None


def _simulated(view: View, steps: Steps) -> Floats:
    found = [simulate(view.data.contract, head, steps)[0] for head in view.heads()]
    return np.concatenate(found)


def _size(e: Evidence, error: Floats) -> float:
    """Rms of errors relative to the rms of their row."""
    scale = np.sqrt(np.mean(e.right**2, axis=1, keepdims=True))
    return rms(np.where(scale > 0, error / np.where(scale > 0, scale, 1.0), 0.0))
