"""Float64 panels of stored matrices while they are multiplied, made on all cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats.threads import spread

Stored = NDArray[Any]
Floats = NDArray[np.float64]

PANEL_BYTES = 32 << 20
"""Of one operand of one multiplication."""
_PANELS = 4
"""In memory at a time: wide rows are read faster than narrow ones."""
_GATHERED = 1 << 15


def split(k: int, count: int, panels: int | None = None) -> list[slice]:
    """Rows or columns whose float64 values are in memory at a time, whole panels of them."""
    step = (panels or _PANELS) * max(1, PANEL_BYTES // (8 * k))
    return [slice(first, min(count, first + step)) for first in range(0, count, step)]


def product(a: Floats, b: Floats) -> Floats:
    """``a @ b``, panel by panel: how much is in memory at a time does not change its bits."""
    out = np.empty((len(a), b.shape[1]))
    for rows in split(a.shape[1], len(a), 1):
        for cols in split(a.shape[1], b.shape[1], 1):
            out[rows, cols] = a[rows] @ b[:, cols]
    return out


def wide(values: Stored) -> Floats:
    """Float32 as float64."""
    return values.astype(np.float64)


def absolute(values: Floats) -> Floats:
    """Magnitudes, on all cores."""
    out = np.empty_like(values)
    spread(lambda part: np.abs(values[part], out=out[part]), len(values), values.size)
    return out


def gather(
    convert: Callable[[Stored], Floats], array: Stored, where: NDArray[np.int64], axis: int
) -> Floats:
    """``convert`` of some rows (axis 0) or columns by ascending index, on all cores."""
    first, count = int(where[0]), len(where)
    consecutive = int(where[-1]) - first + 1 == count
    run = slice(first, first + count)
    out = np.empty((count, array.shape[1]) if axis == 0 else (array.shape[0], count))
    few = max(1, _GATHERED // out.shape[1])  # rows at a time: temporaries stay in the cache

    def some(part: slice) -> None:
        for top in range(part.start, part.stop, few):
            rows = slice(top, min(part.stop, top + few))
            if axis == 0:
                taken = array[run][rows] if consecutive else array[where[rows]]
            else:
                taken = array[rows, run] if consecutive else np.take(array[rows], where, axis=1)
            out[rows] = convert(taken)

    spread(some, len(out), out.size)
    return out
