"""Which rows and columns of a result are wrong, in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PERIODS = (2, 3, 4, 5, 7, 8, 16, 32, 64)
_MOSTLY = 0.8


@dataclass(frozen=True)
class Place:
    """Where the wrong elements lie.

    Args:
        slug: ``last-tile``, ``every-kth-row``, ``first-row``, ``everywhere``, ``scattered``.
        text: the same in words.
    """

    slug: str
    text: str


def ordinal(n: int) -> str:
    """2nd, 3rd, 4th, ..."""
    ending = "th" if 10 < n % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def locate(bad: NDArray[np.bool_]) -> Place:
    """Describe a mask of wrong elements (m, n) that has at least one."""
    share = float(bad.mean())
    if share > 0.95:
        return Place("everywhere", "nearly every element is wrong")
    rows, cols = bad.any(axis=1), bad.any(axis=0)
    for axis, name, wrong, size in (
        (0, "row", rows, bad.shape[0]),
        (1, "column", cols, bad.shape[1]),
    ):
        full = bad.mean(axis=1 - axis)
        if wrong.all() or full[wrong].mean() < _MOSTLY:
            continue
        which = np.nonzero(wrong)[0]
        if len(which) == 1 and which[0] == 0 and size > 1:
            return Place("first-row", f"only {name} 0 is wrong")
        if which[-1] == size - 1 and len(which) == size - which[0]:
            tile = _tile(int(which[0]))
            text = f"only the last {len(which)} of {size} {name}s are wrong (from {which[0]} on)"
            return Place("last-tile", f"{text}{tile}")
        steps = np.diff(which)
        if len(which) > 2 and (steps == steps[0]).all() and steps[0] > 1:
            first = int(which[0])
            text = f"every {ordinal(int(steps[0]))} {name} is wrong, from {first} on"
            return Place("every-kth-row", text)
        if (period := _period(np.asarray(wrong))) is not None:
            step, length = period
            return Place(
                "every-kth-row", f"{name}s are wrong in runs of {length}, every {step} {name}s"
            )
    corner = _corner(bad)
    if corner is not None:
        return corner
    at = np.argwhere(bad)[0]
    return Place("scattered", f"{share:.1%} of the elements are wrong, first at {[*map(int, at)]}")


def _tile(start: int) -> str:
    for tile in (128, 64, 32, 16, 8):
        if start and start % tile == 0:
            return f": what lies beyond the last whole tile of {tile}"
    return ""


def _period(wrong: NDArray[np.bool_]) -> tuple[int, int] | None:
    """(period, length of the run) where a mask repeats at least three times."""
    for period in _PERIODS:
        if len(wrong) < 3 * period:
            return None
        if (wrong[period:] == wrong[:-period]).all() and 0 < wrong[:period].sum() < period:
            return period, int(wrong[:period].sum())
    return None


def _corner(bad: NDArray[np.bool_]) -> Place | None:
    """Wrong in an L along the last rows and columns."""
    good_rows = np.nonzero(~bad[:, 0])[0] if not bad[0, 0] else np.array([], int)
    good_cols = np.nonzero(~bad[0])[0] if not bad[0, 0] else np.array([], int)
    if not len(good_rows) or not len(good_cols):
        return None
    rows, cols = int(good_rows[-1]) + 1, int(good_cols[-1]) + 1
    outside = np.ones(bad.shape, bool)
    outside[:rows, :cols] = False
    if (rows, cols) == bad.shape or bad[:rows, :cols].any() or bad[outside].mean() < _MOSTLY:
        return None
    return Place(
        "last-tile",
        f"only rows from {rows} on and columns from {cols} on are wrong{_tile(rows)}",
    )
