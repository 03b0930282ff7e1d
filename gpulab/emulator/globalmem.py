"""Global memory: one arena of named allocations, guard zones between them, validity by byte.

Offsets are bytes from ``GLOBAL_BASE``. Every access is checked against the allocation it falls in;
between allocations lie guard zones filled with a pattern, verified when the neighbour is freed.
A byte is valid once the host or a kernel has written it; ``fill`` leaves it invalid (a poison).

The arena grows where it lies: its pages are zero until an allocation comes that far, which fills
what is new to it with the guard pattern. Nothing looks at bytes beyond ``reached``.
"""

from __future__ import annotations

import contextlib
import mmap
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.spaces import GLOBAL_BASE
from gpulab.errors import DeviceMissingError, FaultError, UsageError

GUARD_BYTES = 512
ALIGN = 256
FIRST_BYTES = 1 << 20
GUARD_BYTE = 0xFB
ARENA_LIMIT = 16 << 30

Array = NDArray[Any]


@dataclass
class Block:
    """One allocation: ``start`` and ``nbytes`` are arena offsets, ``valid`` = all bytes are."""

    start: int
    nbytes: int
    name: str
    all_valid: bool = False
    read_only: bool = False
    owner: str = field(default="user")

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.start + self.nbytes


def _pages(size: int) -> mmap.mmap:
    """Zeroed memory that can grow.

    Raises:
        MemoryError: there is not so much.
    """
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _grown(pages: mmap.mmap, size: int, used: int) -> mmap.mmap:
    """The same ``used`` bytes with zeros behind them, copied only while an array looks at them.

    Raises:
        MemoryError: there is not so much.
    """
    try:
        pages.resize(size)
    except (BufferError, SystemError):  # a view is alive, as of a traceback; or no mremap here
        more = _pages(size)
        with memoryview(pages) as old, memoryview(more) as new:
            new[:used] = old[:used]
        return more
    except OSError as error:
        raise MemoryError(f"{size} bytes") from error
    return pages


