"""loss = lse - x[label] and lse = log(sum(e^x)) of each row of x (rows, cols).

``labels`` (rows,) are int32; ``loss`` and ``lse`` (rows,) are float32. A row whose label is
``ignore_index`` has loss 0; any other label outside 0 .. cols - 1 gives NaN and reads nothing. The
large parts cancel exactly before the logarithm is added:
loss = (max - x[label]) + log(sum(e^(x - max))).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.numerics.contract import VariantLike
from gpulab.ops.base import Dims, Effort
from gpulab.ops.rows_arith import EXACT, PLAIN, Arithmetic
from gpulab.ops.rows_contract import Floats, RowContract, Sums, U, Values
from gpulab.ops.rows_formula import Input, RowFormula
from gpulab.ops.rows_logsum import LogSum, LogSumOp, allowance, log_sum
from gpulab.ops.rows_mutants import RowMutant
from gpulab.ops.rows_probes import RowProbe, odd_labels

IGNORE_INDEX = -100
"""Label of the rows that do not count."""
IGNORED_EVERY = 5
"""One row in so many is ignored in the drawn labels (never the first)."""


class CrossEntropy(LogSumOp):
    """Cross entropy of logits and labels, without an output as wide as the logits.

    Args:
        given: labels that the rows take in turn; None: drawn ones.
    """

    def __init__(self, given: Sequence[int] | None = None) -> None:
        self.given = given

    def check_dims(self, dims: Dims) -> None:
        """See ``Op``; given labels must name columns, and have a row each."""
        super().check_dims(dims)
        if self.given is None:
            return
        if len(self.given) > dims["rows"]:
            raise UsageError(
                f"{len(self.given)} labels for {dims['rows']} rows",
                fix="give fewer labels, or more rows: they take them in turn",
            )
        self.check_labels(self.given, int(dims["cols"]))
        if all(label == IGNORE_INDEX for label in self.given):
            raise UsageError(
                f"every label is {IGNORE_INDEX}: no loss is left to judge",
                fix="give one row at least the number of a column",
            )

    name: ClassVar[str] = "crossentropy"

    def inputs(self, contract: RowContract) -> tuple[Input, ...]:
        """See ``RowFormula``."""
        return (Input("x", "rows", contract.format), Input("labels", "labels", "int32"))

    def outputs(self, contract: RowContract) -> tuple[str, ...]:
        """See ``RowFormula``."""
        return ("loss", "lse")

    def wide(self, name: str) -> bool:
        """Neither."""
        return False

    def scalars(self, variant: VariantLike, dims: Dims) -> Mapping[str, float]:
        """See ``RowFormula``."""
        return {"ignore_index": IGNORE_INDEX}

    def labels(self, rows: int, cols: int, seed: int) -> NDArray[np.int32]:
        """The given labels in turn; or seeded ones, one row in five ignored."""
        if self.given is not None:
            return np.resize(self.given, rows).astype(np.int32)
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, rows, 7])))
        found = rng.integers(0, cols, rows).astype(np.int32)
        found[IGNORED_EVERY - 1 :: IGNORED_EVERY] = IGNORE_INDEX
        return found

    @staticmethod
    def check_labels(labels: Iterable[int], cols: int) -> None:
        """Refuse labels that name no column.

        Raises:
            UsageError: names the first one.
        """
        for row, label in enumerate(labels):
            if not 0 <= label < cols and label != IGNORE_INDEX:
                raise UsageError(
                    f"label {label} of row {row} is outside 0 .. {cols - 1}",
                    fix=f"use {IGNORE_INDEX} for rows that do not count",
                )

    def from_parts(
        self, arithmetic: Arithmetic, contract: RowContract, parts: LogSum, values: Values
    ) -> dict[str, Floats]:
        """See ``LogSumOp``."""
        target = _target(values)
        gap = -arithmetic.difference(target, parts.largest)
        loss = arithmetic.r(gap + parts.log)[:, 0]
        loss[values["labels"] == IGNORE_INDEX] = 0.0
        return {"loss": loss, "lse": arithmetic.r(parts.largest + parts.log)[:, 0]}

    def bounds(self, contract: RowContract, values: Values, sums: Sums) -> dict[str, Floats]:
        """See ``RowFormula``."""
        parts = log_sum(EXACT, values["x"])
        found = self.from_parts(EXACT, contract, parts, values)
        cols = values["x"].shape[1]
        gap = (parts.largest - _target(values))[:, 0]
        ignored = values["labels"] == IGNORE_INDEX
        loss = allowance(np.where(ignored, 0.0, gap), cols, sums) + U * np.abs(found["loss"])
        loss[ignored] = 0.0
        lse = allowance(np.zeros_like(gap), cols, sums) + U * np.abs(found["lse"])
        return {"loss": loss, "lse": lse}

    def scales(self, contract: RowContract, values: Values) -> dict[str, Floats]:
        """See ``RowFormula``."""
        parts = log_sum(EXACT, values["x"])
        log = np.abs(parts.log[:, 0])
        gap = np.nan_to_num((parts.largest - _target(values))[:, 0])
        return {"loss": 1.0 + log + gap, "lse": 1.0 + log + np.abs(parts.largest[:, 0])}

    def probes(self, contract: RowContract, dims: Dims, effort: Effort) -> Sequence[RowProbe]:
        """See ``RowFormula``."""
        return (*super().probes(contract, dims, effort), odd_labels(IGNORE_INDEX))

    def mutants(self, contract: RowContract) -> Sequence[RowMutant]:
        """See ``RowFormula``."""
        return (
            *super().mutants(contract),
            RowMutant("next_label", "the label's neighbour", _next_label),
            RowMutant("not_ignored", "ignore_index is taken for a label", _not_ignored),
            RowMutant("log_of_softmax", "-log of a softmax in float32", _log_of_softmax, True),
        )

    def explain(self, contract: RowContract, cols: int) -> str:
        """See ``RowFormula``."""
        return f"D = 2^-24 (3 (max - x[label]) + 8 + 4 sqrt({cols}) + |loss|)"

    def flops(self, dims: Dims) -> int:
        """Subtract, exponential, add."""
        return 3 * int(dims["rows"]) * int(dims["cols"])


def _target(values: Values) -> Floats:
    """x[label] (rows, 1); NaN where the label names no column."""
    x, labels = values["x"], np.asarray(values["labels"]).astype(np.int64)
    valid = (labels >= 0) & (labels < x.shape[1])
    found = np.take_along_axis(x, np.where(valid, labels, 0)[:, None], axis=1)
    found[~valid] = np.nan
    return found


def _relabelled(
    op: RowFormula, contract: RowContract, values: Values, labels: Floats
) -> dict[str, Any]:
    return op.stored_values(EXACT, contract, {**values, "labels": labels})


def _next_label(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    labels, cols = np.asarray(values["labels"]), values["x"].shape[1]
    inside = (labels >= 0) & (labels < cols)
    return _relabelled(op, contract, values, np.where(inside, (labels + 1) % cols, labels))


def _not_ignored(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    """As an index from the end, which is what a negative one becomes elsewhere."""
    labels, cols = np.asarray(values["labels"]), values["x"].shape[1]
    return _relabelled(
        op, contract, values, np.where(labels == IGNORE_INDEX, IGNORE_INDEX % cols, labels)
    )


def _log_of_softmax(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    with np.errstate(all="ignore"):
        parts = log_sum(PLAIN, values["x"])
        probability = PLAIN.r(PLAIN.exp(PLAIN.r(_target(values) - parts.largest)) / parts.sum)
        loss = -PLAIN.r(np.log(probability))[:, 0]
        loss[values["labels"] == IGNORE_INDEX] = 0.0
        return op.finished(contract, values, {"loss": loss})


CROSSENTROPY = CrossEntropy()
