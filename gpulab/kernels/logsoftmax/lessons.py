"""Log-softmax that is wrong on purpose."""

from __future__ import annotations

from gpulab.kernels.logsoftmax.row import params
from gpulab.kernels.row_lesson import Lesson, declare, enough

declare(
    "logsoftmax",
    0,
    Lesson(
        "log_of_softmax",
        "the logarithm of a softmax",
        "a probability that underflows has the logarithm -inf; x - max - log(sum) is ordinary",
        ("high", "low"),
        hidden=enough,
    ),
    params,
)
