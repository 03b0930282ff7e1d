"""Inputs and scalars of the row operations that their gates do not use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpulab.check.subject import Arrays, Beyond, Setting, Subject
from gpulab.formats import decode, encode
from gpulab.ops.crossentropy import IGNORE_INDEX
from gpulab.ops.layernorm import LayerNorm
from gpulab.ops.rmsnorm import RmsNorm
from gpulab.ops.rows_families import held
from gpulab.ops.rows_logsum import LogSumOp

if TYPE_CHECKING:
    from gpulab.check.subjects.rows import Rows
    from gpulab.ops.rows import RowOp

_SIZES, _ABOVE = 83, 97
ABOVE = 1e4
"""Of a column that is far above the others: e^x of it overflows in double too."""


def cases(subject: Rows, setting: Setting, again: Callable[[RowOp], Subject]) -> Iterator[Beyond]:
    """All of them.

    Args:
        subject: of the operation.
        setting: of the case.
        again: the subject of the same operation with other constants.
    """
    op = subject.op
    contract = op.contract(setting.variant, setting.atomics)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([setting.seed, _SIZES])))
    parameters = [i.name for i in op.inputs(contract) if i.kind == "parameter"]
    inputs = subject.inputs(setting, "normal")
    assert inputs is not None
    if parameters:
        sized = dict(inputs)
        for name in parameters:
            sizes = 2.0 ** rng.integers(-10, 4, inputs[name].shape)
            sized[name] = encode(contract.output, decode(contract.output, inputs[name]) * sizes)
        text = "columns whose weight is small are wrong"
        fix = "every column has a weight of its own: multiply by it in float"
        yield Beyond("weights of many sizes", sized, text, fix)
    if isinstance(op, LayerNorm | RmsNorm):
        eps = float(2.0 ** -rng.integers(2, 7))
        text = f"right where eps is {op.eps:g}, and wrong here"
        given, right = {"eps": eps}, again(type(op)(eps))
        fix = "use the parameter eps"
        yield Beyond(f"eps = {eps:g}", inputs, text, fix, scalars=given, subject=right)
    if isinstance(op, LogSumOp):
        row = contract.input_row
        low = -rng.uniform(0.5, 0.75, inputs["x"].shape) * row.max_finite
        text = "the maximum starts at a number that these rows never reach"
        fix = "start the maximum at -INFINITY or -FLT_MAX, which no number of x is below"
        x = encode(row.name, low)
        yield Beyond("rows far below zero", {**inputs, "x": x}, text, fix, "missing-max")
        yield _one_far_above(subject, setting, inputs)
        high = held(86.0, row) + rng.uniform(-1.0, 1.0, inputs["x"].shape)
        text = "the maximum is not subtracted: e^x is a number here, its sum overflows"
        fix = "subtract the maximum of every row, however small it is"
        x = encode(row.name, high)
        yield Beyond("rows near 86", {**inputs, "x": x}, text, fix, "missing-max")
    if "labels" in inputs:
        yield _other_ignored(inputs, setting, int(rng.integers(setting.dims["cols"])))


def _one_far_above(subject: Rows, setting: Setting, inputs: Arrays) -> Beyond:
    """Rows of which the maximum stands in the last column, in the first, anywhere, and so on."""
    row = subject.data(setting).contract.input_row
    x = decode(row.name, inputs["x"])
    rows, cols = x.shape
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([setting.seed, _ABOVE])))
    at = np.array(rng.integers(0, cols, rows))
    at[0::3], at[1::3] = cols - 1, 0
    x[np.arange(rows), at] = held(ABOVE, row)
    return Beyond(
        "one column far above the others",
        {**inputs, "x": encode(row.name, x)},
        "the maximum is not that of the whole row: e^(x - max) overflows",
        "look for the maximum in all the columns, the last ones and those of all warps too",
        "missing-max",
    )


def _other_ignored(inputs: dict[str, np.ndarray], setting: Setting, other: int) -> Beyond:
    """A column's own number is ignored; the usual number names no column."""
    labels = np.where(inputs["labels"] == other, IGNORE_INDEX, inputs["labels"])
    sent = np.where(labels == IGNORE_INDEX, other, labels)
    labels[0], sent[0] = -1, IGNORE_INDEX
    return Beyond(
        f"ignore_index = {other}",
        {**inputs, "labels": labels},
        f"right where ignore_index is {IGNORE_INDEX}, and wrong here",
        "use the parameter ignore_index",
        scalars={"ignore_index": other},
        sent={"labels": sent.astype(inputs["labels"].dtype)},
    )
