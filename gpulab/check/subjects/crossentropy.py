"""Cross entropy as the checker knows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpulab.check.subjects.logsum import SHARED, infinite_sum, with_parts
from gpulab.check.subjects.rows import Mistake, Rows, mutant
from gpulab.ops.crossentropy import CROSSENTROPY, IGNORE_INDEX
from gpulab.ops.rows_arith import EXACT
from gpulab.ops.rows_contract import Floats, RowContract, Values
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_logsum import log_sum
from gpulab.ops.rows_mutants import Compute


def _moved(by: int) -> Compute:
    """The label's neighbour, without going around at the ends."""

    def compute(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
        labels, cols = np.asarray(values["labels"]), values["x"].shape[1]
        moved = labels + by
        inside = (labels >= 0) & (labels < cols) & (moved >= 0) & (moved < cols)
        return op.stored_values(
            EXACT, contract, {**values, "labels": np.where(inside, moved, labels)}
        )

    return compute


def _changed(
    op: RowFormula, contract: RowContract, values: Values, loss: Floats
) -> dict[str, Floats]:
    ignored = np.asarray(values["labels"]) == IGNORE_INDEX
    return op.finished(contract, values, {"loss": np.where(ignored, 0.0, loss)})


def _negative(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    return _changed(op, contract, values, -op.stored_values(EXACT, contract, values)["loss"])


def _only_lse(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    return _changed(op, contract, values, op.stored_values(EXACT, contract, values)["lse"])


def _lse_of_every_row(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    return {"loss": op.stored_values(EXACT, contract, values)["lse"]}


def _lse_below_max(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    log = log_sum(EXACT, values["x"]).log[:, 0]
    return op.finished(contract, values, {"lse": log})


def _from_lse(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    x, labels = values["x"], np.asarray(values["labels"]).astype(np.int64)
    inside = (labels >= 0) & (labels < x.shape[1])
    lse = op.stored_values(EXACT, contract, values)["lse"]
    loss = lse - x[np.arange(len(x)), np.where(inside, labels, 0)]
    return _changed(op, contract, values, np.where(inside, loss, np.nan))


KNOWN = (
    Mistake("label-off-by-one", "the loss is that of the column after the label's",
            "labels count from 0: x[row * cols + labels[row]]", _moved(1)),
    Mistake("label-off-by-one", "the loss is that of the column before the label's",
            "labels count from 0: x[row * cols + labels[row]]", _moved(-1)),
    Mistake("not-ignored", "rows whose label is ignore_index have a loss",
            "loss is 0 where label == ignore_index", mutant("not_ignored")),
    Mistake("wrong-sign", "the loss is negative", "loss = (max - x[label]) + logf(sum)", _negative),
    Mistake("missing-label", "no label is looked at: the loss is the log-sum-exp of every row",
            "loss = (max - x[label]) + logf(sum)", _lse_of_every_row),
    Mistake("missing-label", "the loss is the log-sum-exp alone",
            "loss = (max - x[label]) + logf(sum)", _only_lse),
    Mistake("missing-max-in-lse", "the maximum is not added to the logarithm of the sum",
            "lse = max + logf(sum)", _lse_below_max),
    *SHARED,
    Mistake("lost-digits", "where logits are large the loss lacks the digits that the rounded lse "
            "has lost: it is lse - x[label]", "loss = (max - x[label]) + logf(sum)", _from_lse,
            bits=True),
    Mistake("wrong-base", "the logarithm is of base 2", "logf(sum), or log2f(sum) * 0.69314718f",
            with_parts(lambda p: replace(p, log=p.log / np.log(2.0)))),
    Mistake("log-of-softmax", "a probability that underflows has an infinite loss: the softmax is "
            "formed first", "loss = (max - x[label]) + logf(sum)", mutant("log_of_softmax")),
)  # fmt: skip

SUBJECT = Rows(
    CROSSENTROPY, KNOWN, "shift", "loss[row] = ..., lse[row] = ...", special=(infinite_sum,)
)
