"""Log-softmax as the checker knows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpulab.check.subjects.logsum import SHARED, infinite_sum, with_parts
from gpulab.check.subjects.rows import Mistake, Rows, mutant
from gpulab.ops.logsoftmax import LOGSOFTMAX
from gpulab.ops.rows_arith import EXACT
from gpulab.ops.rows_contract import Floats, RowContract, Values
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_logsum import log_sum


def _softmax(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    with np.errstate(all="ignore"):
        parts = log_sum(EXACT, values["x"])
        return op.finished(contract, values, {"y": parts.e / parts.sum})


def _from_lse(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    with np.errstate(all="ignore"):
        parts = log_sum(EXACT, values["x"])
        lse = (parts.largest + parts.log).astype(np.float32)
        return op.finished(contract, values, {"y": values["x"] - lse})


KNOWN = (
    Mistake("missing-log", "the logarithm of the sum is not subtracted",
            "y = (x - max) - logf(sum)",
            with_parts(lambda p: replace(p, log=np.zeros_like(p.log)))),
    Mistake("other-result", "this is the softmax itself", "y = (x - max) - logf(sum)", _softmax),
    *SHARED,
    Mistake("wrong-base", "the logarithm is of base 2", "logf(sum), or log2f(sum) * 0.69314718f",
            with_parts(lambda p: replace(p, log=p.log / np.log(2.0)))),
    Mistake("lost-digits", "where x is large the result lacks the digits that the rounded max + "
            "log(sum) has lost", "y = (x - max) - logf(sum)", _from_lse, bits=True),
    Mistake("wrong-sign", "the logarithm of the sum is added", "y = (x - max) - logf(sum)",
            with_parts(lambda p: replace(p, log=-p.log))),
    Mistake("log-of-softmax",
            "a probability that underflows has the logarithm -inf: the softmax is formed first",
            "y = (x - max) - logf(sum) needs no division and never underflows",
            mutant("log_of_softmax")),
)  # fmt: skip

SUBJECT = Rows(LOGSOFTMAX, KNOWN, "shift", "y[row * cols + column] = ...", special=(infinite_sum,))
