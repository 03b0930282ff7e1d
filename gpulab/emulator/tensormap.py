"""Tensor maps of the emulated device: what a tensor copy must know of a matrix, in 128 bytes.

What a driver writes into them is not public, and no kernel looks inside: this layout is our own.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

BYTES = 128
_MARK = b"emulated map\0\0\0\0"
_LAYOUT = struct.Struct("<16sQQ5I")
_SWIZZLED_BITS = {0: 0x00, 32: 0x10, 64: 0x30, 128: 0x70}


@dataclass(frozen=True)
class TensorMap:
    """A row-major matrix, rows one behind the other, and the box that one copy moves.

    Args:
        address: of element (0, 0).
        rows: of the matrix.
        columns: of the matrix.
        itemsize: bytes an element: 1, 2 or 4.
        box_rows: rows of a box.
        box_columns: columns of a box.
        swizzle: bytes that the swizzle spans in shared memory; 0: none.
    """

    address: int
    rows: int
    columns: int
    itemsize: int
    box_rows: int
    box_columns: int
    swizzle: int

    @property
    def row_bytes(self) -> int:
        """Of a box."""
        return self.box_columns * self.itemsize

    @property
    def nbytes(self) -> int:
        """Of a box; what lies outside the matrix counts."""
        return self.box_rows * self.row_bytes

    def encode(self) -> bytes:
        """The 128 bytes."""
        return _LAYOUT.pack(_MARK, *astuple(self)).ljust(BYTES, b"\0")

    @classmethod
    def decode(cls, raw: bytes) -> TensorMap | None:
        """What ``encode`` wrote; None where it did not."""
        mark, *fields = _LAYOUT.unpack(raw[: _LAYOUT.size])
        return cls(*fields) if mark == _MARK else None


def swizzle_bits(span: int) -> int:
    """Address bits that a swizzle of ``span`` bytes changes: each by the one three above it.

    Source: PTX ISA, "Tensor Swizzling Modes"; CUTLASS, ``Swizzle<B, 4, 3>``.
    """
    return _SWIZZLED_BITS[span]
