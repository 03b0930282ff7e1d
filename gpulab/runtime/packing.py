"""Kernel arguments as the exact bytes the device function reads.

One list entry for each ``.param`` of the PTX, in order. In the C ABI an array is its address. In
Numba's it is meminfo, parent, number of items, item size, data address, then the shape and the
strides in bytes: 5 + 2 * ndim parameters of 8 bytes.

Source: numba.cuda, ``dispatcher.py`` (how a launch lists an array's members).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gpulab.formats import encode
from gpulab.registry import Param
from gpulab.runtime.objects import DeviceArray


def pack(
    params: Sequence[Param],
    args: Sequence[Any],
    address: Callable[[DeviceArray], int],
    abi: Literal["c", "numba"] = "c",
    maps: Mapping[str, Callable[[DeviceArray], bytes]] | None = None,
) -> list[bytes]:
    """The bytes of every parameter; ``args`` were checked by ``check_arguments``.

    Args:
        params: the device function's parameter list.
        args: device arrays and numbers, in its order.
        address: the device address of an array.
        abi: how arrays are passed.
        maps: what encodes the arrays that are passed as tensor maps, by parameter name. An array
            that is named twice is its map first, then its address.
    """
    packed: list[bytes] = []
    encoders = dict(maps or {})
    for param, arg in zip(params, args, strict=True):
        if isinstance(arg, DeviceArray) and param.name in encoders:
            packed.append(encoders.pop(param.name)(arg))
        elif isinstance(arg, DeviceArray):
            where = address(arg)
            packed += [_u64(where)] if abi == "c" else _numba_array(arg, where)
        else:
            packed.append(scalar(param, arg))
    return packed


def scalar(param: Param, value: Any) -> bytes:
    """A number passed by value: a dim as int32, others as the codes of their format."""
    if param.role == "dim":
        return np.int32(value).tobytes()
    if param.format.startswith("int"):
        return bytes(np.array(value, param.dtype).tobytes())
    return encode(param.format, np.float64(value)).tobytes()


def _u64(value: int) -> bytes:
    return int(value).to_bytes(8, "little")


def _numba_array(array: DeviceArray, where: int) -> list[bytes]:
    itemsize = array.dtype.itemsize
    strides = [itemsize] * len(array.shape)
    for axis in range(len(array.shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * array.shape[axis + 1]
    items = array.nbytes // itemsize
    return [_u64(v) for v in (0, 0, items, itemsize, where, *array.shape, *strides)]
