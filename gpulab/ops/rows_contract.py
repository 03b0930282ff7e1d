"""What a row kernel promises, and what each output of some rows must therefore be.

Row operations reduce along the columns of a (rows, cols) array: RMSNorm, LayerNorm, softmax,
log-softmax, cross entropy. All of them accumulate in float32; they differ in where values are
rounded, which a contract declares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import Format, get
from gpulab.numerics.contract import VariantLike

Floats = NDArray[np.float64]
Values = Mapping[str, Floats]
"""Inputs (or outputs) of some rows by parameter name, as float64."""

U = get("fp32").unit_roundoff
RANDOM_WALK = 4.0
"""Allowed multiple of sqrt(n) u for the relative error of a sum of n positive terms: roundings to
nearest are independent enough; five times what honest orders need."""

Sums = Literal["exact", "random", "alike"]
"""What the terms of a sum are like: no order of them rounds; roundings are independent; all terms
are equal, so that all roundings of a running sum may err the same way."""


def walk(sums: Sums, n: int) -> float:
    """Allowed relative error of a sum of ``n`` positive terms, in units of u."""
    return {"exact": 0.0, "random": RANDOM_WALK * math.sqrt(n), "alike": float(n)}[sums]


@dataclass(frozen=True)
class RowContract:
    """The arithmetic that a row kernel declares.

    Args:
        op: operation.
        format: storage format of x (and of the residual).
        output: storage format of y, and of weight and bias.
        name: of the rounding contract, where the operation has several.
        atomics: two runs may differ in the order of sums.
    """

    op: str
    format: str
    output: str
    name: str = ""
    atomics: bool = False

    @classmethod
    def of(
        cls, op: str, variant: VariantLike, default: str = "", atomics: bool = False
    ) -> RowContract:
        """The contract a variant is judged by; float32 sums are every operation's own.

        Args:
            op: operation.
            variant: the row.
            default: the contract of the operation for rows that name none.
            atomics: declared by the kernel.
        """
        name = variant.contract or default
        return cls(op, variant.format, variant.output, name, atomics)

    @cached_property
    def input_row(self) -> Format:
        """Row of the format of x."""
        return get(self.format)

    @cached_property
    def output_row(self) -> Format:
        """Row of the format of y, weight and bias."""
        return get(self.output)


Finish = Callable[[Floats, Any], Floats]
"""(values before the last declared roundings, index of the elements or ``...``) -> as stored."""


@dataclass(frozen=True)
class Answer:
    """What one output of some rows must be.

    A right result lies between ``finish(centre - d)`` and ``finish(centre + d)``: every declared
    rounding is applied to the ends of the interval.

    Args:
        name: the output's parameter.
        r1: float64 over the stored inputs.
        centre: the value before the last declared roundings.
        d: how far the declared arithmetic may be off there.
        scale: unit in which errors of elements are comparable.
        finish: the declared roundings, monotone element by element.
        row: format of the output.
    """

    name: str
    r1: Floats
    centre: Floats
    d: Floats
    scale: Floats
    finish: Finish
    row: Format

    @cached_property
    def _ideal(self) -> Floats:
        return self.finish(self.centre, ...)

    @cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        with np.errstate(invalid="ignore", over="ignore"):
            return self._sorted(self.centre, self.d, ...)

    def ideal(self) -> Floats:
        """The declared roundings of the exact value."""
        return self._ideal

    def ends(self) -> tuple[Floats, Floats]:
        """Smallest and largest right result."""
        return self._ends

    def _sorted(self, centre: Floats, d: Any, at: Any) -> tuple[Floats, Floats]:
        one, other = self.finish(centre - d, at), self.finish(centre + d, at)
        return np.minimum(one, other), np.maximum(one, other)

    def right(self, got: Floats) -> NDArray[np.bool_]:
        """Which elements are right; where R1 is not finite, kind and sign must match."""
        low, high = self.ends()
        return self._inside(got, low, high, self.r1)

    @staticmethod
    def _inside(got: Floats, low: Floats, high: Floats, r1: Floats) -> NDArray[np.bool_]:
        with np.errstate(invalid="ignore"):
            ok = (low <= got) & (got <= high)
        special = ~np.isfinite(r1)
        if special.any():
            ok[special] = ((got == r1) | (np.isnan(got) & np.isnan(r1)))[special]
        return ok

    def share(self, got: Floats, limit: float = 2.0**20) -> Floats:
        """Smallest share of D with which each element is right; 0 where none is needed.

        Found by bisection; ``limit`` is the largest that is told apart from infinity.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            exact = self.ideal()
            same = (got == exact) | (np.isnan(got) & np.isnan(exact))
            out = np.where(same, 0.0, np.inf)
            special = ~np.isfinite(self.r1)
            out[special & self._inside(got, exact, exact, self.r1)] = 0.0
            at = np.nonzero(~same & ~special & ~np.isnan(got) & (self.d > 0))
            mine, centre, d, r1 = got[at], self.centre[at], self.d[at], self.r1[at]
            high = np.ones(mine.shape)
            while True:
                ok = self._inside(mine, *self._sorted(centre, high * d, at), r1)
                if ok.all() or high.max(initial=0.0) >= limit:
                    break
                high = np.where(ok, high, 4.0 * high)
            high = np.where(ok, high, np.inf)
            low = np.zeros(mine.shape)
            top = np.where(ok, high, 1.0)
            for _ in range(12):
                middle = 0.5 * (low + top)
                inside = self._inside(mine, *self._sorted(centre, middle * d, at), r1)
                low, top = np.where(inside, low, middle), np.where(inside, middle, top)
        out[at] = np.where(ok, top, np.inf)
        return out
