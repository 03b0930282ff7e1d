"""Errors of rounding that are recognised where each is too small to be told from an honest one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def correlation(one: Floats, other: Floats) -> float:
    """Of two sets of errors, over the elements where both are finite; 0 where one has none."""
    use = np.isfinite(one) & np.isfinite(other)
    one, other = one[use], other[use]
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / size if size > 0 else 0.0
