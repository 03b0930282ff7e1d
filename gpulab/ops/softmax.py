"""y = e^(x - max) / sum(e^(x - max)) of each row of x (rows, cols).

A row without a finite maximum (all -inf, or a +inf in it) has no softmax: its results are NaN.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from gpulab.ops.rows_arith import EXACT, Arithmetic
from gpulab.ops.rows_contract import Floats, RowContract, Sums, Values
from gpulab.ops.rows_logsum import TINY, LogSum, LogSumOp, allowance, log_sum


class Softmax(LogSumOp):
    """Softmax over the columns, float32 inside, rounded once."""

    name: ClassVar[str] = "softmax"

    def from_parts(
        self, arithmetic: Arithmetic, contract: RowContract, parts: LogSum, values: Values
    ) -> dict[str, Floats]:
        """See ``LogSumOp``."""
        return {"y": arithmetic.r(parts.e * arithmetic.r(1.0 / parts.sum))}

    def bounds(self, contract: RowContract, values: Values, sums: Sums) -> dict[str, Floats]:
        """See ``RowFormula``."""
        parts = log_sum(EXACT, values["x"])
        p = parts.e / parts.sum
        relative = allowance(np.where(p > 0, parts.d, 0.0), p.shape[1], sums)
        return {"y": relative * p + TINY}

    def scales(self, contract: RowContract, values: Values) -> dict[str, Floats]:
        """See ``RowFormula``: the probability, not so small that flushing it would weigh."""
        p, row = self.ideal(contract, values, original=False)["y"], contract.output_row
        return {"y": np.maximum(np.nan_to_num(p), max(row.min_normal, TINY / row.unit_roundoff))}

    def masked_value(self, kept: Floats) -> Floats:
        """1 / kept."""
        return 1.0 / kept

    def explain(self, contract: RowContract, cols: int) -> str:
        """See ``RowFormula``."""
        return f"D = 2^-24 (3 |x - max| + 8 + 4 sqrt({cols})) y + 2^-126"


SOFTMAX = Softmax()
