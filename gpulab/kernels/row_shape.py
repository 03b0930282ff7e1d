"""How the row kernels share a row among threads: one table by row length, and what follows.

A row is read in packs of up to 16 bytes. ``group`` threads share it; each keeps its first packs in
registers, the next in its own places of shared memory, and what is left is read again. Rows shared
by at most a warp lie several in a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpulab import arch
from gpulab.formats import storage_dtype
from gpulab.registry import Capability, Dims, LaunchPlan

PACK_BYTES = 16
WARP = 32
BLOCK = 128
"""Threads of a block that holds several rows."""
SHARED_STEP = 4
"""Packs in shared memory are a multiple of the loads that are in flight together."""
STATIC_BYTES = 2048
"""Left for the reductions' own shared memory."""

MAX_COLS = (1 << 28) - 1


@dataclass(frozen=True)
class Shape:
    """The share of a row that one thread has.

    Args:
        group: threads of a row, a power of two.
        regs: packs a thread keeps in registers.
        shared: packs it keeps in shared memory.
    """

    group: int
    regs: int
    shared: int = 0

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return BLOCK // self.group if self.group <= WARP else 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.group * self.rows

    def arguments(self) -> str:
        """The template arguments kGroup, kRows, kRegs, kShared."""
        return f"{self.group}, {self.rows}, {self.regs}, {self.shared}"


@dataclass(frozen=True)
class Step:
    """Rows of up to ``packs`` packs have this shape."""

    packs: int
    shape: Shape


Table = Sequence[Step]
"""Ascending; the last step serves all longer rows."""

PLAIN: Table = (
    # Measured with bf16 on an H200, share of the copy bandwidth: few threads with many packs each
    # leave room for many rows an SM, whose barriers then hide each other. Below 1024 packs a row
    # the groups shrink with it, eight packs a thread.
    *(Step(8 << i, Shape(1 << i, 8)) for i in range(8)),
    Step(2048, Shape(256, 8)),
    Step(4096, Shape(256, 16)),
    Step(8192, Shape(512, 16)),
    # One row an SM from here: as many threads as there are, the rest of the row in shared memory.
    Step(13312, Shape(1024, 5, 8)),
    Step(1 << 28, Shape(1024, 5, 12)),
)
"""For kernels that keep one pack for each pack they read."""

FEWER_REGISTERS: Table = (*PLAIN[:-2], Step(1 << 28, Shape(1024, 4, 12)))
"""The same where a thread of 1024 has no registers for a fifth pack."""

MOMENTS: Table = (
    *(Step(4 << i, Shape(1 << i, 4)) for i in range(7)),
    *(step for step in FEWER_REGISTERS if step.packs > 256),
)
"""For LayerNorm, whose running moments take registers too: four packs a thread in short rows."""

TWO_ARRAYS: Table = (
    *(Step(4 << i, Shape(1 << i, 4)) for i in range(9)),
    Step(4096, Shape(512, 4, 4)),
    Step(8192, Shape(1024, 2, 4)),
    Step(1 << 28, Shape(1024, 2, 4)),
)
"""For kernels that keep the packs of both addends."""

STREAMING: Table = (
    *(Step(16 << i, Shape(1 << i, 0)) for i in range(9)),
    Step(1 << 28, Shape(512, 0)),
)
"""For kernels that read a row once and keep nothing."""


def pack_elements(cols: int, *formats: str) -> int:
    """Elements of a pack: as many as 16 bytes hold of the widest type and divide the row."""
    widest = max(storage_dtype(f).itemsize for f in formats)
    count = PACK_BYTES // widest
    while cols % count:
        count //= 2
    return count


def held_bytes(elements: int, fmt: str) -> int:
    """Bytes of a kept pack: whole 32-bit words."""
    return max(4, elements * storage_dtype(fmt).itemsize)


def shape(table: Table, packs: int, kept_bytes: int, capability: Capability) -> Shape:
    """The shape of rows of ``packs`` packs, with no more shared memory than the card has.

    Args:
        table: which.
        packs: of a row.
        kept_bytes: what a thread keeps of one pack.
        capability: of the card.
    """
    chosen = next((s.shape for s in table if packs <= s.packs), table[-1].shape)
    room = arch.get(capability).shared_per_block_bytes - STATIC_BYTES
    fits = room // (chosen.threads * kept_bytes) // SHARED_STEP * SHARED_STEP
    return replace(chosen, shared=min(chosen.shared, fits))


def plan(chosen: Shape, dims: Dims, kept_bytes: int) -> LaunchPlan:
    """Blocks of whole rows along x."""
    return LaunchPlan(
        grid=(-(-dims["rows"] // chosen.rows), 1, 1),
        block=(chosen.threads, 1, 1),
        shared_bytes=chosen.shared * chosen.threads * kept_bytes,
    )


def too_wide(dims: Dims) -> str | None:
    """The kernels' own limit."""
    if dims["cols"] > MAX_COLS:
        return f"cols <= {MAX_COLS} (pack numbers are 32-bit), got {dims['cols']}"
    return None
