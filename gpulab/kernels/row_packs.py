"""What rows are read in: packs of up to 16 bytes, and where they lie in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.formats import storage_dtype

PACK_BYTES = 16
BATCH = 4
"""Loads that are in flight together; packs in shared memory are a multiple of them."""
PLACES_ALIGNED = 128
"""Where packs begin in shared memory: an asynchronous copy to half a sector takes longer."""


def batch_of(packs: int) -> int:
    """How many of ``packs`` in shared memory are asked for, and taken, together."""
    return next(b for b in (BATCH, 2, 1) if packs % b == 0)


@dataclass(frozen=True)
class Packs:
    """What a row is read in.

    Args:
        elements: of a pack.
        count: packs of a row.
        whole_words: a pack is 4 bytes or more.
        kept_bytes: what a thread keeps of one, in whole 32-bit words, of all arrays that are read
            side by side.
        arrays: how many those are.
    """

    elements: int
    count: int
    whole_words: bool
    kept_bytes: int
    arrays: int = 1


def packs_of(cols: int, fmt: str, beside: Sequence[str] = (), arrays: int = 1) -> Packs:
    """The packs of a row of ``cols`` elements; those of formats ``beside`` it are no larger."""
    elements = pack_elements(cols, fmt, *beside)
    size = elements * storage_dtype(fmt).itemsize
    return Packs(elements, cols // elements, size >= 4, arrays * max(4, size), arrays)


def pack_elements(cols: int, *formats: str) -> int:
    """Elements of a pack: as many as 16 bytes hold of the widest type and divide the row."""
    widest = max(storage_dtype(f).itemsize for f in formats)
    count = PACK_BYTES // widest
    while cols % count:
        count //= 2
    return count


def aligned(meetings: int) -> int:
    """Bytes of shared memory before the packs."""
    return -(-meetings // PLACES_ALIGNED) * PLACES_ALIGNED
