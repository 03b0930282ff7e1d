"""layernorm: two sums a row, and a variance that must not cancel."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.rows_common import LONGEST, SUBMIT, TIMED, shapes, unforeseen
from gpulab.kernels.layernorm.row import params
from gpulab.ops.layernorm import WELFORD
from gpulab.registry import Variant

_VARIANT = Variant("fp32", "fp32", "fp32", contract=WELFORD)

EXERCISE = Exercise(
    name="layernorm",
    order=80,
    title="LayerNorm in float32: a mean and a variance, also where the mean is large",
    op="layernorm",
    variant=_VARIANT,
    params=params(_VARIANT),
    shapes=shapes(
        ("normal", "offset", "small", "large"),
        (
            "normal",
            "offset",
            "small",
            "large",
            "mixed",
            "equal",
            "ascending",
            "high",
            "low",
            "outlier",
            "zero",
            "constant",
        ),
    ),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "Normalise every row of x (rows, cols): y = (x - mean) rstd weight + bias with "
        "rstd = 1 / sqrt(variance + eps); the variance is the mean of (x - mean)^2. Everything is "
        "float32, weight and bias have an element a column, any rows, cols >= 1. Elements are "
        "below 1e6 in size.\n\n"
        "Rows may stand on a large offset, say 10000 with a deviation of 1. E[x^2] - E[x]^2 is "
        "then the difference of two large numbers and has no digits left, and even the mean of "
        "such a row is good to a few units in the fourth decimal only. Your errors must be those "
        "of a sum of x - x[0], the row's first element (Welford's method, or any other way that "
        "shifts first), however large the offset. A row without any variance gives the bias."
    ),
    submit=SUBMIT,
    hints=(
        "One block a row. Two sums must reach every thread: one for the mean, one for the "
        "variance.",
        "Subtract x[row * cols], the row's first element, from everything: that is exact where "
        "the offset is large, and changes neither deviation nor variance.",
        "Two passes: the mean of d = x - x[0], then the mean of (d - mean)^2. Then "
        "y = (d - mean) * rstd * weight + bias.",
        "One pass: sums of d and d^2 (now harmless), variance = E[d^2] - E[d]^2, at least 0; or "
        "Welford's update, whose partial results merge with the formula of Chan.",
        "float d = x[i] - first; sum += d; ... mean = total / cols; ... d = x[i] - first - mean; "
        "squares += d * d; ... rstd = rsqrtf(total / cols + eps).",
    ),
    entry="layernorm",
    unforeseen=unforeseen,
)
