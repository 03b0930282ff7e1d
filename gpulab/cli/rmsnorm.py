"""``gpulab rmsnorm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpulab.cli.rows import row_command

if TYPE_CHECKING:
    from gpulab.ops.base import Op


def _with_eps(eps: float | None) -> Op:
    from gpulab.ops import rmsnorm

    return rmsnorm.RMSNORM if eps is None else rmsnorm.RmsNorm(eps)


command = row_command(
    "rmsnorm",
    "RMSNorm, with or without a fused residual addition.",
    """Run every RMSNorm kernel on seeded rows and judge each by its rounding contract.

    A fused residual addition either keeps the float32 sum (fp32-sum) or rounds it first
    (rounded-sum); a kernel declares one and the gate of one fails the other's kernel.
    """,
    click.option("--residual", is_flag=True, help="Only kernels that add a residual."),
    click.option(
        "--contract",
        type=click.Choice(["fp32-sum", "rounded-sum"]),
        help="Only kernels that declare this contract.",
    ),
    click.option("--eps", type=float, help="Added to the mean square (default 1e-6)."),
    configured=_with_eps,
)
