"""y = (x - mean) / sqrt(var + eps) weight + bias."""

from __future__ import annotations

from gpulab.numerics.contract import Capability, VariantLike
from gpulab.ops import layernorm
from gpulab.ops.formulas import Line
from gpulab.ops.formulas.softmax import GROWING, SMALL, TIMED

__all__ = ["GROWING", "SMALL", "TIMED", "lines"]


def lines(variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """LayerNorm, the way to the variance as the contract has it."""
    contract = layernorm.LAYERNORM.contract(variant)
    out = contract.output
    if contract.name == layernorm.WELFORD:
        moments = (
            Line("shift", "first(x)", kind="exact", note="kernels: a nearer one for each thread"),
            Line("d", "x - shift"),
            Line(
                "c",
                "sum(d) / n",
                kind="sum",
                note="every thread about a shift of its own; means merge",
            ),
            Line(
                "q",
                "sum((d - c) * (d - c))",
                kind="sum",
                note="about the mean of what a thread has, and what merging moves it",
            ),
            Line("v", "q / n"),
        )
    else:
        moments = (
            Line(
                "shift",
                "sum(x) / n",
                kind="sum",
                note="a first mean; where every thread has one of its own, they merge",
            ),
            Line("d", "x - shift"),
            Line("c", "sum(d) / n", kind="sum", note="what the first mean was off"),
            Line("q", "sum(d * d)", kind="sum"),
            Line("v", "q / n - c * c"),
        )
    near = "" if out == "fp32" else "long rows with |mean| r < 4, raw: x r - mean r, one operation"
    return (
        *moments,
        Line("r", "1 / sqrt(v + eps)"),
        Line("z", "(d - c) * r", note=near),
        Line("y", f"cast(z * weight + bias, '{out}')", out, "cast", "one fused multiply-add"),
    )
