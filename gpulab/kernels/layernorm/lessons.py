"""LayerNorm that is wrong on purpose."""

from __future__ import annotations

from gpulab.kernels.layernorm.row import params
from gpulab.kernels.row_lesson import Lesson, declare, enough

declare(
    "layernorm",
    0,
    Lesson(
        "naive_variance",
        "the variance is E[x^2] - E[x]^2",
        "beside a large mean the difference is rounding error, or negative: NaN after the root",
        ("offset",),
        contract="two-pass",
        hidden=enough,
    ),
    params,
)
