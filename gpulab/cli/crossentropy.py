"""``gpulab crossentropy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpulab.cli.rows import row_command
from gpulab.errors import UsageError

if TYPE_CHECKING:
    from gpulab.ops.base import Op


def _with_labels(labels: str | None) -> Op:
    from gpulab.ops import crossentropy

    if labels is None:
        return crossentropy.CROSSENTROPY
    found = []
    for word in labels.split(","):
        try:
            found.append(int(word))
        except ValueError:
            raise UsageError(
                f"--labels: {word!r} is no whole number", fix="for example --labels 3,0,-100"
            ) from None
    return crossentropy.CrossEntropy(found)


command = row_command(
    "crossentropy",
    "Cross entropy through the log-sum-exp.",
    """Run every cross-entropy kernel on seeded rows and labels, some of them ignored.

    Labels outside the columns must give NaN and read nothing; the lesson takes the logarithm of a
    softmax and must fail.
    """,
    click.option(
        "--labels",
        metavar="L[,L]...",
        help="Labels that the rows take in turn, -100 for a row to ignore (default: drawn).",
    ),
    configured=_with_labels,
)
