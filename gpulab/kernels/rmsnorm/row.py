"""RMSNorm, with and without a fused residual addition: a row stays on the chip."""

from __future__ import annotations

from gpulab.kernels.row_kernel import NORMS, ROWS_COLS, SAME, RowKernel, declare, variants
from gpulab.kernels.row_tables import PLAIN, TWO_ARRAYS
from gpulab.registry import Param, Variant

SOURCE = 'B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019'
EPS = Param("eps", "scalar", "fp32")

KEPT = variants(SAME, "fp32-sum")
ROUNDED = variants(SAME[1:], "rounded-sum")
"""fp32 stores its own sum: both contracts are one there."""


def params(variant: Variant) -> tuple[Param, ...]:
    """``(x, weight, y, rows, cols, eps)``; weight and y in the output's format."""
    return (
        Param("x", "in", variant.format, ("rows", "cols")),
        Param("weight", "in", variant.output, ("cols",)),
        Param("y", "out", variant.output, ("rows", "cols")),
        *ROWS_COLS,
        EPS,
    )


def residual_params(variant: Variant) -> tuple[Param, ...]:
    """``(x, residual, weight, y, residual_out, rows, cols, eps)``."""
    return (
        Param("x", "in", variant.format, ("rows", "cols")),
        Param("residual", "in", variant.format, ("rows", "cols")),
        Param("weight", "in", variant.output, ("cols",)),
        Param("y", "out", variant.output, ("rows", "cols")),
        Param("residual_out", "out", variant.format, ("rows", "cols")),
        *ROWS_COLS,
        EPS,
    )


declare(
    "rmsnorm",
    "row",
    RowKernel("rmsnorm/{way}.cu", "rmsnorm_{way}<{T}, {W}, {vec}, {hold}>", PLAIN),
    idea="the row is read once and stays on the chip while its squares are summed",
    order=10,
    rows=variants(NORMS),
    params=params,
    source=SOURCE,
)

declare(
    "rmsnorm",
    "residual",
    RowKernel(
        "rmsnorm/residual_{way}.cu",
        "rmsnorm_residual_{way}<SumKept, {T}, {vec}, {hold}>",
        TWO_ARRAYS,
        arrays=2,
    ),
    idea="x + residual in float32 for variance and normalisation; rounded only where it is stored",
    order=20,
    rows=KEPT,
    params=residual_params,
    source=SOURCE,
)

declare(
    "rmsnorm",
    "residual_rounded",
    RowKernel(
        "rmsnorm/residual_{way}.cu",
        "rmsnorm_residual_{way}<SumRounded, {T}, {vec}, {hold}>",
        TWO_ARRAYS,
        arrays=2,
    ),
    idea="x + residual rounded to storage before variance and normalisation: another contract",
    order=21,
    rows=ROUNDED,
    params=residual_params,
    source=SOURCE,
)
