"""The two gates: the published contract ceiling, and the arithmetic gate that decides.

Every comparison is written as ``ok = error <= bound``, so that a NaN is never within a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import Format, get
from gpulab.numerics.errors import absolute, gaps
from gpulab.numerics.rounding import through
from gpulab.numerics.simulate import Spread, relative_errors

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

TABLE: Mapping[str, Mapping[str, float]] = {
    "matmul": {"fp32": 1e-5, "fp16": 1e-2, "bf16": 1e-2},
    "attention": {"*": 1e-2, "e4m3": 5e-2, "e5m2": 5e-2},
    "rmsnorm": {"*": 1e-3},
    "softmax": {"*": 1e-3},
}
"""Published relative tolerances by operation and storage format; ``*`` is any format. Without an
entry the term 4 eps sqrt(K) rules alone."""

STORAGE_FACTOR = 4.0
"""Multiple of eps sqrt(K) in the contract gate."""
RMS_FACTOR = 2.0
"""Allowed multiple of the simulated contract's root mean square."""
RARE = 1e-9
"""Probability with which the rms of an honest kernel may exceed its limit by chance."""


@dataclass(frozen=True)
class ContractTolerance:
    """``rtol`` of the contract gate and where it comes from."""

    rtol: float
    text: str


def contract_tolerance(op: str, fmt: str, output: str, k: int) -> ContractTolerance:
    """``rtol = max(table, 4 eps sqrt(K))``, eps of the coarser of the two storage formats.

    Args:
        op: operation, a key of ``TABLE``.
        fmt: storage format of the inputs.
        output: storage format of the result.
        k: terms of one sum.
    """
    if get(fmt).is_integer:
        return ContractTolerance(0.0, "rtol = 0: integer products and sums are exact")
    coarse = max((get(fmt), get(output)), key=lambda row: row.eps)
    rows = TABLE.get(op, {})
    table = rows.get(coarse.name, rows.get("*"))
    scaled = STORAGE_FACTOR * coarse.eps * math.sqrt(k)
    term = f"{STORAGE_FACTOR:g} * 2^-{coarse.mantissa_bits} * sqrt({k})"
    if table is None:
        return ContractTolerance(scaled, f"rtol = {term} = {scaled:.5g}")
    rtol = max(table, scaled)
    return ContractTolerance(rtol, f"rtol = max({table:g}, {term}) = {rtol:.5g}")


@dataclass(frozen=True)
class ContractResult:
    """Outcome of the contract gate on one set of elements.

    Args:
        ok: element by element.
        fraction: largest share of the bound used; 1 is the limit.
        atol: absolute part of the bound.
        text: the arithmetic of the bound.
    """

    ok: Mask
    fraction: float
    atol: float
    text: str


def contract_gate(
    got: Floats, r0: Floats, largest: float, tolerance: ContractTolerance
) -> ContractResult:
    """``|got - R0| <= atol + rtol |R0|`` with ``atol = rtol max|R0|``.

    Args:
        got: values.
        r0: float64 over the original inputs.
        largest: max |R0| over the whole result (finite elements).
        tolerance: see ``contract_tolerance``.
    """
    atol = tolerance.rtol * largest
    with np.errstate(invalid="ignore"):
        bound = atol + tolerance.rtol * np.abs(r0)
    error = absolute(got, r0)
    bound[~np.isfinite(r0)] = 0.0  # kind and sign must match
    text = f"{tolerance.text}; atol = rtol * max|R0| = {atol:.4g}"
    return ContractResult(error <= bound, _share(error, bound), atol, text)


@dataclass(frozen=True)
class IntervalResult:
    """Outcome of the round-interval part.

    Args:
        ok: ``RN_out(R1 - D) <= got <= RN_out(R1 + D)``; Inf and NaN of R1 must be met exactly.
        fraction: largest share of D used: the distance from R1 to the nearest real number that
            rounds to ``got``, over D. At most 1 exactly where ``ok``.
        at: index of the element with that share.
    """

    ok: Mask
    fraction: float
    at: tuple[int, ...]


