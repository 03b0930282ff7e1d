"""What the row exercises share: shapes, and the words about submitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpulab.exercises.base import Shape

TIMED = {"rows": 4096, "cols": 4096}
LONGEST = Shape(
    {"rows": 1, "cols": 9227}, "a row more than twice as long as those timed", ("normal",)
)


def shapes(quick: Sequence[str], every: Sequence[str]) -> tuple[Shape, ...]:
    """Where a row kernel is judged.

    Args:
        quick: families of most shapes, the first of them everywhere.
        every: families of the shape with all probes.
    """

    def dims(rows: int, cols: int) -> dict[str, int]:
        return {"rows": rows, "cols": cols}

    usual = tuple(quick)
    return (
        Shape(dims(1, 1), "one element", usual),
        Shape(dims(13, 137), "a tail in every loop over the columns", tuple(every), "full"),
        Shape(dims(70, 6), "more rows than columns, which are a multiple of 2 only", usual[:2]),
        Shape(dims(16, 256), "whole tiles: the path without guards", usual[:2], counted=True),
        Shape(dims(5, 1), "one column in many rows", usual[:1]),
        Shape(dims(2, 328), "a multiple of 8 that is no whole tile", usual[:1]),
        Shape(dims(2, 1000), "columns between those of the others", usual[:1], once=True),
        Shape(dims(1, 2047), "columns between those and what is timed", usual[:1], once=True),
        Shape(dims(4200, 1), "more rows than are timed", usual[:1], once=True),
        Shape(
            dims(3, 1036), "a long row: more columns than threads, a multiple of 4, not of 8", usual
        ),
    )


def unforeseen(rng: np.random.Generator) -> Mapping[str, int]:
    """Dims of the case that nobody can know beforehand."""
    return {"rows": int(rng.integers(2, 25)), "cols": int(rng.integers(2, 401))}


SUBMIT = (
    "Submit one file: the kernel, and as claims in its header its error and gate fraction, its "
    "time at 4096 x 4096, and one sentence where its speed came from:\n"
    "// gpulab: claim max_abs_err=... gate_fraction=... time_ms=... "
    'speedup_from="..."'
)
