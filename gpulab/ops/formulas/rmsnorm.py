"""y = cast(t / sqrt(mean(t^2) + eps)) weight; t = x, or x + residual."""

from __future__ import annotations

from gpulab.numerics.contract import Capability, VariantLike
from gpulab.ops import rmsnorm
from gpulab.ops.formulas import Line
from gpulab.ops.formulas.softmax import GROWING, SMALL, TIMED

__all__ = ["GROWING", "SMALL", "TIMED", "lines"]


def lines(variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """RMSNorm under the contract that the row names."""
    contract = rmsnorm.RMSNORM.contract(variant)
    stored, out = contract.format, contract.output
    if contract.name == rmsnorm.PLAIN_NORM:
        start: tuple[Line, ...] = (Line("t", "x", kind="exact"),)
    else:
        added = (
            Line("sum_", "x + residual"),
            Line("residual_out", f"cast(sum_, '{stored}')", stored, "cast"),
        )
        rounded = contract.name == rmsnorm.ROUNDED_SUM
        note = "the sum as it is stored" if rounded else "the float32 sum, not what is stored"
        kept = Line("t", "residual_out" if rounded else "sum_", kind="exact", note=note)
        start = (*added, kept)
    return (
        *start,
        Line("q", "sum(t * t)", kind="sum", note="where it overflows: again, of t 2^-80"),
        Line("v", "q / n"),
        Line("r", "1 / sqrt(v + eps)"),
        Line("h", f"cast(t * r, '{out}')", out, "cast", "the weight's format"),
        Line("y", f"cast(h * weight, '{out}')", out, "cast"),
    )
