"""RMSNorm, with and without a residual, as the checker knows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab.check.subjects.rows import Mistake, Rows, mutant
from gpulab.formats import get
from gpulab.numerics.rounding import through
from gpulab.ops.rmsnorm import EPS, RMSNORM, RmsNorm
from gpulab.ops.rows import RowOp
from gpulab.ops.rows_arith import EXACT, PLAIN, Stepwise
from gpulab.ops.rows_contract import Floats, RowContract, Values
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_mutants import Compute

EPS_F32 = float(np.float32(EPS))


def _from_scale(scale: Any) -> Compute:
    """Y = s * scale(mean(s^2), cols) weight."""

    def compute(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
        assert isinstance(op, RmsNorm)
        s = op.summed(contract, values)
        with np.errstate(all="ignore"):
            mean = np.square(s).mean(axis=1, keepdims=True)
            return op.finished(contract, values, {"y": s * scale(mean, s.shape[1])})

    return compute


def _partial(
    op: RowOp, contract: RowContract, values: Values, over: Any
) -> Sequence[dict[str, Floats]]:
    """The squares of some columns only, divided by the number of all."""
    assert isinstance(op, RmsNorm)
    s = op.summed(contract, values)
    with np.errstate(all="ignore"):
        total = np.square(s[:, over]).sum(axis=1, keepdims=True)
        return ({"y": s / np.sqrt(total / s.shape[1] + EPS_F32)},)


def _centred(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    assert isinstance(op, RmsNorm)
    s = op.summed(contract, values)
    with np.errstate(all="ignore"):
        s = s - s.mean(axis=1, keepdims=True)
        y = s / np.sqrt(np.square(s).mean(axis=1, keepdims=True) + EPS_F32)
        return op.finished(contract, values, {"y": y})


def _weight_by_row(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    """One weight for all of a row, taken by the row's number."""
    rows, cols = values["x"].shape
    y = op.compute(EXACT, contract, values)["y"]
    weight = np.asarray(values["weight"])[np.arange(rows) % cols][:, None]
    return {"y": y * weight}


def _half_squares(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    """Only where the squares overflow: what a sum in half leaves is another diagnosis."""
    found = op.stored_values(Stepwise("fp16"), contract, values)["y"]
    assert isinstance(op, RmsNorm)
    over = np.square(op.summed(contract, values)).sum(axis=1) > np.finfo(np.float16).max
    return {"y": np.where(over[:, None], found, op.stored_values(EXACT, contract, values)["y"])}


def _stored_x(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    return {} if "residual" not in values else {"residual_out": np.asarray(values["x"])}


def _stored_y(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    if "residual" not in values:
        return {}
    return {"residual_out": op.stored_values(PLAIN, contract, values)["y"]}


HALF = get("fp16")
ROOT = "rstd = rsqrtf(sum / cols + eps)"
KNOWN = (
    Mistake("missing-weight", "the weight is not applied", "multiply by weight[column]",
            mutant("weight_missing")),
    Mistake("missing-residual", "x is normalised, not x + residual",
            "add the residual before the squares are summed", mutant("residual_missing")),
    Mistake("wrong-mean", "the sum of squares is not divided by the number of columns", ROOT,
            _from_scale(lambda m, n: 1 / np.sqrt(m * n + EPS_F32))),
    Mistake("missing-root", "x is divided by the mean square, not by its root", ROOT,
            _from_scale(lambda m, n: 1 / (m + EPS_F32))),
    Mistake("not-inverted", "x is multiplied by the root of the mean square, not divided by it",
            ROOT, _from_scale(lambda m, n: np.sqrt(m + EPS_F32))),
    Mistake("mean-subtracted", "the mean is subtracted: this is LayerNorm",
            "RMSNorm divides x itself by its root mean square", _centred),
    Mistake("missing-eps", "rows of tiny numbers are blown up: eps is missing", ROOT,
            mutant("eps_missing")),
    Mistake("misplaced-eps", "eps is added to the root, not below it", ROOT,
            _from_scale(lambda m, n: 1 / (np.sqrt(m) + EPS_F32))),
    Mistake("misplaced-eps", "eps is divided by the number of columns, as the sum is", ROOT,
            _from_scale(lambda m, n: 1 / np.sqrt(m + EPS_F32 / n))),
    Mistake("weight-by-row", "the weight is taken by the row's number",
            "weight has an element a column: weight[column]", _weight_by_row),
    Mistake("overflow", "rows whose squares exceed 65504 are wrong: they are summed in half",
            "square and sum in float: convert each element first", _half_squares),
    Mistake("wrong-residual", "x is stored as the sum of x and residual",
            "store x + residual to residual_out", _stored_x),
    Mistake("wrong-residual", "the normalised row is stored as the sum of x and residual",
            "store x + residual to residual_out", _stored_y),
    Mistake("rounded-sum", "the sum x + residual is rounded to storage before it is normalised",
            "normalise the float32 sum; only residual_out is rounded", mutant("other_sum"),
            bits=True),
    Mistake("narrow-arithmetic", "rstd is rounded to half before it is multiplied",
            "keep rstd in float; only s * rstd is rounded",
            _from_scale(lambda m, n: through(HALF, 1 / np.sqrt(m + EPS_F32))), bits=True),
    Mistake("missing-cast", "the normalised value is not rounded to half before the weight",
            "y = __float2half(s * rstd) * weight, both factors in half's precision",
            mutant("no_cast"), bits=True),
)  # fmt: skip

SUBJECT = Rows(RMSNORM, KNOWN, "factor", "y[row * cols + column] = ...", _partial)
