"""``gpulab logsoftmax``."""

from __future__ import annotations

from gpulab.cli.rows import row_command

command = row_command(
    "logsoftmax",
    "Log-softmax of rows.",
    """Run every log-softmax kernel on seeded rows and judge each against float64.

    The lesson takes the logarithm of a softmax, which underflows, and must fail.
    """,
)
