"""How the Numba row kernels share a row among threads and blocks.

A table lists shapes by the longest row that they hold. Those shapes came nearest to the bandwidth
of a copy of as many bytes at 4096, 8192, 32768, 131072 and 262144 columns of bf16 on an H200.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import arch
from gpulab.kernels import row_shape, row_tables
from gpulab.kernels.row_packs import PACK_BYTES, Packs, aligned, batch_of, packs_of
from gpulab.kernels.row_shape import Kept, Streamed
from gpulab.registry import Capability, Dims, Variant


@dataclass(frozen=True)
class Trail(Streamed):
    """Rows of which one is summed while the one before is written; whole packs, clusters.

    Args:
        group, shared, ring, blocks, cluster, fit: see ``Streamed``; the others do not apply.
    """

    @property
    def meeting_bytes(self) -> int:
        """Six places of a part a warp, and a barrier each."""
        parts = self.group // row_shape.WARP * self.cluster
        each = row_shape.BEHIND_BYTES * parts + row_shape.BARRIER_BYTES
        return aligned(row_shape.BEHIND_PLACES * each)

    def on(self, capability: Capability, row: Packs) -> Streamed | None:
        """None unless all its blocks fit and a row fills most of it with packs of 16 bytes."""
        here = super().on(capability, row)
        fills = row.kept_bytes == PACK_BYTES and 4 * row.count > 3 * self.packs
        return here if here is not None and here.blocks == self.blocks and fills else None


Shape = Kept | Streamed
Table = Sequence[Shape]

LONGEST: Table = (Streamed(512, 16, 4, blocks=1, cluster=8), Kept(512, 0, 24))
"""Beyond what was measured; without clusters, and without asynchronous copies."""

SHORT: Table = tuple(Kept(1 << i, 0, 4, resident=1024) for i in range(6, 10))
"""Four packs a thread: many rows an SM, which hide each other's barriers."""

APART: Table = tuple(Streamed(512, 8, 2, blocks=3, turns=False, cluster=1 << i) for i in range(3))
"""Three blocks of 64 KB an SM, each with one row or its part of one, drift apart."""

PLAIN: Table = (
    *SHORT,
    Streamed(512, 8, 3, blocks=2),
    *(Streamed(512, 8, 2, blocks=3, cluster=cluster) for cluster in (2, 4, 8)),
    *LONGEST,
)
"""Little is computed: the next rows' packs come while a row is written."""

ONLINE: Table = (
    *(Kept(64, 0, keep, resident=1536) for keep in (4, 8)),
    *(Kept(group, 0, 4, resident=1536) for group in (256, 512)),
    *APART[:2],
    Streamed(256, 8, 2, blocks=6, turns=False, cluster=8),
    Streamed(512, 8, 2, blocks=3, cluster=8),
    *LONGEST,
)
"""As much is computed as moved: it takes the most threads, of fewer registers each."""

MOMENTS: Table = (
    Trail(128, 16, 10, blocks=2, cluster=8),
    Trail(256, 16, 11, blocks=1, cluster=8),
    *SHORT,
    Streamed(512, 8, 6, blocks=1, holds=True),
    *APART,
    Streamed(256, 16, 4, blocks=3, turns=False, cluster=8),
    *LONGEST,
)
"""For LayerNorm, which reads two parameters a column besides: once where they stay in registers.
Much is computed in its longest rows: it goes on while they wait for each other's moments."""

TWO_ARRAYS: Table = (
    *SHORT,
    Kept(512, 0, 8, resident=512),
    Streamed(256, 8, 3, blocks=2, cluster=4),
    Streamed(256, 8, 2, blocks=3, cluster=8),
    Streamed(512, 8, 3, blocks=1, cluster=8),
    Kept(512, 0, 12),
)
"""For kernels that keep the packs of both addends."""


@dataclass(frozen=True)
class Layout:
    """How a block takes a row.

    Args:
        vec: elements of a pack.
        threads: of a block, a power of two, whole warps.
        keep: packs of a row that a thread keeps in shared memory.
        ring: packs for which it has places there.
        cluster: blocks of a row.
        turns: a block takes row after row.
        behind: a row is summed while the one before is written.
        holds: a thread keeps the parameters of its columns in registers.
        fit: a row has just the packs that are kept, fewer or more.
        arrays: rows read side by side (the residual's beside x).
        modern: the capability has asynchronous copies, and rounds to bf16 by twos.
        blocks: that an SM should hold.
    """

    vec: int
    threads: int
    keep: int
    ring: int
    cluster: int
    turns: bool
    behind: bool
    holds: bool
    fit: row_shape.Fit
    arrays: int
    modern: bool
    blocks: int

    @property
    def step(self) -> int:
        """Threads of a row: from a thread's pack to its next."""
        return self.threads * self.cluster

    @property
    def parts(self) -> int:
        """Warps of a row."""
        return self.step // row_shape.WARP

    @property
    def batch(self) -> int:
        """Packs that are asked for, and taken, together."""
        return batch_of(self.keep)

    @property
    def batches(self) -> int:
        """Of the packs of a row that are kept."""
        return self.keep // self.batch


def chosen(
    table: Table, variant: Variant, capability: Capability, dims: Dims, arrays: int, kept: bool
) -> tuple[Layout, Shape, Packs]:
    """The layout of a row, the shape that it follows from, and the packs."""
    beside = (variant.output,) if kept else ()
    row = packs_of(dims["cols"], variant.format, beside, arrays)
    shape: Any = row_tables.shape(table if kept else row_tables.ONCE, row, capability)
    if not kept:
        shape = Kept(max(2 * row_shape.WARP, shape.group), 0, 0).on(capability, row)
    fit = shape.fit
    if isinstance(shape, Kept):
        fit = "kWhole" if row.count == shape.packs else fit
    batch = batch_of(shape.shared)
    card = arch.get(capability)
    blocks = min(shape.blocks, card.max_blocks_per_sm, card.max_threads_per_sm // shape.threads)
    layout = Layout(
        vec=row.elements,
        threads=shape.group,
        keep=shape.shared,
        ring=shape.ring * batch if isinstance(shape, Streamed) else shape.shared,
        cluster=shape.cluster,
        turns=shape.turns,
        behind=isinstance(shape, Trail),
        holds=isinstance(shape, Trail) or (isinstance(shape, Streamed) and shape.holds),
        fit=fit,
        arrays=arrays,
        modern=capability >= row_shape.ASYNC,
        blocks=blocks,
    )
    return layout, shape, row
