"""``gpulab rmsnorm``."""

from __future__ import annotations

import click

from gpulab.cli.rows import row_command

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
)
