"""Tensor maps: what the tensor memory accelerator (TMA) wants to know of a matrix.

A map is 128 opaque bytes, encoded on the host by the driver, which a kernel takes by value as a
``const __grid_constant__`` parameter. It holds address, shape, row pitch, box and swizzle, so it is
encoded once for each array and kept.

Elements are described as unsigned integers of their width: copies move bits. What a load finds
outside of the matrix arrives as zeros, a store leaves it out.

Source: CUDA Driver API, "Tensor Map Object Management", ``cuTensorMapEncodeTiled``; the numbers are
those of ``CUtensorMapDataType``, ``CUtensorMapSwizzle``, ``CUtensorMapL2promotion`` in cuda.h.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

from gpulab.errors import DeviceMissingError, FaultError
from gpulab.registry import TensorBox
from gpulab.runtime import cuda_context
from gpulab.runtime.objects import DeviceArray

BYTES = 128
_ALIGNMENT = 64
_TYPES = {1: 0, 2: 1, 4: 2}  # bytes an element -> CU_TENSOR_MAP_DATA_TYPE_UINT8, _UINT16, _UINT32
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_NO_INTERLEAVE, _L2_128_BYTES, _ZEROS_OUTSIDE = 0, 2, 0
_DIMS = 2
_KEPT = 4096


def of_array(array: DeviceArray, *, box: TensorBox) -> bytes:
    """The map of a row-major matrix on the card; arguments were checked by ``check_maps``."""
    rows, columns = array.shape
    return encode(int(array.handle.data.ptr), rows, columns, array.dtype.itemsize, box)


@lru_cache(maxsize=_KEPT)
def encode(address: int, rows: int, columns: int, itemsize: int, box: TensorBox) -> bytes:
    """The 128 bytes of a map.

    Args:
        address: of element (0, 0), a multiple of 16.
        rows: of the matrix.
        columns: of the matrix; rows lie one behind the other.
        itemsize: bytes an element: 1, 2 or 4.
        box: what one copy moves.

    Raises:
        DeviceMissingError: no driver, or one that knows no tensor maps.
        FaultError: the driver refuses the arguments.
    """
    try:
        function = cuda_context.libcuda().cuTensorMapEncodeTiled
    except AttributeError:
        raise DeviceMissingError(
            "the NVIDIA driver knows no tensor maps", fix="update it to 525 or newer"
        ) from None
    memory = ctypes.create_string_buffer(BYTES + _ALIGNMENT)
    start = -ctypes.addressof(memory) % _ALIGNMENT
    status = function(
        ctypes.c_void_p(ctypes.addressof(memory) + start),
        ctypes.c_int(_TYPES[itemsize]),
        ctypes.c_uint32(_DIMS),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * _DIMS)(columns, rows),
        (ctypes.c_uint64 * (_DIMS - 1))(columns * itemsize),
        (ctypes.c_uint32 * _DIMS)(box.columns, box.rows),
        (ctypes.c_uint32 * _DIMS)(1, 1),
        ctypes.c_int(_NO_INTERLEAVE),
        ctypes.c_int(_SWIZZLES[box.swizzle_bytes]),
        ctypes.c_int(_L2_128_BYTES),
        ctypes.c_int(_ZEROS_OUTSIDE),
    )
    if status != 0:
        raise FaultError(
            f"cuTensorMapEncodeTiled refuses {rows} x {columns} elements of {itemsize} bytes at "
            f"{address:#x} in boxes of {box.rows} x {box.columns}: status {status}",
            fault="driver_refusal",
        )
    return memory.raw[start : start + BYTES]
