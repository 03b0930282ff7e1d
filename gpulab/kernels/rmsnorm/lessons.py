"""RMSNorm that is wrong on purpose."""

from __future__ import annotations

from gpulab.kernels.rmsnorm.row import params, residual_params
from gpulab.kernels.row_lesson import Lesson, declare, enough

declare(
    "rmsnorm",
    0,
    Lesson(
        "half_sum",
        "the sum of squares is kept in the storage format",
        "every square is rounded to the bits of the sum so far; a long sum stands still",
        ("normal", "mixed"),
        ("fp16", "bf16"),
        narrow_sum=True,
        hidden=enough,
    ),
    params,
)

declare(
    "rmsnorm",
    1,
    Lesson(
        "early_rounding",
        "the residual sum is rounded before it is normalised",
        "rounded-sum passed off as fp32-sum: the last place of one result in five changes",
        ("normal", "mixed"),
        ("fp16", "bf16"),
        contract="fp32-sum",
        hidden=enough,
        twin="plain_residual",
    ),
    residual_params,
)