class GlobalMemory:
    """The arena; ``track`` turns uninitialised-read tracking on.

    Attributes:
        size: its bytes.
        reached: one past the last byte that an allocation or its guard zones ever had.
    """

    def __init__(self, track: bool = True) -> None:
        self.track = track
        self.size = self.reached = 0
        self._data, self._valid = _pages(FIRST_BYTES), _pages(FIRST_BYTES)
        self.blocks: list[Block] = []
        self.starts: list[int] = []
        self._look(FIRST_BYTES)

    def _look(self, size: int) -> None:
        """Arrays of the first ``size`` bytes of the pages."""
        self.size = size
        self.data: NDArray[np.uint8] = np.frombuffer(self._data, np.uint8, size)
        self.valid: NDArray[np.uint8] = np.frombuffer(self._valid, np.uint8, size)
        self.by_width = {w: self.data.view(f"u{w}") for w in (1, 2, 4, 8)}
        self.valid_by_width = {w: self.valid.view(f"u{w}") for w in (1, 2, 4, 8)}

    def _resize(self, size: int) -> None:
        if size > ARENA_LIMIT:
            raise DeviceMissingError(
                f"the emulated device holds at most {ARENA_LIMIT >> 30} GiB, needs {size} bytes"
            )
        before = self.size
        self.data = self.valid = np.empty(0, np.uint8)  # pages at which an array looks cannot move
        self.by_width, self.valid_by_width = {}, {}
        try:
            self._data = _grown(self._data, size, self.reached)
            self._valid = _grown(self._valid, size, self.reached)
        except MemoryError:
            self._look(before)
            raise
        self._look(size)

    def _reach(self, end: int) -> None:
        """Have the guard pattern in all bytes before ``end`` that nothing was in yet."""
        if end > self.size:
            self._resize(max(end, min(2 * self.size, self.size + (1 << 28))) + 7 & ~7)
        self.data[self.reached : end] = GUARD_BYTE
        self.reached = max(self.reached, end)

    def allocate(self, nbytes: int, name: str, *, owner: str = "user", align: int = ALIGN) -> Block:
        """A new block, uninitialised, first fit with guard zones on both sides."""
        if nbytes < 0:
            raise UsageError(f"cannot allocate {nbytes} bytes")
        align = max(align, ALIGN)
        room = max(nbytes, 1)
        place, at = GUARD_BYTES, 0
        while at < len(self.blocks):
            place = -(-place // align) * align
            if place + room + GUARD_BYTES <= self.blocks[at].start:
                break
            place = self.blocks[at].start + max(self.blocks[at].nbytes, 1) + GUARD_BYTES
            at += 1
        place = -(-place // align) * align
        self.valid[place : min(place + room, self.reached)] = 0  # beyond, nothing was ever valid
        self._reach(place + room + GUARD_BYTES)
        block = Block(place, nbytes, name or f"allocation at +{place:#x}", owner=owner)
        self.blocks.insert(at, block)
        self.starts.insert(at, place)
        return block

    def find(self, offset: int) -> Block | None:
        """The block that holds the byte at ``offset``."""
        at = bisect_right(self.starts, offset) - 1
        if at < 0:
            return None
        block = self.blocks[at]
        return block if offset < block.end else None

    def nearest(self, offset: int) -> Block | None:
        """The block closest to an offset that lies in none."""
        return min(
            self.blocks,
            key=lambda b: max(b.start - offset, offset - b.end + 1, 0),
            default=None,
        )

    def block_at(self, address: int) -> Block:
        """The block that starts at a device address.

        Raises:
            UsageError: none does.
        """
        block = self.find(address - GLOBAL_BASE)
        if block is None or block.start != address - GLOBAL_BASE:
            raise UsageError(f"{address:#x} is not the start of a live allocation")
        return block

    def inside(self, address: int, nbytes: int) -> Block:
        """The block that holds the bytes [address, address + nbytes).

        Raises:
            UsageError: no live allocation does.
        """
        offset = address - GLOBAL_BASE
        block = self.find(offset)
        if block is None and nbytes == 0:
            block = next((b for b in self.blocks if b.start == offset), None)
        if block is None or offset + nbytes > block.end:
            raise UsageError(f"[{address:#x}, +{nbytes}) is not inside a live allocation")
        return block

    def release(self, address: int) -> None:
        """Free a block after checking the guard zones beside it.

        Raises:
            FaultError: a guard zone was overwritten.
            UsageError: not a live allocation.
        """
        block = self.block_at(address)
        low = self.data[block.start - GUARD_BYTES : block.start]
        stop = block.start + max(block.nbytes, 1)
        high = self.data[stop : stop + GUARD_BYTES]
        for zone, what, base in ((low, "before", -GUARD_BYTES), (high, "after", block.nbytes)):
            bad = np.flatnonzero(zone != GUARD_BYTE)
            if bad.size:
                raise FaultError(
                    f"the guard zone {what} {block.name} was overwritten "
                    f"at offset {base + int(bad[0])}",
                    fault="guard_zone",
                    space="global",
                    allocation=block.name,
                    offset=base + int(bad[0]),
                )
        self.data[block.start : stop] = GUARD_BYTE
        at = self.starts.index(block.start)
        del self.starts[at], self.blocks[at]

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """Host write: the bytes become valid."""
        block = self.inside(address, data.size)
        offset = address - GLOBAL_BASE
        self.data[offset : offset + data.size] = data
        self.valid[offset : offset + data.size] = 0xFF
        if data.size == block.nbytes:
            block.all_valid = True

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Host read of bytes, valid or not (a copy)."""
        self.inside(address, nbytes)
        offset = address - GLOBAL_BASE
        return self.data[offset : offset + nbytes].copy()

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set bytes to a pattern that a kernel must not read: they become invalid."""
        block = self.inside(address, nbytes)
        offset = address - GLOBAL_BASE
        self.data[offset : offset + nbytes] = byte
        valid = self.valid[offset : offset + nbytes]
        if nbytes and valid.max():  # pages where nothing was ever valid stay the system's
            valid[:] = 0
        block.all_valid = False

    def settle(self) -> None:
        """After a launch: note which blocks are valid throughout, so that reads skip the check."""
        for block in self.blocks:
            if not block.all_valid:
                block.all_valid = bool(self.valid[block.start : block.end].all())
