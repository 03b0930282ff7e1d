"""Mistakes that softmax, log-softmax and cross entropy share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import Evidence
from gpulab.check.subjects.rows import Mistake, mutant
from gpulab.formats import get
from gpulab.numerics.rounding import through
from gpulab.ops.rows_arith import EXACT
from gpulab.ops.rows_contract import Floats, RowContract, Values
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_logsum import LogSum, LogSumOp, log_sum
from gpulab.ops.rows_mutants import Compute

HALF = get("fp16")
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


def _unscaled(threads: int, within: bool, across: bool) -> Compute:
    """Sums of ``threads`` threads, each over every ``threads``-th column, combined wrongly.

    Args:
        threads: number of threads that share a row.
        within: each thread rescales its sum whenever its own maximum grows.
        across: the threads' sums are rescaled to the row's maximum before they are added.
    """

    def change(parts: LogSum) -> LogSum:
        if (parts.d > -1.0).all():  # maxima so near to each other tell nothing
            return parts
        x = parts.d  # the maximum is 0
        total = np.zeros_like(parts.sum)
        for lane in range(min(threads, x.shape[1])):
            mine = x[:, lane::threads]
            running = np.maximum.accumulate(mine, axis=1)
            top = running[:, -1:]
            added = np.exp(mine - (top if within else running)).sum(axis=1, keepdims=True)
            total += added * np.exp(top) if across else added
        return LogSum(parts.largest, parts.d, parts.e, total, np.log(total))

    return with_parts(change)


def _difference_in_half(parts: LogSum) -> LogSum:
    d = through(HALF, parts.d)
    e = np.exp(d)
    total = e.sum(axis=1, keepdims=True)
    return LogSum(parts.largest, d, e, total, np.log(total))


def infinite_sum(e: Evidence) -> Diagnosis | None:
    """A logarithm of infinity in every wrong row."""
    rows = e.bad.any(axis=1)
    if "lse" in e.whole:
        right, got = e.whole["lse"][0].right, e.whole["lse"][1]
        infinite = np.isfinite(right) & np.isposinf(got)
    else:  # the largest element has the logarithm of its probability below 0, and finite
        infinite = np.isneginf(e.got[np.arange(len(e.got)), e.right.argmax(axis=1)])
    if not rows.any() or not infinite[rows].all():
        return None
    return Diagnosis(
        "missing-max",
        "the sum of the exponentials is infinite: not the maximum of the whole row is subtracted",
        "e^(x - max) never overflows where max is that of all columns, the last ones too",
    )


RESCALE = "sum = sum * expf(old_max - new_max) + expf(x - new_max)"
_THREADS = (32, 64, 128, 256, 512, 1024)
SHARED = (
    Mistake("missing-max", "rows of large numbers overflow: the maximum is not subtracted",
            "e^(x - max) never overflows; the result is the same", mutant("no_max")),
    Mistake("missing-rescale",
            "the sum of the earlier terms is not rescaled when the maximum grows", RESCALE,
            mutant("no_rescale")),
    *(Mistake("missing-rescale",
              "the sums of the threads are added although each is relative to another maximum",
              "merge pairs: s = s1 expf(m1 - m) + s2 expf(m2 - m), m = max(m1, m2)",
              _unscaled(threads, within=True, across=False)) for threads in _THREADS),
    *(Mistake("missing-rescale", "no sum is rescaled when its maximum grows", RESCALE,
              _unscaled(threads, within=False, across=across))
      for threads in _THREADS for across in (False, True)),
    Mistake("wrong-base", "the powers are of 2, not of e", "expf(d), or exp2f(d * 1.44269504f)",
            with_parts(_base_two)),
    *(Mistake("narrow-arithmetic", "the difference x - max is rounded to half",
              "subtract in float: __half2float(x) - max", with_parts(_difference_in_half), bits)
      for bits in (False, True)),
    Mistake("wrong-axis", "the sums run down the columns", "a sum belongs to a row of x",
            _down_the_columns),
)  # fmt: skip
