"""Mistakes of a matrix product that leave a signature in its values.

Each hypothesis computes what the mistake would have given, in float64 over the stored inputs, and
is believed where it explains nearly all elements that are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.formats import get
from gpulab.numerics.rounding import next_lower, through, to_significand
from gpulab.numerics.simulate import sequential

Floats = NDArray[np.float64]
EXPLAINED = 0.9


@dataclass(frozen=True)
class Evidence:
    """One wrong result and what it should have been.

    Args:
        a: (m, k) float64 of the stored inputs.
        b: (k, n).
        got: (m, n).
        right: float64 reference R1.
        d: how far each element may be off.
        bad: which elements are wrong.
        format: of the inputs.
        output: of the result.
    """

    a: Floats
    b: Floats
    got: Floats
    right: Floats
    d: Floats
    bad: NDArray[np.bool_]
    format: str
    output: str

    def near(self, candidate: Floats) -> float:
        """Share of the wrong elements that a candidate explains and the right answer does not."""
        with np.errstate(invalid="ignore", over="ignore"):
            slack = 4.0 * self.d + 4.0 * get(self.output).unit_roundoff * np.abs(candidate)
            told_apart = self.bad & (np.abs(candidate - self.right) > 2.0 * slack)
            if told_apart.sum() < 0.5 * self.bad.sum():
                return 0.0
            return float((np.abs(self.got - candidate) <= slack)[self.bad].mean())


def explain(e: Evidence) -> Diagnosis | None:
    """The first hypothesis that explains the errors; None if none does."""
    for hypothesis in (_zeros, _constant, _misread, _partial, _scaled, _inputs, _flushed, narrow):
        found = hypothesis(e)
        if found is not None:
            return found
    return None


def _zeros(e: Evidence) -> Diagnosis | None:
    if not (e.got[e.bad] == 0).all():
        return None
    what = "all elements are zero" if (e.got == 0).all() else "every wrong element is zero"
    return Diagnosis("zeros", what, "is the sum ever added to, and is it the sum that is stored?")


def _constant(e: Evidence) -> Diagnosis | None:
    if e.got.size < 4 or not (e.got == e.got.flat[0]).all():
        return None
    return Diagnosis(
        "constant", f"every element is {e.got.flat[0]:.6g}", "what is stored depends on no input"
    )


def _misreadings(e: Evidence) -> Iterator[tuple[str, str, str, Callable[[], Floats]]]:
    """(slug, text, fix, values) of mistakes in indexing."""
    (m, k), n = e.a.shape, e.b.shape[1]
    flat_a, flat_b, flat_c = e.a.ravel(), e.b.ravel(), e.right.ravel()
    i, j, t = np.arange(m)[:, None], np.arange(n)[None, :], np.arange(k)

    def padded(flat: Floats, index: NDArray[np.int64]) -> Floats:
        """Elements by flat index, wrapped where that lies outside."""
        return flat[index % flat.size]

    yield (
        "transposed", "the result is stored transposed: element [i, j] stands where [j, i] belongs",
        "store to c[row * n + column], row from the y and column from the x index",
        lambda: padded(flat_c, _inverse_transpose(i, j, m, n)),
    )  # fmt: skip
    yield (
        "a-times-bt", "this is A times the transpose of B: B is read along its rows",
        "read b[t * n + column]: t is the row of B",
        lambda: e.a @ flat_b.reshape(n, k).T,
    )  # fmt: skip
    yield (
        "at-times-b", "A is read along its columns",
        "read a[row * k + t]: t is the column of A",
        lambda: flat_a.reshape(k, m).T @ e.b,
    )  # fmt: skip
    yield (
        "swapped-dims", "rows of A are taken n apart instead of k",
        "the row length of A is k: a[row * k + t]",
        lambda: padded(flat_a, i * n + t) @ e.b,
    )  # fmt: skip
    yield (
        "swapped-dims", "rows of B are taken k apart instead of n",
        "the row length of B is n: b[t * n + column]",
        lambda: e.a @ padded(flat_b, t[:, None] * k + j),
    )  # fmt: skip
    yield (
        "swapped-dims", "rows of C are stored m apart instead of n",
        "the row length of C is n: c[row * n + column]",
        lambda: _restrided(e.right, m, n, m),
    )  # fmt: skip
    for di, dj in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        name = f"[i{di:+d}, j]" if di else f"[i, j{dj:+d}]"
        yield (
            "neighbour", f"elements hold the value of a neighbour: [i, j] holds {name}",
            "an index is off by one",
            partial(np.roll, e.right, (-di, -dj), (0, 1)),
        )  # fmt: skip


def _inverse_transpose(
    i: NDArray[np.int64], j: NDArray[np.int64], m: int, n: int
) -> NDArray[np.int64]:
    """Flat index of the element that a transposed store puts at [i, j]."""
    flat = i * n + j
    return (flat % m) * n + flat // m


def _restrided(right: Floats, m: int, n: int, stride: int) -> Floats:
    """What is found at [i, j] after storing row r at r * stride."""
    memory = np.full(max(m * n, (m - 1) * stride + n), np.nan)
    for row in range(m):
        memory[row * stride : row * stride + n] = right[row]
    return memory[: m * n].reshape(m, n)


def _misread(e: Evidence) -> Diagnosis | None:
    for slug, text, fix, values in _misreadings(e):
        with np.errstate(invalid="ignore", over="ignore"):
            if e.near(values()) >= EXPLAINED:
                return Diagnosis(slug, text, fix)
    return None


def _partial(e: Evidence) -> Diagnosis | None:
    """Only the first (or last) t terms are summed."""
    k = e.a.shape[1]
    rows, cols = np.nonzero(e.bad)
    if k < 2:
        return None
    pick = np.linspace(0, len(rows) - 1, min(64, len(rows))).astype(int)
    i, j = rows[pick], cols[pick]
    terms = e.a[i] * e.b[:, j].T  # (picked, k)
    got = e.got[i, j][:, None]
    slack = (4.0 * e.d + 4.0 * get(e.output).unit_roundoff * np.abs(e.got))[i, j][:, None]
    for sums, name in (
        (np.cumsum(terms, axis=1), "first"),
        (np.cumsum(terms[:, ::-1], axis=1), "last"),
    ):
        with np.errstate(invalid="ignore"):
            share = (np.abs(sums - got) <= slack).mean(axis=0)
        best = int(share[:-1].argmax()) if k > 1 else 0
        if share[best] >= EXPLAINED and share[best] > share[-1]:
            kept = best + 1
            missing = k - kept
            return Diagnosis(
                "dropped-terms",
                f"only the {name} {kept} of {k} terms are summed; {missing} are missing",
                "check where the loop over k ends: its last, incomplete step counts too",
            )
    return None


def _scaled(e: Evidence) -> Diagnosis | None:
    big = e.bad & (np.abs(e.right) > np.median(np.abs(e.right[e.bad])))
    if big.sum() < 4:
        return None
    ratio = e.got[big] / e.right[big]
    factor = float(np.median(ratio))
    if not np.isfinite(factor) or factor == 0:
        return None
    if e.near(factor * e.right) < EXPLAINED or abs(factor - 1.0) < 1e-4:
        return None
    return Diagnosis(
        "scaled",
        f"every wrong element is {factor:.6g} times the right one",
        "a factor too many or too few, or terms that are counted twice",
    )


def narrow(e: Evidence) -> Diagnosis | None:
    """A narrow accumulator: its values are all numbers of that format, its errors of that size."""
    error = e.got - e.right
    for name, slug in (("fp16", "half-accumulator"), ("bf16", "bf16-accumulator")):
        row = get(name)
        if row.mantissa_bits >= get(e.output).mantissa_bits:
            continue
        finite = np.isfinite(e.got)
        held = through(row, e.got) == e.got
        once = through(row, e.right)
        if (e.got == once)[finite].mean() > EXPLAINED:
            return Diagnosis(
                "rounded-output",
                f"the result is the right one rounded to {name}",
                "keep the sum in float and store it without rounding",
            )
        with np.errstate(over="ignore", invalid="ignore"):
            simulated = sequential(e.a, e.b, row) - e.right
        size = _rms(error) / max(_rms(simulated), 1e-300)
        if held[finite].mean() > EXPLAINED and 0.2 < size < 5.0:
            return Diagnosis(
                slug,
                f"every result is a number of {name}, and the errors have the size "
                f"({_rms(error):.2g} rms) that a running sum in {name} makes "
                f"({_rms(simulated):.2g}):\n{histogram(error, row.unit_roundoff, e.right)}",
                "declare the sum as float and convert each element before the multiplication",
            )
        if 0.05 < size < 3.0 and held[finite].mean() <= EXPLAINED and name == "fp16":
            return Diagnosis(
                "narrow-arithmetic",
                f"the errors have the size that arithmetic in {name} makes "
                f"({_rms(error):.2g} rms, a running sum in {name}: {_rms(simulated):.2g}):\n"
                f"{histogram(error, row.unit_roundoff, e.right)}",
                "something between load and store is computed in half: a product, a partial sum",
            )
    return None


def _inputs(e: Evidence) -> Diagnosis | None:
    row = get(e.format)
    if row.is_integer or row.mantissa_bits < 3:
        return None
    lower = next_lower(row)
    bits = lower.mantissa_bits + 1
    for truncate in (False, True):
        candidate = to_significand(e.a, bits, truncate) @ to_significand(e.b, bits, truncate)
        if e.near(candidate) >= EXPLAINED:
            return Diagnosis(
                "rounded-inputs",
                f"the inputs are rounded to {bits} significand bits ({lower.name}) before they "
                "are multiplied",
                f"multiply the {row.name} values as they are",
            )
    return None


def _flushed(e: Evidence) -> Diagnosis | None:
    row = get(e.format)
    a, b = (np.where(np.abs(x) < row.min_normal, 0.0, x) for x in (e.a, e.b))
    if e.near(a @ b) < EXPLAINED:
        return None
    return Diagnosis(
        "flushed-subnormals",
        f"elements below {row.min_normal:.4g}, the smallest normal {row.name}, count as zero",
        "an exponent field of 0 is subnormal: mantissa times the smallest step, no leading 1",
    )


def _rms(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def histogram(error: Floats, roundoff: float, right: Floats) -> str:
    """Errors in units of the format's rounding error of the result, as bars of text."""
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.abs(error) / (roundoff * np.abs(right))
    units = units[np.isfinite(units)]
    edges = [0.0, 0.01, 1.0, 4.0, 16.0, 64.0, np.inf]
    names = ["< 0.01", "0.01 - 1", "1 - 4", "4 - 16", "16 - 64", "> 64"]
    counts, _ = np.histogram(units, edges)
    top = max(1, int(counts.max()))
    lines = [
        f"    {name:>9} roundings | {'#' * round(30 * count / top)} {count}"
        for name, count in zip(names, counts, strict=True)
    ]
    return "\n".join(lines)
