"""Elements of 1 to 8 bytes in a memory that is kept as 32-bit words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulab.emulator.values import Array

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64


def gather(word: Callable[[Array], Array], address: Array, width: int, count: int) -> list[Array]:
    """``count`` elements of ``width`` bytes that follow ``address``.

    Args:
        word: reads the 32-bit words at byte addresses that are multiples of 4.
        address: int64, aligned to the access.
        width: 1, 2, 4 or 8.
        count: elements.

    Returns:
        Unsigned arrays of that width.
    """
    if width >= 4:
        words = [word(address + 4 * k) for k in range(width * count // 4)]
        if width == 4:
            return words
        pairs = zip(words[::2], words[1::2], strict=True)
        return [a.astype(U64) | (b.astype(U64) << U64(32)) for a, b in pairs]
    narrow = U8 if width == 1 else U16
    out = []
    for k in range(count):
        at = address + k * width
        shift = ((at & 3) << 3).astype(U32)
        out.append((word(at & ~3) >> shift).astype(narrow))
    return out


def pieces(values: list[Array], width: int) -> tuple[list[Array], int]:
    """Elements as a word memory takes them: one of 8 bytes as two of 4.

    Returns:
        The elements and their width, 1, 2 or 4.
    """
    if width != 8:
        return values, width
    low, half = U64(0xFFFFFFFF), U64(32)
    return [p for v in values for p in ((v & low).astype(U32), (v >> half).astype(U32))], 4
