"""One formula, several arithmetics: float64, float32 step by step, and the mistakes of reductions.

The formulas of the row operations are written once over an ``Arithmetic``. ``EXACT`` gives the
reference; ``PLAIN`` gives what a kernel that keeps the contract in the plainest way computes
(float32, one rounding an operation, sums one term after the other, which is the worst honest
order); the others are mutants.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gpulab.formats import get
from gpulab.numerics.rounding import through

Floats = NDArray[np.float64]

LOG2_E = float(np.float32(math.log2(math.e)))
"""log2(e) as float32 holds it."""

_SUM_TYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}


class Arithmetic:
    """Float64: nothing is rounded that matters."""

    def r(self, values: Floats) -> Floats:
        """The result of one operation."""
        return values

    def total(self, values: Floats) -> Floats:
        """Sums along the last axis, which stays with length 1."""
        total: Floats = values.sum(axis=-1, keepdims=True)
        return total

    def difference(self, values: Floats, base: Floats) -> Floats:
        """The difference of values and a base."""
        with np.errstate(invalid="ignore"):
            return self.r(values - base)

    def exp(self, values: Floats) -> Floats:
        """e^values."""
        return np.exp(values)

    def log_of_sum(self, terms: Floats, at: Floats) -> Floats:
        """Logarithm of the sum of ``terms`` (rows, n); ``at`` (rows, 1) is where the largest is.

        Computed as log1p of the others where that one is 1, so that a sum barely above 1 keeps its
        logarithm.
        """
        rest = terms.copy()
        np.put_along_axis(rest, at.astype(np.int64), 0.0, axis=-1)
        first = np.take_along_axis(terms, at.astype(np.int64), axis=-1)
        log: Floats = np.log1p(self.total(rest) + (first - 1.0))
        return log


class Stepwise(Arithmetic):
    """Float32, one rounding an operation.

    Args:
        sums: format of the running sum, rounded after every term.
        exps: format that exponentials are rounded to.
        differences: format that x - max is rounded to.
    """

    def __init__(
        self, sums: str = "fp32", exps: str | None = None, differences: str | None = None
    ) -> None:
        self._sums, self._exps, self._differences = sums, exps, differences

    def r(self, values: Floats) -> Floats:
        """The result of one operation, as float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded: Floats = np.asarray(values, np.float64).astype(np.float32).astype(np.float64)
        return rounded

    def total(self, values: Floats) -> Floats:
        """One term after the other."""
        if values.shape[-1] == 0:
            return np.zeros((*values.shape[:-1], 1))
        with np.errstate(over="ignore", invalid="ignore"):
            terms = values.astype(np.float32).astype(_SUM_TYPES[self._sums])
            running = np.add.accumulate(terms, axis=-1)
        return np.asarray(running[..., -1:]).astype(np.float64)

    def difference(self, values: Floats, base: Floats) -> Floats:
        """The same, rounded to the format of differences."""
        found = super().difference(values, base)
        return found if self._differences is None else through(get(self._differences), found)

    def exp(self, values: Floats) -> Floats:
        """2^(values * log2 e): the product is rounded before the power is taken."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.r(np.exp2(self.r(values * LOG2_E)))
        return found if self._exps is None else through(get(self._exps), found)

    def log_of_sum(self, terms: Floats, at: Floats) -> Floats:
        """Sum, then logarithm."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.r(np.log(self.total(terms)))


EXACT = Arithmetic()
PLAIN = Stepwise()
