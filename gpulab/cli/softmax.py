"""``gpulab softmax``."""

from __future__ import annotations

from gpulab.cli.rows import row_command

command = row_command(
    "softmax",
    "Softmax of rows: two passes or one.",
    """Run every softmax kernel on seeded rows, [100, 1000] and [-1000, -100] among them.

    The lessons leave out the maximum, sum in half, or never rescale, and must fail.
    """,
)
