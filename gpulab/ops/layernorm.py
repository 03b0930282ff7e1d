"""y = (x - mean) rstd weight + bias, rstd = 1 / sqrt(var + eps) of each row, var over n = cols.

Everything is float32 until the one rounding. Contracts name the way to the variance, both on
shifted data, so that nothing large cancels:

- ``two-pass``: a first mean m, then sums of x - m and (x - m)^2; the first corrects m. Of the row,
  or of what a thread has of it.
- ``welford``: one pass over x - x[0], running mean and sum of squares (or over x less the mean of
  what a thread reads first, which is off by no more than that).

With w = 4 sqrt(n) u, m1 = mean|x|, and e = (4 sqrt(n) + 2) u m1 the error of the first mean, the
two-pass form may be off by

    centred value: 2 u (|x - mean| + e) + (4 sqrt(n) + 1) u (mean|x - mean| + e)
    variance:      (4 sqrt(n) + 8) u (var + e^2)

and Welford's, with k = sqrt(var + (mean - x[0])^2), the rms of its shifted data, by

    centred value: 2 u (|x - mean| + |mean - x[0]|) + (4 sqrt(n) + 1) u k
    variance:      (4 sqrt(n) + 8) u (var + sqrt(var) k)

Source: T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983 (error of each form).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from gpulab.numerics.contract import VariantLike
from gpulab.ops.base import Dims, Effort
from gpulab.ops.rows import RowOp, checked_eps
from gpulab.ops.rows_arith import EXACT, PLAIN, Arithmetic
from gpulab.ops.rows_contract import Finish, Floats, RowContract, Sums, U, Values, walk
from gpulab.ops.rows_formula import EVERYTHING, Input, RowFormula, rounding
from gpulab.ops.rows_moments import Moments, naive, two_pass, welford
from gpulab.ops.rows_mutants import RowMutant
from gpulab.ops.rows_probes import RowProbe, integers, non_finite

TWO_PASS = "two-pass"
WELFORD = "welford"

EPS = 1e-5
EPS_F32 = float(np.float32(EPS))
SMALLEST = 2.0**-148


class LayerNorm(RowOp):
    """LayerNorm with weight and bias.

    Args:
        eps: added to the variance.

    Raises:
        UsageError: eps is not above 0 and at most 1.
    """

    name: ClassVar[str] = "layernorm"
    table: ClassVar[str] = "rmsnorm"
    quick: ClassVar[tuple[str, ...]] = ("normal", "offset", "small", "large")
    default_contract: ClassVar[str] = TWO_PASS
    contracts: ClassVar[tuple[str, ...]] = (TWO_PASS, WELFORD)

    def __init__(self, eps: float = EPS) -> None:
        self.eps = checked_eps(eps)
        self.eps_f32 = float(np.float32(self.eps))

    def inputs(self, contract: RowContract) -> tuple[Input, ...]:
        """See ``RowFormula``."""
        return (
            Input("x", "rows", contract.format),
            Input("weight", "parameter", contract.output),
            Input("bias", "parameter", contract.output),
        )

    def outputs(self, contract: RowContract) -> tuple[str, ...]:
        """See ``RowFormula``."""
        return ("y",)

    def scalars(self, variant: VariantLike, dims: Dims) -> Mapping[str, float]:
        """See ``RowFormula``."""
        return {"eps": self.eps}

    def compute(
        self,
        arithmetic: Arithmetic,
        contract: RowContract,
        values: Values,
        over: slice = EVERYTHING,
    ) -> dict[str, Floats]:
        """See ``RowFormula``."""
        form = welford if contract.name == WELFORD and arithmetic is PLAIN else two_pass
        moments = form(arithmetic, values["x"], over)
        return {"y": affine(arithmetic, values, moments, self.eps_f32)}

    def finish(self, name: str, contract: RowContract, values: Values) -> Finish:
        """One rounding."""
        return rounding(contract.output)

    def bounds(self, contract: RowContract, values: Values, sums: Sums) -> dict[str, Floats]:
        """See ``RowFormula``."""
        x = values["x"]
        n = walk(sums, x.shape[1])
        mean = x.mean(axis=1, keepdims=True)
        away = np.abs(x - mean)
        variance = np.square(away).mean(axis=1, keepdims=True)
        if contract.name == WELFORD:
            shift = np.abs(mean - x[:, :1])
            k = np.sqrt(variance + shift * shift)
            centred = 2 * U * (away + shift) + (n + 1) * U * k
            spread = (n + 8) * U * (variance + np.sqrt(variance) * k)
        else:
            first = (n + 2) * U * np.abs(x).mean(axis=1, keepdims=True)
            typical = away.mean(axis=1, keepdims=True) + first
            centred = 2 * U * (away + first) + (n + 1) * U * typical
            spread = (n + 8) * U * (variance + first * first)
        size = variance + self.eps_f32
        relative = 0.5 * spread / size + 4 * U
        weight = np.abs(values["weight"]) / np.sqrt(size)
        y = affine(EXACT, values, two_pass(EXACT, x), self.eps_f32)
        return {
            "y": weight * (centred * (1 + relative) + away * (relative + 2 * U))
            + U * np.abs(y)
            + SMALLEST
        }

    def scales(self, contract: RowContract, values: Values) -> dict[str, Floats]:
        """See ``RowFormula``: what the two terms of the sum weigh, and Welford's shifted data."""
        bias = np.abs(values["bias"])
        y = self.ideal(contract, values, original=False)["y"]
        found = np.abs(np.nan_to_num(y - values["bias"])) + bias
        if contract.name == WELFORD:  # a first element far from the others costs all of its row
            x = values["x"]
            shift = np.abs(x.mean(axis=1, keepdims=True) - x[:, :1])
            deviation = np.sqrt(x.var(axis=1, keepdims=True) + self.eps_f32)
            found = found + np.nan_to_num(np.abs(values["weight"]) * shift / deviation)
        return {"y": np.maximum(found, contract.output_row.min_normal)}

    def probes(self, contract: RowContract, dims: Dims, effort: Effort) -> Sequence[RowProbe]:
        """See ``RowFormula``; Welford's running means are no integers."""
        found = [integers(True, "exact" if contract.name == TWO_PASS else "random")]
        if effort == "full":
            found.append(non_finite(minus_infinity=False))
        return found

    def mutants(self, contract: RowContract) -> Sequence[RowMutant]:
        """See ``RowFormula``."""
        return (
            RowMutant("naive_variance", "E[x^2] - E[x]^2", _naive, True, _no_offset),
            RowMutant("eps_missing", "without eps", _eps_missing, False, _no_small),
            RowMutant("bessel", "variance over n - 1", _bessel, True, _long_rows),
            RowMutant("bias_missing", "without the bias", _bias_missing),
            RowMutant("mean_missing", "the mean is not subtracted", _mean_missing),
        )

    def explain(self, contract: RowContract, cols: int) -> str:
        """See ``RowFormula``."""
        form = "x - x[0]" if contract.name == WELFORD else "x - first mean"
        return (
            f"D = |weight| rstd (error of the mean + |x - mean| relative error of rstd), sums of "
            f"{form} within 4 sqrt({cols}) 2^-24"
        )

    def flops(self, dims: Dims) -> int:
        """Two sums, centring, square, scale, weight and bias."""
        return 8 * int(dims["rows"]) * int(dims["cols"])