def interval(got: Floats, r1: Floats, d: Floats, output: Format | None) -> IntervalResult:
    """The round-interval test, element by element.

    Args:
        got: values of the result as stored.
        r1: float64 over the stored inputs.
        d: how far the declared accumulation may be off before the rounding to the output.
        output: row that the result is rounded to; None for int32, which must equal R1 modulo 2^32.
    """
    if output is None:
        ok = got.astype(np.int64).astype(np.int32) == r1.astype(np.int64).astype(np.int32)
        at = int((~ok).argmax())
        place = tuple(int(i) for i in np.unravel_index(at, ok.shape))
        return IntervalResult(ok, 0.0 if ok.all() else math.inf, place)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        off = np.abs(got - r1)
        ok = off <= d  # between R1 - D and R1 + D, hence between what they round to
        ok &= np.isfinite(got) & np.isfinite(r1)  # the others: kind and sign decide
        upper = np.where(off > 0, off / d, 0.0)  # no smaller than the share of D used
    doubt = ~ok
    used = np.zeros(got.shape)
    if doubt.any():
        within, share = _settle(got[doubt], r1[doubt], d[doubt], output)
        ok[doubt], used[doubt] = within, share
    # The largest share among the others: settle the likeliest, then all that could exceed it.
    upper[doubt] = 0.0
    likeliest = upper == upper.max()
    if upper.max() > 0:
        for chosen in (likeliest, None):
            some = upper > used.max() if chosen is None else chosen
            share = _budget_used(got[some], r1[some], d[some], output)
            used[some] = np.minimum(share, 1.0)
    best = np.unravel_index(int(used.argmax()), used.shape)
    return IntervalResult(ok, float(used[best]), tuple(int(i) for i in best))


def _settle(got: Floats, r1: Floats, d: Floats, output: Format) -> tuple[Mask, Floats]:
    """Whether each element lies in its interval, and the share of D it uses, made consistent."""
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = through(output, r1 - d), through(output, r1 + d)
    ok = (low <= got) & (got <= high)
    special = ~np.isfinite(r1)
    if special.any():
        same = (got == r1) | (np.isnan(got) & np.isnan(r1))
        ok[special] = same[special]
    used = _budget_used(got, r1, d, output)
    return ok, np.where(ok, np.minimum(used, 1.0), np.maximum(used, np.nextafter(1.0, 2.0)))


def _budget_used(got: Floats, r1: Floats, d: Floats, output: Format) -> Floats:
    finite = np.isfinite(got)
    top = np.copysign(output.max_finite, np.where(finite, 1.0, got))
    held = np.where(finite, got, top)
    inner, outer = gaps(output, held)
    beyond = np.abs(held) + 0.5 * outer
    before = np.abs(held) - 0.5 * inner
    # Magnitudes in the direction of got's sign that round to got: [before, beyond].
    along = np.where(np.signbit(held), -r1, r1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        away = np.maximum(before - along, along - beyond)
        away = np.where(finite, away, beyond - along)  # an infinity: everything past the top
        share = np.where(away <= 0, 0.0, np.maximum(away, 0.0) / d)
    share = np.where(np.isnan(share), np.inf, share)
    return np.where(np.isfinite(r1), share, 0.0)  # the others: kind and sign alone decide


@dataclass
class RmsSum:
    """Collects the relative errors of a kernel over the checked elements."""

    square: float = 0.0
    count: int = 0

    def merge(self, other: RmsSum) -> None:
        """Add what another one collected."""
        self.square += other.square
        self.count += other.count

    def add(self, got: Floats, r1: Floats, s: NDArray[np.floating]) -> None:
        """Add one patch; a NaN makes the sum NaN, which no limit accepts."""
        z = relative_errors(got, r1, s).ravel()
        self.square += float(z @ z)
        self.count += z.size

    @property
    def rms(self) -> float:
        """Root mean square of (got - R1) / S."""
        return math.sqrt(self.square / self.count) if self.square == self.square else math.nan


def rms_limit(spread: Spread, count: int) -> float:
    """Largest accepted rms of ``count`` relative errors, given the simulated contract's.

    Twice the simulated rms. Where few elements are judged, or few of the simulated ones err at
    all, an honest kernel can exceed that by chance; the limit is then what Bernstein's inequality
    gives for the sum of squares at the probability ``RARE``, with the simulation's own moments.

    Args:
        spread: simulated errors.
        count: elements judged, at least 1.

    Source: A. Maurer and M. Pontil, "Empirical Bernstein Bounds", COLT 2009.
    """
    x = math.log(1.0 / RARE)
    cap = spread.largest**2
    mean = spread.mean_square
    # The true mean square, bounded from the sample (empirical Bernstein).
    upper = (
        mean
        + math.sqrt(2 * spread.mean_fourth * x / spread.count)
        + (7 * cap * x / (3 * spread.count))
    )
    chance = upper + math.sqrt(2 * cap * upper * x / count) + cap * x / (3 * count)
    plain = RMS_FACTOR**2 * mean
    return math.sqrt(max(plain, chance))


def _share(error: Floats, bound: Floats) -> float:
    """Largest error / bound; 0/0 is 0, anything else over 0 is inf."""
    if error.size == 0:
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        share = error / bound
    share[error == 0] = 0.0
    share[np.isnan(share)] = np.inf
    return float(share.max())
