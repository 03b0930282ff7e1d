"""y = (x - max) - log(sum(e^(x - max))) of each row of x (rows, cols).

The logarithm is formed directly, so that a probability that underflows still has one. A row without
a finite maximum (all -inf, or a +inf in it) gives NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gpulab.ops.base import Dims, Effort
from gpulab.ops.rows_arith import EXACT, PLAIN, Arithmetic
from gpulab.ops.rows_contract import Floats, RowContract, Sums, U, Values
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_logsum import LogSum, LogSumOp, allowance, log_sum
from gpulab.ops.rows_mutants import RowMutant
from gpulab.ops.rows_probes import RowProbe, two_terms


class LogSoftmax(LogSumOp):
    """Log-softmax over the columns, float32 inside, rounded once."""

    name: ClassVar[str] = "logsoftmax"

    def from_parts(
        self, arithmetic: Arithmetic, contract: RowContract, parts: LogSum, values: Values
    ) -> dict[str, Floats]:
        """See ``LogSumOp``: from x again, so that a row of -inf keeps its NaN."""
        d = arithmetic.difference(values["x"], parts.largest)
        return {"y": arithmetic.r(d - parts.log)}

    def bounds(self, contract: RowContract, values: Values, sums: Sums) -> dict[str, Floats]:
        """See ``RowFormula``."""
        parts = log_sum(EXACT, values["x"])
        y = parts.d - parts.log
        return {"y": allowance(parts.d, y.shape[1], sums) + U * np.abs(y)}

    def scales(self, contract: RowContract, values: Values) -> dict[str, Floats]:
        """See ``RowFormula``: what the two parts of the difference weigh."""
        parts = log_sum(EXACT, values["x"])
        return {"y": 1.0 + np.abs(parts.d) + np.abs(parts.log)}

    def hides_half_exp(self, contract: RowContract, shape: tuple[int, int]) -> str | None:
        """See ``LogSumOp``."""
        if contract.output_row.bits < 32:
            return f"terms err by 2^-11 each way, their sum by less: {contract.output} hides it"
        return None

    def probes(self, contract: RowContract, dims: Dims, effort: Effort) -> Sequence[RowProbe]:
        """See ``RowFormula``."""
        found = super().probes(contract, dims, effort)
        hidden = self.hides_half_exp(contract, (int(dims["rows"]), int(dims["cols"])))
        return (*found, *(() if hidden else (two_terms(),)))

    def mutants(self, contract: RowContract) -> Sequence[RowMutant]:
        """See ``RowFormula``."""
        log_of = RowMutant("log_of_softmax", "log of a softmax in float32", _log_of_softmax, True)
        return (*super().mutants(contract), log_of)

    def explain(self, contract: RowContract, cols: int) -> str:
        """See ``RowFormula``."""
        return f"D = 2^-24 (3 |x - max| + 8 + 4 sqrt({cols}) + |y|)"


def _log_of_softmax(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    with np.errstate(all="ignore"):
        parts = log_sum(PLAIN, values["x"])
        probability = PLAIN.r(parts.e * PLAIN.r(1.0 / parts.sum))
        return op.finished(contract, values, {"y": PLAIN.r(np.log(probability))})


LOGSOFTMAX = LogSoftmax()
