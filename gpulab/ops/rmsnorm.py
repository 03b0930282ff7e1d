"""y = cast(s rstd) weight, rstd = 1 / sqrt(mean(s^2) + eps) of each row; weight (cols,).

Without a residual s = x. With one (rows, cols), s = x + residual, which is also stored, and the
rounding contract says which s is normalised:

- ``fp32-sum``: the float32 sum, for the variance and for the normalisation; only what is stored is
  rounded.
- ``rounded-sum``: the sum as it is stored.

The normalised value is rounded to the weight's type before the multiplication, whose product is
rounded again. Everything else is float32, so that the normalised value may be off by

    D = u (0.5 (5 + 4 sqrt(n)) + 6) relative

(the sum of squares enters under a root), and the stored sum not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gpulab.formats import get
from gpulab.numerics.contract import VariantLike
from gpulab.numerics.rounding import through
from gpulab.ops.base import Dims, Effort
from gpulab.ops.rows import RowOp, checked_eps
from gpulab.ops.rows_arith import EXACT, PLAIN, Arithmetic
from gpulab.ops.rows_contract import Finish, Floats, RowContract, Sums, U, Values, walk
from gpulab.ops.rows_formula import EVERYTHING, Input, RowFormula, rounding
from gpulab.ops.rows_mutants import RowMutant
from gpulab.ops.rows_probes import RowProbe, integers, non_finite

FP32_SUM = "fp32-sum"
ROUNDED_SUM = "rounded-sum"
PLAIN_NORM = "no-residual"

EPS = 1e-6
EPS_F32 = float(np.float32(EPS))
LARGE = 1e18
"""Squares beyond this are taken of a row times 2^-80, as the kernels do."""
SHRINK = 2.0**-80
SMALLEST = 2.0**-148


class RmsNorm(RowOp):
    """RMSNorm, with or without a fused residual addition.

    Args:
        eps: added to the mean square.

    Raises:
        UsageError: eps is not above 0 and at most 1.
    """

    name: ClassVar[str] = "rmsnorm"
    table: ClassVar[str] = "rmsnorm"
    quick: ClassVar[tuple[str, ...]] = ("normal", "mixed", "small", "large")
    default_contract: ClassVar[str] = PLAIN_NORM
    contracts: ClassVar[tuple[str, ...]] = (PLAIN_NORM, FP32_SUM, ROUNDED_SUM)

    def __init__(self, eps: float = EPS) -> None:
        self.eps = checked_eps(eps)
        self.eps_f32 = float(np.float32(self.eps))

    def inputs(self, contract: RowContract) -> tuple[Input, ...]:
        """See ``RowFormula``."""
        rows = [Input("x", "rows", contract.format)]
        if contract.name != PLAIN_NORM:
            rows.append(Input("residual", "rows", contract.format))
        return (*rows, Input("weight", "parameter", contract.output))

    def outputs(self, contract: RowContract) -> tuple[str, ...]:
        """See ``RowFormula``."""
        return ("y",) if contract.name == PLAIN_NORM else ("y", "residual_out")

    def output_format(self, name: str, contract: RowContract) -> str:
        """The residual keeps the format of x."""
        return contract.format if name == "residual_out" else contract.output

    def scalars(self, variant: VariantLike, dims: Dims) -> Mapping[str, float]:
        """See ``RowFormula``."""
        return {"eps": self.eps}

    def summed(self, contract: RowContract, values: Values) -> Floats:
        """What is normalised, with the roundings that the contract declares."""
        if contract.name == PLAIN_NORM:
            return values["x"]
        with np.errstate(over="ignore", invalid="ignore"):
            total = PLAIN.r(values["x"] + values["residual"])
            if contract.name == ROUNDED_SUM:
                total = through(get(contract.format), total)
        return total

    def compute(
        self,
        arithmetic: Arithmetic,
        contract: RowContract,
        values: Values,
        over: slice = EVERYTHING,
    ) -> dict[str, Floats]:
        """See ``RowFormula``."""
        found = {"y": normalised(arithmetic, self.summed(contract, values), over, self.eps_f32)}
        if contract.name != PLAIN_NORM:
            found["residual_out"] = values["x"] + values["residual"]
        return found

    def finish(self, name: str, contract: RowContract, values: Values) -> Finish:
        """The cast before the weight and the one after it; the stored sum's two roundings."""
        if name == "residual_out":
            store = rounding(contract.format)
            return lambda found, at: store(PLAIN.r(found), at)
        row, shape = get(contract.output), values["x"].shape
        weight = np.broadcast_to(values["weight"], shape)

        def finish(found: Floats, at: Any) -> Floats:
            with np.errstate(all="ignore"):
                return through(row, through(row, found) * weight[at])

        return finish

    def ideal(self, contract: RowContract, values: Values, original: bool) -> dict[str, Floats]:
        """See ``RowFormula``."""
        if contract.name == PLAIN_NORM:
            return {"y": normalised(EXACT, values["x"], eps=self.eps_f32) * values["weight"]}
        plain = values["x"] + values["residual"]
        total = plain if original else self.summed(contract, values)
        y = normalised(EXACT, total, eps=self.eps_f32) * values["weight"]
        return {"y": y, "residual_out": plain}

    def bounds(self, contract: RowContract, values: Values, sums: Sums) -> dict[str, Floats]:
        """See ``RowFormula``."""
        centre = self.compute(EXACT, contract, values)
        relative = self._relative(values["x"].shape[1], sums)
        found = {"y": relative * np.abs(centre["y"]) + SMALLEST}
        if contract.name != PLAIN_NORM:
            found["residual_out"] = np.zeros_like(centre["residual_out"])
        return found

    @staticmethod
    def _relative(cols: int, sums: Sums) -> float:
        return U * (0.5 * (5.0 + walk(sums, cols)) + 6.0)

    def scales(self, contract: RowContract, values: Values) -> dict[str, Floats]:
        """See ``RowFormula``: the size of the result, at least the smallest normal number."""
        return {
            name: np.maximum(
                np.abs(np.nan_to_num(found)), get(self.output_format(name, contract)).min_normal
            )
            for name, found in self.ideal(contract, values, original=False).items()
        }

    def probes(self, contract: RowContract, dims: Dims, effort: Effort) -> Sequence[RowProbe]:
        """See ``RowFormula``."""
        found = [integers(False, "exact")]
        if effort == "full":
            found.append(non_finite(minus_infinity=False))
        return found

    def mutants(self, contract: RowContract) -> Sequence[RowMutant]:
        """See ``RowFormula``."""
        found = [
            RowMutant("weight_missing", "without the weight", _weight_missing),
            RowMutant("eps_missing", "without eps", _eps_missing, refused=_no_small),
            RowMutant("no_cast", "not rounded before the weight", _no_cast, True, _fp32_weight),
        ]
        if contract.name != PLAIN_NORM:
            found += [
                RowMutant("residual_missing", "normalises x alone", _residual_missing),
                RowMutant("other_sum", "the other contract's sum", _other_sum, True, _one_sum),
            ]
        return found

    def explain(self, contract: RowContract, cols: int) -> str:
        """See ``RowFormula``."""
        relative = self._relative(cols, "random")
        return (
            f"D = 2^-24 (0.5 (5 + 4 sqrt({cols})) + 6) = {relative:.4g} relative, before the cast "
            "to the weight's type; then cast, multiply, round"
        )

    def flops(self, dims: Dims) -> int:
        """Square and add, scale, weight."""
        return 4 * int(dims["rows"]) * int(dims["cols"])


