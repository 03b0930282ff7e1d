"""y = (x - max) - log(sum)."""

from __future__ import annotations

from gpulab.numerics.contract import Capability, VariantLike
from gpulab.ops.formulas import Line
from gpulab.ops.formulas.softmax import GROWING, SMALL, TIMED, log_sum

__all__ = ["GROWING", "SMALL", "TIMED", "lines"]


def lines(variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """Log-softmax."""
    out = variant.output
    return (*log_sum(), Line("l", "log(s)"), Line("y", f"cast(d - l, '{out}')", out, "cast"))
