"""Log-softmax, two passes or one: a row stays on the chip."""

from __future__ import annotations

from gpulab.kernels.row_kernel import ROWS_COLS, SAME, RowKernel, declare, variants
from gpulab.kernels.row_tables import LOG_MAXIMUM_FIRST, LOG_ONLINE
from gpulab.registry import Param, Variant

ENTRY = "logsoftmax_{way}<%s, {T}, {W}, {vec}, {hold}>"
SOURCE = 'M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018'


def params(variant: Variant) -> tuple[Param, ...]:
    """``(x, y, rows, cols)``."""
    return (
        Param("x", "in", variant.format, ("rows", "cols")),
        Param("y", "out", variant.output, ("rows", "cols")),
        *ROWS_COLS,
    )


declare(
    "logsoftmax",
    "two_pass",
    RowKernel("logsoftmax/{way}.cu", ENTRY % "TwoPass", LOG_MAXIMUM_FIRST),
    idea="the maximum first, then the sum of exponentials relative to it",
    order=10,
    rows=variants(SAME),
    params=params,
    source=SOURCE,
)

declare(
    "logsoftmax",
    "online",
    RowKernel("logsoftmax/{way}.cu", ENTRY % "Online", LOG_ONLINE),
    idea="maximum and sum in one pass: the sum is rescaled when the maximum grows",
    order=20,
    rows=variants(SAME),
    params=params,
    source=SOURCE,
)
