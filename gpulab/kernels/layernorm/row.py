"""LayerNorm, both ways to the variance on shifted data: a row stays on the chip."""

from __future__ import annotations

from gpulab.kernels.row_kernel import NORMS, ROWS_COLS, RowKernel, declare, variants
from gpulab.kernels.row_tables import TWO_PARAMETERS
from gpulab.registry import Param, Variant

SOURCES = {
    "two-pass": "T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983",
    "welford": "B. Welford, Technometrics 4(3), 1962",
}
ENTRY = "layernorm_{way}<%s, {T}, {W}, {vec}, {hold}>"


def params(variant: Variant) -> tuple[Param, ...]:
    """``(x, weight, bias, y, rows, cols, eps)``; weight, bias and y in the output's format."""
    return (
        Param("x", "in", variant.format, ("rows", "cols")),
        Param("weight", "in", variant.output, ("cols",)),
        Param("bias", "in", variant.output, ("cols",)),
        Param("y", "out", variant.output, ("rows", "cols")),
        *ROWS_COLS,
        Param("eps", "scalar", "fp32"),
    )


declare(
    "layernorm",
    "two_pass",
    RowKernel("layernorm/{way}.cu", ENTRY % "TwoPass", TWO_PARAMETERS),
    idea="a first mean, then sums of what is left: nothing large cancels",
    order=10,
    rows=variants(NORMS, "two-pass"),
    params=params,
    source=SOURCES["two-pass"],
)

declare(
    "layernorm",
    "welford",
    RowKernel("layernorm/{way}.cu", ENTRY % "Welford", TWO_PARAMETERS),
    idea="mean and variance in one pass over shifted data; partial ones merge",
    order=20,
    rows=variants(NORMS, "welford"),
    params=params,
    source=SOURCES["welford"],
)
