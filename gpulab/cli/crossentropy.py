"""``gpulab crossentropy``."""

from __future__ import annotations

from gpulab.cli.rows import row_command

command = row_command(
    "crossentropy",
    "Cross entropy through the log-sum-exp.",
    """Run every cross-entropy kernel on seeded rows and labels, some of them ignored.

    Labels outside the columns must give NaN and read nothing; the lesson takes the logarithm of a
    softmax and must fail.
    """,
)
