"""Arrays that hold some rows and stand for more: the rows repeat, from the first on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def repeated(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """The whole array (rows, ...) that an array with so many rows or fewer stands for."""
    if len(array) == rows:
        return array
    return np.take(array, np.arange(rows) % len(array), axis=0)
