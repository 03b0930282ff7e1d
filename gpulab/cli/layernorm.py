"""``gpulab layernorm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpulab.cli.rows import row_command

if TYPE_CHECKING:
    from gpulab.ops.base import Op


def _with_eps(eps: float | None) -> Op:
    from gpulab.ops import layernorm

    return layernorm.LAYERNORM if eps is None else layernorm.LayerNorm(eps)


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
    click.option("--eps", type=float, help="Added to the variance (default 1e-5)."),
    configured=_with_eps,
)
