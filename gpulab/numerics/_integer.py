"""Integer products: exact, accumulated in int32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.numerics._forms import DotModel


def integer(
    rules: DotModel, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]
) -> NDArray[np.uint32]:
    """Exact int32 accumulation, instruction by instruction; wraps unless ``.satfinite``."""
    left = a.view(np.int8 if rules.a_type == "s8" else np.uint8).astype(np.float64)
    right = b.view(np.int8 if rules.b_type == "s8" else np.uint8).astype(np.float64)
    value = c.view(np.int32).astype(np.int64)
    bounds = np.iinfo(np.int32)
    for start in range(0, left.shape[-1], rules.k):
        k = slice(start, start + rules.k)
        value = value + (left[:, :, k] @ right[:, k]).astype(np.int64)
        if rules.saturate:
            value = np.clip(value, bounds.min, bounds.max)
    return value.astype(np.int32).view(np.uint32)