def affine(arithmetic: Arithmetic, values: Values, moments: Moments, eps: float) -> Floats:
    """(x - mean) rstd weight + bias; 0 weight + bias where neither variance nor eps is left."""
    r = arithmetic.r
    with np.errstate(all="ignore"):
        spread = r(moments.variance + eps * moments.scale * moments.scale)
        rstd = np.where(spread == 0.0, 0.0, r(1.0 / r(np.sqrt(spread))))
        centred = r(r(r(values["x"] * moments.scale) - moments.shift) - moments.mean)
        return r(r(centred * rstd) * values["weight"] + values["bias"])


def _affine(op: RowFormula, arithmetic: Arithmetic, values: Values, moments: Moments) -> Floats:
    assert isinstance(op, LayerNorm)
    return affine(arithmetic, values, moments, op.eps_f32)


def _stored(op: RowFormula, contract: RowContract, values: Values, y: Floats) -> dict[str, Floats]:
    return op.finished(contract, values, {"y": y})


def _naive(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    return _stored(op, contract, values, _affine(op, PLAIN, values, naive(PLAIN, values["x"])))


def _eps_missing(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    moments = two_pass(EXACT, values["x"])
    return _stored(op, contract, values, affine(EXACT, values, moments, eps=0.0))


def _bessel(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    m, n = two_pass(PLAIN, values["x"]), values["x"].shape[1]
    wider = Moments(m.shift, m.mean, m.variance * n / (n - 1), m.scale)
    return _stored(op, contract, values, _affine(op, PLAIN, values, wider))


def _bias_missing(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    return op.stored_values(EXACT, contract, {**values, "bias": np.zeros_like(values["bias"])})


def _mean_missing(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    m = two_pass(EXACT, values["x"])
    uncentred = Moments(np.zeros_like(m.shift), np.zeros_like(m.mean), m.variance, m.scale)
    return _stored(op, contract, values, _affine(op, EXACT, values, uncentred))


def _no_small(contract: RowContract, shape: tuple[int, int]) -> str | None:
    if contract.input_row.bits < 16:
        return f"{contract.format} holds no x so small that eps matters"
    return None


def _no_offset(contract: RowContract, shape: tuple[int, int]) -> str | None:
    if contract.input_row.bits < 16:
        return f"{contract.format} holds no offset beside which float32 cancels"
    return _one_column(contract, shape)


def _long_rows(contract: RowContract, shape: tuple[int, int]) -> str | None:
    n = shape[1]
    # Welford's means have no inputs on which they are exact: what is near D does not show there.
    margin = 4.0 if contract.name == WELFORD else 1.0
    if n > 1 and 1.0 / (n - 1) <= margin * (walk("random", n) + 8) * U:
        return f"changes the variance by 1/{n - 1}, the declared sums may be off by as much"
    return _one_column(contract, shape)


def _one_column(contract: RowContract, shape: tuple[int, int]) -> str | None:
    return "one column has no variance" if shape[1] == 1 else None


LAYERNORM = LayerNorm()
