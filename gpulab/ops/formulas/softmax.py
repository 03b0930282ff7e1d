"""y = e^(x - max) / sum."""

from __future__ import annotations

from gpulab.numerics.contract import Capability, VariantLike
from gpulab.ops.formulas import Line

SMALL = {"rows": 8, "cols": 1024}
"""Dims at which the rows' operations are counted: whole packs, several blocks."""
GROWING = ("rows", "cols")
"""Dims that are doubled to see what grows."""
TIMED = {"rows": 8192, "cols": 4096}
"""Dims at which they are timed on a card."""
POWER = "2^(d log2 e): the product is rounded, then the power taken"


def log_sum() -> tuple[Line, ...]:
    """What softmax, log-softmax and cross entropy begin with."""
    return (
        Line("m", "max(x)", kind="exact"),
        Line("d", "x - m"),
        Line("e", "exp(d)", note=POWER),
        Line("s", "sum(e)", kind="sum"),
    )


def lines(variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """Softmax."""
    out = variant.output
    note = "" if out == "fp32" else "or, in the raw kernels, log2(s), taken from the power"
    return (
        *log_sum(),
        Line("r", "1 / s", note=note),
        Line("y", f"cast(e * r, '{out}')", out, "cast"),
    )
