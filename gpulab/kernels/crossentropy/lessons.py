"""Cross entropy that is wrong on purpose."""

from __future__ import annotations

from gpulab.kernels.crossentropy.row import params
from gpulab.kernels.row_lesson import Lesson, declare, enough_rows

declare(
    "crossentropy",
    0,
    Lesson(
        "log_of_softmax",
        "-log of a softmax",
        "a label whose probability underflows costs +inf, where max - x[label] + log(sum) is right",
        ("high", "low"),
        output="fp32",
        hidden=enough_rows,
    ),
    params,
)
