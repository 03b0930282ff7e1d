"""``gpulab layernorm``."""

from __future__ import annotations

import click

from gpulab.cli.rows import row_command

command = row_command(
    "layernorm",
    "LayerNorm: both ways to the variance.",
    """Run every LayerNorm kernel on seeded rows, an offset of 1e4 among them, and judge each.

    The lesson takes the variance as E[x^2] - E[x]^2 and must fail.
    """,
    click.option(
        "--contract",
        type=click.Choice(["two-pass", "welford"]),
        help="Only kernels that declare this way to the variance.",
    ),
)
