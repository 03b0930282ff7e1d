"""Row results whose sums are too narrow or wrong as a whole: one error for all of a row.

A wrong sum moves all results of a row together: it multiplies them (softmax, RMSNorm, LayerNorm
less its bias), or shifts them (logarithms). Averaged over the row, this shows far below the
rounding of a single result.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import EXPLAINED, NARROW, Evidence, as_rows, histogram, rms
from gpulab.formats import get
from gpulab.ops.rows import RowOp
from gpulab.ops.rows_arith import Stepwise
from gpulab.ops.rows_contract import RowContract, Values

Floats = NDArray[np.float64]
View = Literal["factor", "shift"]
_CLEAR = 2.0
"""Times what the rounding of results leaves of a row's error, from which it is seen."""
_ROUNDING = 0.5
"""Relative error of a row from which it is no rounding of a sum."""
_CLOSE = 0.1
"""Relative difference of two errors of a row that are called the same."""
_PARALLEL = 0.01
"""Share of the error of one running sum that sums of many threads still make."""
_FIT = 0.2
"""Share of the error of a row that a factor and a shift may leave unexplained."""
_LOST = 1e-2
"""Error of a variance that no rounding of its own sum makes."""
_OFFSET = 1e2
"""Ratio of mean to deviation beside which E[x^2] - E[x]^2 has few digits left."""


def _plain(values: Values, found: Floats) -> Floats:
    """Results without what is added behind the sum."""
    return found - values["bias"] if "bias" in values else found


def row_errors(values: Values, got: Floats, right: Floats, view: View) -> Floats:
    """(rows,): what all results of a row have in common of their error; relative for a factor."""
    with np.errstate(all="ignore"):
        if view == "shift":
            error = got - right
            use = np.isfinite(error)
            return np.asarray(np.where(use, error, 0.0).sum(axis=1) / use.sum(axis=1))
        got, right = _plain(values, got), _plain(values, right)
        use = np.isfinite(got) & np.isfinite(right)
        got, right = np.where(use, got, 0.0), np.where(use, right, 0.0)
        return np.asarray((got * right).sum(axis=1) / (right * right).sum(axis=1) - 1.0)


def same_rows(values: Values, e: Evidence, candidate: Floats, view: View) -> bool:
    """Whether rows err together as a candidate's do, also where no single element tells them."""
    mine = row_errors(values, e.got, e.right, view)
    theirs = row_errors(values, as_rows(candidate), e.right, view)
    floor = rms(row_errors(values, e.expected.ideal.reshape(e.got.shape), e.right, view))
    wrong = e.bad.any(axis=1)
    with np.errstate(invalid="ignore"):
        clear = wrong & (np.abs(theirs) * _CLOSE > floor)
        close = np.abs(mine - theirs) <= _CLOSE * np.abs(theirs)
    return bool(2 * clear.sum() >= wrong.sum() and close[clear].mean() >= EXPLAINED)


def narrow(
    op: RowOp, contract: RowContract, values: Values, e: Evidence, view: View
) -> Diagnosis | None:
    """A running sum in half or bf16."""
    common = row_errors(values, e.got, e.right, view)
    ideal = row_errors(values, e.expected.ideal.reshape(e.got.shape), e.right, view)
    floor = rms(ideal) + 2.0 * get("fp32").unit_roundoff * np.sqrt(values["x"].shape[1])
    if rms(common) < _CLEAR * floor:
        return None
    for name, slug in NARROW:
        if name not in e.setting.narrow:
            continue
        simulated = op.stored_values(Stepwise(name), contract, values).get(e.expected.name)
        if simulated is None:
            continue
        size = rms(row_errors(values, as_rows(simulated), e.right, view))
        if size < _ROUNDING and _PARALLEL * size < rms(common) < 5.0 * size:
            return Diagnosis(
                slug,
                f"the results of a row err together, by as much ({rms(common):.2g} rms) as a "
                f"running sum in {name} makes them ({size:.2g}):\n"
                f"{histogram(e.got - e.right, get(e.expected.format).unit_roundoff, e.right)}",
                "keep the sum in float and convert each element before it is used",
            )
    return None


def row_by_row(values: Values, e: Evidence, view: View) -> Diagnosis | None:
    """A factor (or a shift) of its own for every row."""
    if e.right.shape[1] < 3:
        return None
    if "bias" in values:
        return _normalised(values, e)
    common = row_errors(values, e.got, e.right, view)[:, None]
    with np.errstate(all="ignore"):
        moved = e.right + common if view == "shift" else e.right * (1 + common)
    if e.near(moved) < EXPLAINED:
        return None
    rows = e.bad.any(axis=1)
    what = "is shifted by an amount" if view == "shift" else "has a factor"
    return Diagnosis(
        "row-scale",
        f"every wrong row {what} of its own, from {float(np.nanmin(common[rows])):.3g} to "
        f"{float(np.nanmax(common[rows])):.3g}",
        "the elements are right but for the sum (or mean) of their row",
    )


def _normalised(values: Values, e: Evidence) -> Diagnosis | None:
    """Of a row with mean and variance: normalised values = factor * right + shift."""
    rows = e.bad.any(axis=1)
    with np.errstate(all="ignore"):
        got, z = ((v - values["bias"]) / values["weight"] for v in (e.got[rows], e.right[rows]))
        away = z - z.mean(axis=1, keepdims=True)
        factor = (got * away).sum(axis=1) / (away * away).sum(axis=1)
        rest = got - factor[:, None] * away
        shift = rest.mean(axis=1)
        left = np.sqrt(np.square(rest - shift[:, None]).mean(axis=1))
        off = np.abs(factor - 1.0) * z.std(axis=1)
    if not np.isfinite(left).all() or not (left < _FIT * np.maximum(off, np.abs(shift))).all():
        return None
    if (off < np.abs(shift)).all():
        return Diagnosis(
            "wrong-mean",
            f"the normalised values of a wrong row are all off by one amount ({rms(shift):.2g} "
            "rms): its mean is off",
            "a mean of large numbers has few digits: take it of x - x[0], or correct it by the "
            "mean of what is left",
        )
    x = values["x"][rows]
    lost = np.abs(factor - 1.0).max() > _LOST
    if lost and (np.abs(x.mean(axis=1)) > _OFFSET * x.std(axis=1)).all():
        return Diagnosis(
            "cancelled-variance",
            "rows whose mean is large beside their deviation have a factor of their own, the "
            "others are right: the variance is what is left of two large numbers",
            "E[x^2] - E[x]^2 cancels: sum (x - x[0]) and its squares, or (x - mean)^2",
        )
    return Diagnosis(
        "row-scale",
        f"every wrong row has a factor of its own, from {factor.min():.3g} to {factor.max():.3g}",
        "the variance (or the part of the row that is summed for it) is wrong",
    )
