"""Cross entropy through the log-sum-exp, in one pass over the logits."""

from __future__ import annotations

from gpulab.kernels.row_kernel import ROWS_COLS, RowKernel, declare, variants
from gpulab.kernels.row_tables import ONCE
from gpulab.registry import Param, Variant

FORMATS = (("fp32", "fp32"), ("fp16", "fp32"), ("bf16", "fp32"))
SOURCE = 'M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018'


def params(variant: Variant) -> tuple[Param, ...]:
    """``(x, labels, loss, lse, rows, cols, ignore_index)``; loss and lse are float32."""
    return (
        Param("x", "in", variant.format, ("rows", "cols")),
        Param("labels", "in", "int32", ("rows",)),
        Param("loss", "out", variant.output, ("rows",)),
        Param("lse", "out", variant.output, ("rows",)),
        *ROWS_COLS,
        Param("ignore_index", "scalar", "int32"),
    )


declare(
    "crossentropy",
    "online",
    RowKernel(
        "crossentropy/row.cu",
        "crossentropy_row<{T}, {vec}, {hold}>",
        ONCE,
        weights=False,
    ),
    idea="log-sum-exp in one pass; nothing as wide as the logits is written",
    order=10,
    rows=variants(FORMATS),
    params=params,
    source=SOURCE,
)