def normalised(
    arithmetic: Arithmetic, s: Floats, over: slice = EVERYTHING, eps: float = EPS_F32
) -> Floats:
    """Each row of s over sqrt(mean(s^2) + eps)."""
    r = arithmetic.r
    with np.errstate(all="ignore"):
        seen = s[:, over]
        largest = np.abs(seen).max(axis=1, keepdims=True, initial=0.0)
        scale = np.where(largest > LARGE, SHRINK, 1.0)
        small = seen * scale
        mean = r(arithmetic.total(r(small * small)) / max(1, seen.shape[1]))
        rstd = r(1.0 / r(np.sqrt(r(mean + eps * scale * scale))))
        return r(r(s * scale) * rstd)


def _replaced(
    op: RowFormula, contract: RowContract, values: Values, y: Floats
) -> dict[str, Floats]:
    return op.finished(contract, values, {"y": y})


def _weight_missing(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    one = {**values, "weight": np.ones_like(values["weight"])}
    return {"y": op.stored_values(EXACT, contract, one)["y"]}


def _eps_missing(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    assert isinstance(op, RmsNorm)
    return _replaced(op, contract, values, normalised(EXACT, op.summed(contract, values), eps=0.0))


def _no_cast(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    found = op.compute(PLAIN, contract, values)["y"]
    with np.errstate(all="ignore"):
        return {"y": through(get(contract.output), PLAIN.r(found * values["weight"]))}


def _residual_missing(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    assert isinstance(op, RmsNorm)
    return _replaced(op, contract, values, normalised(EXACT, values["x"], eps=op.eps_f32))


def _other_sum(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    other = ROUNDED_SUM if contract.name == FP32_SUM else FP32_SUM
    turned = RowContract(contract.op, contract.format, contract.output, other)
    return {"y": op.stored_values(PLAIN, turned, values)["y"]}


def _no_small(contract: RowContract, shape: tuple[int, int]) -> str | None:
    if contract.input_row.bits < 16:
        return f"{contract.format} holds no x so small that eps matters"
    return None


def _fp32_weight(contract: RowContract, shape: tuple[int, int]) -> str | None:
    return "float32 weights need no cast" if contract.output_row.bits == 32 else None


def _one_sum(contract: RowContract, shape: tuple[int, int]) -> str | None:
    return "float32 stores the float32 sum" if contract.input_row.bits == 32 else None


RMSNORM = RmsNorm()
