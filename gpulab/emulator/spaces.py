"""Where the address windows lie in the one flat address space.

Global memory starts far above 2^32, so that a pointer cut to 32 bits is caught; addresses of
shared and local variables are offsets in their own window, and become generic by adding its base.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARED_BASE = 1 << 40
LOCAL_BASE = 1 << 41
GLOBAL_BASE = 0x7F << 40
WINDOW_BYTES = 1 << 32

WINDOWS = {"none": 0, "shared": 1, "local": 2, "global": 3}


def window(address: NDArray[Any]) -> NDArray[np.int8]:
    """Which window generic addresses (uint64) lie in, as a number of ``WINDOWS``."""
    a = address.view(np.uint64)
    found = np.zeros(a.shape, np.int8)
    found[a >= np.uint64(GLOBAL_BASE)] = WINDOWS["global"]
    for name, base in (("shared", SHARED_BASE), ("local", LOCAL_BASE)):
        inside = (a - np.uint64(base)) < np.uint64(WINDOW_BYTES)
        found[inside] = WINDOWS[name]
    return found
