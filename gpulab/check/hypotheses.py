"""Mistakes that leave a signature in the values of a result, whatever the operation.

A hypothesis computes what a mistake would have given, in float64 over the stored inputs, and is
believed where it explains nearly all elements that are wrong. Each operation puts its own between
these (``gpulab.check.subjects``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.check.subject import Expected, Setting
from gpulab.formats import Format, get
from gpulab.numerics.rounding import through

Floats = NDArray[np.float64]
EXPLAINED = 0.9


def as_rows(values: NDArray[Any]) -> NDArray[Any]:
    """An output as a matrix: leading axes are rows, a vector is a column."""
    return values.reshape(-1, 1) if values.ndim == 1 else values.reshape(-1, values.shape[-1])


@dataclass(frozen=True)
class Evidence:
    """One wrong output and what it should have been; (rows, columns) as ``as_rows`` has them.

    Args:
        setting: what the case is judged under.
        inputs: as stored.
        expected: of this output.
        got: float64 values.
        bad: which elements are wrong.
        whole: every output of the run, by name: what it must be, and its float64 values.
    """

    setting: Setting
    inputs: Mapping[str, NDArray[Any]]
    expected: Expected
    got: Floats
    bad: NDArray[np.bool_]
    whole: Mapping[str, tuple[Expected, Floats]]

    @cached_property
    def right(self) -> Floats:
        """Float64 reference R1."""
        return as_rows(self.expected.right)

    @cached_property
    def slack(self) -> Floats:
        """How far each element may be off."""
        return as_rows(self.expected.slack)

    def room(self, candidate: Floats) -> Floats:
        """How far a kernel that makes exactly this mistake may be from its float64 value."""
        return _room(self.expected, self.slack, candidate)

    def near(self, candidate: Floats) -> float:
        """Share of the wrong elements that a candidate explains and the right answer does not."""
        candidate = as_rows(candidate)
        with np.errstate(invalid="ignore", over="ignore"):
            room = self.room(candidate)
            apart = ~(_same(candidate, self.right) | (np.abs(candidate - self.right) <= 2.0 * room))
            if (self.bad & apart).sum() < 0.5 * self.bad.sum():
                return 0.0
            close = _same(self.got, candidate) | (np.abs(self.got - candidate) <= room)
            return float(close[self.bad].mean())

    def agreement(self, candidates: Mapping[str, Floats]) -> float:
        """Share of all elements, right ones and other outputs too, that are as a mistake has it."""
        shares = []
        for name, candidate in candidates.items():
            expected, got = self.whole[name]
            with np.errstate(invalid="ignore", over="ignore"):
                room = _room(expected, expected.slack, candidate)
                shares.append((_same(got, candidate) | (np.abs(got - candidate) <= room)).mean())
        return float(np.mean(shares))


def _room(expected: Expected, slack: Floats, candidate: Floats) -> Floats:
    size = np.where(np.isfinite(candidate), np.abs(candidate), 0.0)
    return 4.0 * slack + 4.0 * expected.unit_roundoff * size


def _same(one: Floats, other: Floats) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (one == other) | (np.isnan(one) & np.isnan(other))
    return same


Hypothesis = Callable[[Evidence], Diagnosis | None]


@dataclass(frozen=True)
class Suspect:
    """A mistake whose result is computed and compared.

    Args:
        slug: of the diagnosis.
        text: what it looks like.
        fix: what to do.
        values: what it would have stored, but for the last rounding.
    """

    slug: str
    text: str
    fix: str
    values: Callable[[], Floats]

    def explains(self, e: Evidence) -> Diagnosis | None:
        """The diagnosis where the values are those of this mistake."""
        with np.errstate(all="ignore"):
            if e.near(self.values()) >= EXPLAINED:
                return Diagnosis(self.slug, self.text, self.fix)
        return None


def zeros(e: Evidence) -> Diagnosis | None:
    """Nothing but zeros where it is wrong."""
    if not (e.got[e.bad] == 0).all():
        return None
    what = "all elements are zero" if (e.got == 0).all() else "every wrong element is zero"
    return Diagnosis("zeros", what, "is the sum ever added to, and is it the sum that is stored?")


def constant(e: Evidence) -> Diagnosis | None:
    """One value everywhere."""
    alike = (np.abs(e.right - e.right.flat[0]) <= 2.0 * e.slack).all()  # as it should be
    if e.got.size < 4 or alike or not (e.got == e.got.flat[0]).all():
        return None
    return Diagnosis(
        "constant", f"every element is {e.got.flat[0]:.6g}", "what is stored depends on no input"
    )


def swapped(e: Evidence) -> Diagnosis | None:
    """Two outputs, each holding what belongs to the other."""
    mine, got = e.whole[e.expected.name]
    for other, theirs in e.whole.values():
        if other is mine or theirs.shape != got.shape:
            continue
        wrong = ~mine.ok(got) & ~other.ok(theirs)
        crossed = other.ok(got) & mine.ok(theirs) & wrong
        if e.bad.any() and crossed.sum() >= EXPLAINED * e.bad.sum():
            return Diagnosis(
                "swapped-outputs",
                f"{mine.name} holds what belongs to {other.name}, and {other.name} what belongs to "
                f"{mine.name}",
                f"swap the two stores, or the parameters {mine.name} and {other.name}",
            )
    return None


def misplaced(e: Evidence) -> Diagnosis | None:
    """Right values at wrong places: transposed, or a neighbour's."""
    m, n = e.right.shape
    i, j = np.arange(m)[:, None], np.arange(n)[None, :]
    suspects = [
        Suspect(
            "transposed",
            "the result is stored transposed: element [i, j] stands where [j, i] belongs",
            "store to c[row * n + column], row from the y and column from the x index",
            lambda: e.right.ravel()[((i * n + j) % m) * n + (i * n + j) // m],
        )
    ]
    for di, dj in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        name = f"[i{di:+d}, j]" if di else f"[i, j{dj:+d}]"
        suspects.append(
            Suspect(
                "neighbour",
                f"elements hold the value of a neighbour: [i, j] holds {name}",
                "an index is off by one",
                partial(np.roll, e.right, (-di, -dj), (0, 1)),
            )
        )
    return next((d for d in (s.explains(e) for s in suspects) if d is not None), None)


def scaled(e: Evidence) -> Diagnosis | None:
    """A constant factor."""
    big = e.bad & np.isfinite(e.right) & np.isfinite(e.got)
    if big.any():
        big &= np.abs(e.right) > np.median(np.abs(e.right[big]))
    if big.sum() < 4:
        return None
    factor = float(np.median(e.got[big] / e.right[big]))
    if not np.isfinite(factor) or factor == 0:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        if e.near(factor * e.right) < EXPLAINED or abs(factor - 1.0) < 1e-4:
            return None
    return Diagnosis(
        "scaled",
        f"every wrong element is {factor:.6g} times the right one",
        "a factor too many or too few, or terms that are counted twice",
    )


NARROW = (("fp16", "half-accumulator"), ("bf16", "bf16-accumulator"))


def narrow_results(e: Evidence, simulate: Callable[[Evidence, Format], Floats]) -> Diagnosis | None:
    """A narrow running sum that is stored: its values are all numbers of that format.

    Args:
        e: the evidence.
        simulate: the result of a running sum in a format.
    """
    error = e.got - e.right
    for name, slug in NARROW:
        row = get(name)
        if row.mantissa_bits >= get(e.expected.format).mantissa_bits:
            continue
        finite = np.isfinite(e.got)
        if not finite.any():
            continue
        held = through(row, e.got) == e.got
        once = through(row, e.right)
        if (e.got == once)[finite].mean() > EXPLAINED:
            return Diagnosis(
                "rounded-output",
                f"the result is the right one rounded to {name}",
                "keep the sum in float and store it without rounding",
            )
        with np.errstate(over="ignore", invalid="ignore"):
            simulated = as_rows(simulate(e, row)) - e.right
        size = rms(error) / max(rms(simulated), 1e-300)
        if held[finite].mean() > EXPLAINED and 0.2 < size < 5.0:
            return Diagnosis(
                slug,
                f"every result is a number of {name}, and the errors have the size "
                f"({rms(error):.2g} rms) that a running sum in {name} makes "
                f"({rms(simulated):.2g}):\n{histogram(error, row.unit_roundoff, e.right)}",
                "declare the sum as float and convert each element before it is used",
            )
        if 0.05 < size < 3.0 and held[finite].mean() <= EXPLAINED and name == "fp16":
            return Diagnosis(
                "narrow-arithmetic",
                f"the errors have the size that arithmetic in {name} makes "
                f"({rms(error):.2g} rms, a running sum in {name}: {rms(simulated):.2g}):\n"
                f"{histogram(error, row.unit_roundoff, e.right)}",
                "something between load and store is computed in half: a product, a partial sum",
            )
    return None


def rms(values: Floats) -> float:
    """Root mean square of what is finite."""
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
