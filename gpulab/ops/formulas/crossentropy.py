"""loss = (max - x[label]) + log(sum); lse = max + log(sum)."""

from __future__ import annotations

from gpulab.numerics.contract import Capability, VariantLike
from gpulab.ops.formulas import Line
from gpulab.ops.formulas.softmax import GROWING, SMALL, TIMED, log_sum

__all__ = ["GROWING", "SMALL", "TIMED", "lines"]


def lines(variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """Cross entropy; an ignored row costs nothing."""
    out = variant.output
    return (
        *log_sum(),
        Line("l", "log(s)"),
        Line("gap", "m - at(x, where(labels == ignore_index, 0, labels))"),
        Line("loss", f"cast(where(labels == ignore_index, 0.0, gap + l), '{out}')", out, "cast"),
        Line("lse", f"cast(m + l, '{out}')", out, "cast"),
    )
