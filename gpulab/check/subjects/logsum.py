"""Mistakes that softmax, log-softmax and cross entropy share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulab.check.subjects.rows import Mistake, mutant
from gpulab.ops.rows_arith import EXACT, PLAIN
from gpulab.ops.rows_contract import Floats, RowContract, Values
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_logsum import LogSum, LogSumOp, log_sum
from gpulab.ops.rows_mutants import Compute

Change = Callable[[LogSum], LogSum]


def with_parts(change: Change) -> Compute:
    """The operation on other parts of the log-sum-exp."""

    def compute(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
        assert isinstance(op, LogSumOp)
        with np.errstate(all="ignore"):
            parts = change(log_sum(EXACT, values["x"]))
            found = op.from_parts(EXACT, contract, parts, values)
            return op.finished(contract, values, found)

    return compute


def _base_two(parts: LogSum) -> LogSum:
    e = np.exp2(parts.d)
    total = e.sum(axis=1, keepdims=True)
    return LogSum(parts.largest, parts.d, e, total, np.log(total))


def _down_the_columns(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    """Sums over the rows of a column."""
    assert isinstance(op, LogSumOp)
    if "labels" in values:
        return {}
    with np.errstate(all="ignore"):
        turned = {**values, "x": np.ascontiguousarray(values["x"].T)}
        parts = log_sum(EXACT, turned["x"])
        found = op.from_parts(EXACT, contract, parts, turned)
        return {n: v.T for n, v in op.finished(contract, turned, found).items()}


def _half_exponentials(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    """The maximum is not subtracted, and e^x is kept in half: above 11.09 it is infinite."""
    assert isinstance(op, LogSumOp)
    x = values["x"]
    with np.errstate(all="ignore"):
        e = PLAIN.exp(x)
        e = np.where(e > np.finfo(np.float16).max, np.inf, e)
        total = e.sum(axis=1, keepdims=True)
        parts = LogSum(np.zeros_like(total), x, e, total, np.log(total))
        return op.finished(contract, values, op.from_parts(PLAIN, contract, parts, values))


SHARED = (
    Mistake("missing-max", "rows of large numbers overflow: the maximum is not subtracted",
            "e^(x - max) never overflows; the result is the same", mutant("no_max")),
    Mistake("overflow", "e^x above 65504 is infinite: it is kept in half",
            "subtract the maximum first, and keep exponentials and their sum in float",
            _half_exponentials),
    Mistake("missing-rescale",
            "the sum of the earlier terms is not rescaled when the maximum grows",
            "sum = sum * expf(old_max - new_max) + expf(x - new_max)", mutant("no_rescale")),
    Mistake("wrong-base", "the powers are of 2, not of e", "expf(d), or exp2f(d * 1.44269504f)",
            with_parts(_base_two)),
    Mistake("wrong-axis", "the sums run down the columns", "a sum belongs to a row of x",
            _down_the_columns),
)  # fmt: skip
