"""LayerNorm as the checker knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpulab.check.subjects.rows import Mistake, Rows, mutant
from gpulab.ops.layernorm import EPS, LAYERNORM
from gpulab.ops.rows import RowOp
from gpulab.ops.rows_contract import Floats, RowContract, Values
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_mutants import Compute

EPS_F32 = float(np.float32(EPS))

Scale = Callable[[Floats, Floats, int], Floats]
"""(mean, variance, cols) -> what x - mean is multiplied by."""


def _with(scale: Scale) -> Compute:
    """Y = (x - mean) scale weight + bias."""

    def compute(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
        x = values["x"]
        with np.errstate(all="ignore"):
            mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
            y = (x - mean) * scale(mean, variance, x.shape[1]) * values["weight"] + values["bias"]
            return op.finished(contract, values, {"y": y})

    return compute


def _partial(
    op: RowOp, contract: RowContract, values: Values, over: Any
) -> Sequence[dict[str, Floats]]:
    """Both sums see some columns only, of x or of x - x[0], and are divided by all columns."""
    found = []
    for x in (values["x"], values["x"] - values["x"][:, :1]):
        with np.errstate(all="ignore"):
            mean = x[:, over].sum(axis=1, keepdims=True) / x.shape[1]
            variance = np.square(x - mean)[:, over].sum(axis=1, keepdims=True) / x.shape[1]
            y = (x - mean) / np.sqrt(variance + EPS_F32) * values["weight"] + values["bias"]
        found.append({"y": y})
    return found


def _weight_missing(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    return _with_parameters(op, contract, values, weight=np.ones_like(values["weight"]))


def _uncentred(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    x = values["x"]
    with np.errstate(all="ignore"):
        y = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPS_F32)
        return op.finished(contract, values, {"y": y * values["weight"] + values["bias"]})


def _swapped(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    weight, bias = values["weight"], values["bias"]
    return _with_parameters(op, contract, values, weight=bias, bias=weight)


def _with_parameters(
    op: RowFormula, contract: RowContract, values: Values, **other: Floats
) -> dict[str, Floats]:
    return _with(lambda m, v, n: 1 / np.sqrt(v + EPS_F32))(op, contract, {**values, **other})


ROOT = "rstd = rsqrtf(variance + eps)"
KNOWN = (
    Mistake("missing-bias", "the bias is not added", "y = normalised * weight + bias",
            mutant("bias_missing")),
    Mistake("missing-weight", "the weight is not applied", "y = normalised * weight + bias",
            _weight_missing),
    Mistake("swapped-parameters", "weight and bias are in each other's place",
            "y = normalised * weight + bias", _swapped),
    Mistake("missing-mean", "the mean is not subtracted from x", "normalise x - mean",
            mutant("mean_missing")),
    Mistake("missing-mean", "nothing is centred: this is RMSNorm with a bias", "normalise x - mean",
            _uncentred),
    Mistake("wrong-variance", "the squares are summed without subtracting the mean first",
            "the variance is the mean of (x - mean)^2",
            _with(lambda m, v, n: 1 / np.sqrt(v + m * m + EPS_F32))),
    Mistake("wrong-variance", "the squares are not divided by the number of columns",
            "variance = sum / cols", _with(lambda m, v, n: 1 / np.sqrt(v * n + EPS_F32))),
    Mistake("wrong-variance", "the squares are divided by n - 1", "variance = sum / cols",
            _with(lambda m, v, n: 1 / np.sqrt(v * n / max(1, n - 1) + EPS_F32))),
    Mistake("missing-root", "x - mean is divided by the variance, not by its root", ROOT,
            _with(lambda m, v, n: 1 / (v + EPS_F32))),
    Mistake("not-inverted", "x - mean is multiplied by the deviation, not divided by it", ROOT,
            _with(lambda m, v, n: np.sqrt(v + EPS_F32))),
    Mistake("missing-eps", "rows that hardly vary are blown up: eps is missing", ROOT,
            mutant("eps_missing")),
    Mistake("misplaced-eps", "eps is added to the root, not below it", ROOT,
            _with(lambda m, v, n: 1 / (np.sqrt(v) + EPS_F32))),
)  # fmt: skip

SUBJECT = Rows(LAYERNORM, KNOWN, "factor", "y[row * cols + column] = ...", _partial)
