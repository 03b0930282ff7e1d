"""CuPy arrays: passed to kernels, and compared on the card."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.runtime import tensor_map
from gpulab.runtime.device import DeviceArray


def address(array: DeviceArray) -> int:
    """Device address of the first element."""
    return int(array.handle.data.ptr)


def by_value(part: bytes) -> Any:
    """An object that CuPy passes by value as exactly these bytes."""
    if len(part) == tensor_map.BYTES:
        return np.frombuffer(part, f"V{len(part)}").copy()
    return np.frombuffer(part, f"u{len(part)}")[0]


def flat(array: DeviceArray) -> DeviceArray:
    """A one-dimensional view of all elements."""
    count = int(np.prod(array.shape, dtype=np.int64))
    return DeviceArray((count,), array.dtype, array.handle.reshape(-1), array.name)


def same(one: DeviceArray, other: DeviceArray) -> bool:
    """Whether both hold the same bits; compared in the widest words that sizes and addresses
    allow."""
    places = one.nbytes | address(one) | address(other)
    width = next(w for w in (8, 4, 2, 1) if places % w == 0)
    mine, theirs = (flat(x).handle.view(f"u{width}") for x in (one, other))
    return bool((mine == theirs).all())


def copy(to: DeviceArray, source: DeviceArray) -> None:
    """Copy an array of as many bytes, by the driver, on the current stream."""
    to.handle.data.copy_from_device_async(source.handle.data, source.nbytes)
