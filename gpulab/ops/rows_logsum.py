"""What softmax, log-softmax and cross entropy share: maximum, exponentials, log of their sum.

With d = x - max, the declared arithmetic (float32; e^d as 2^(d log2 e); any order of the sum, one
pass or two) may be off by

    u (3 |d| + 8 + 4 sqrt(n))

relative to a probability, or absolutely in a logarithm, where u |y| is added: 3 |d| for the rounded
argument of the power, 4 sqrt(n) for the sum, 8 for everything that happens once.

A power below 2^-126 may be flushed to zero, as ex2.approx.ftz does: e^d, or the probability itself
where a kernel subtracts the logarithm of the sum before the power. A probability may thus be off by
2^-126 beside the relative bound. Right kernels use that up: where one element has the whole sum, a
result of 0 for e^d just below 2^-126 takes a share of D just below 1 (0.9998 has been seen), and
nothing of it is an error of the kernel's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpulab.ops.base import Dims, Effort
from gpulab.ops.rows import RowOp
from gpulab.ops.rows_arith import PLAIN, Arithmetic, Stepwise
from gpulab.ops.rows_contract import Finish, Floats, RowContract, Sums, U, Values, walk
from gpulab.ops.rows_formula import EVERYTHING, Input, RowFormula, rounding
from gpulab.ops.rows_mutants import RowMutant, computed
from gpulab.ops.rows_probes import RowProbe, masked, non_finite

TINY = 2.0**-126
"""Smallest power that is not flushed."""


@dataclass(frozen=True)
class LogSum:
    """Parts of a row's log-sum-exp.

    Args:
        largest: maximum (rows, 1).
        d: x - maximum (rows, cols); a maximum of -inf is taken as 0.
        e: e^d.
        sum: sum of e (rows, 1).
        log: its logarithm.
    """

    largest: Floats
    d: Floats
    e: Floats
    sum: Floats
    log: Floats


def log_sum(arithmetic: Arithmetic, x: Floats, over: slice = EVERYTHING) -> LogSum:
    """The parts over some of the columns (at least one)."""
    seen = x[:, over]
    with np.errstate(all="ignore"):
        largest = seen.max(axis=1, keepdims=True)
        d = arithmetic.difference(x, np.where(np.isneginf(largest), 0.0, largest))
        e = arithmetic.exp(d)
        at = np.nan_to_num(seen, nan=-np.inf).argmax(axis=1)[:, None]
        log = arithmetic.log_of_sum(e[:, over], at)
        return LogSum(largest, d, e, arithmetic.total(e[:, over]), log)


def allowance(d: Floats, cols: int, sums: Sums) -> Floats:
    """The bound u (3 |d| + 8 + 4 sqrt(n)); the last term as ``walk`` has it."""
    found: Floats = U * (3.0 * np.abs(d) + 8.0 + walk(sums, cols))
    return found


class LogSumOp(RowOp):
    """An operation on x through its log-sum-exp."""

    table: ClassVar[str] = "softmax"
    quick: ClassVar[tuple[str, ...]] = ("normal", "high", "low", "ascending")

    @abstractmethod
    def from_parts(
        self, arithmetic: Arithmetic, contract: RowContract, parts: LogSum, values: Values
    ) -> dict[str, Floats]:
        """Outputs before their last rounding, given the parts."""

    def compute(
        self,
        arithmetic: Arithmetic,
        contract: RowContract,
        values: Values,
        over: slice = EVERYTHING,
    ) -> dict[str, Floats]:
        """See ``RowFormula``."""
        parts = log_sum(arithmetic, values["x"], over)
        with np.errstate(all="ignore"):
            return self.from_parts(arithmetic, contract, parts, values)

    def inputs(self, contract: RowContract) -> tuple[Input, ...]:
        """See ``RowFormula``."""
        return (Input("x", "rows", contract.format),)

    def outputs(self, contract: RowContract) -> tuple[str, ...]:
        """See ``RowFormula``."""
        return ("y",)

    def finish(self, name: str, contract: RowContract, values: Values) -> Finish:
        """One rounding."""
        return rounding(self.output_format(name, contract))

    def probes(self, contract: RowContract, dims: Dims, effort: Effort) -> Sequence[RowProbe]:
        """See ``RowFormula``."""
        found = [masked(self, contract)]
        if effort == "full":
            found.append(non_finite(minus_infinity=True))
        return found

    def mutants(self, contract: RowContract) -> Sequence[RowMutant]:
        """See ``RowFormula``."""
        return (
            RowMutant("no_max", "e^x without the maximum", _no_max),
            RowMutant(
                "half_exp",
                "exponentials in half",
                computed(Stepwise(exps="fp16")),
                True,
                self.hides_half_exp,
            ),
            RowMutant(
                "rounded_difference",
                "x - max in bf16",
                computed(Stepwise(differences="bf16")),
                precision=True,
            ),
            RowMutant("no_rescale", "an online sum that is never rescaled", _no_rescale),
        )

    def hides_half_exp(self, contract: RowContract, shape: tuple[int, int]) -> str | None:
        """Why half exponentials cannot show in the stored result, or None."""
        return None

    def masked_value(self, kept: Floats) -> Floats:
        """The main output of a row of which ``kept`` elements are 0 and the others -inf."""
        return np.log(kept)

    def flops(self, dims: Dims) -> int:
        """Subtract, exponential, add, multiply."""
        return 4 * int(dims["rows"]) * int(dims["cols"])


def _no_max(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    assert isinstance(op, LogSumOp)
    with np.errstate(all="ignore"):
        e = PLAIN.exp(values["x"])
        total = PLAIN.total(e)
        parts = LogSum(np.zeros_like(total), values["x"], e, total, PLAIN.r(np.log(total)))
        return op.finished(contract, values, op.from_parts(PLAIN, contract, parts, values))


def _no_rescale(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    """Each term is taken relative to the maximum so far, and stays so."""
    assert isinstance(op, LogSumOp)
    with np.errstate(all="ignore"):
        running = np.maximum.accumulate(values["x"], axis=1)
        total = np.exp(values["x"] - running).sum(axis=1, keepdims=True)
        d = values["x"] - running[:, -1:]
        parts = LogSum(running[:, -1:], d, np.exp(d), total, np.log(total))
        return op.finished(contract, values, op.from_parts(PLAIN, contract, parts, values))
