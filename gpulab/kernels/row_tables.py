"""Which shape rows of which length take, by kind of kernel: measured with bf16 on an H200.

The shapes are those that came nearest to the bandwidth of a copy of 64 MB (of a read, where rows
are gone over once) at 4096, 8192, 32768, 131072 and 262144 columns of bf16, among those listed in
docs/results/row_shapes.jsonl and others. What is called behind there, with a ring,
summed one row behind another, and had no warp that merges.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.kernels.row_packs import Packs
from gpulab.kernels.row_shape import Ahead, Behind, Kept, Shape, Streamed
from gpulab.registry import Capability

Table = Sequence[Shape]
"""A row takes the first shape that the card can do and that holds it; the last takes any row."""

SHORT: Table = tuple(Kept(1 << i, 4) for i in range(9))
"""Four packs a thread: many rows an SM, which hide each other's barriers."""

PAIRS: Table = (
    *(Behind(256, 8, blocks=2, cluster=cluster) for cluster in (4, 8)),
    Behind(512, 8, blocks=1, cluster=8),
)
"""One meeting a row, behind other rows' work: three rows of 64 KB an SM, of which, where a cluster
holds the row, two blocks take turns in computing."""

BEHIND: Table = (Behind(256, 4, blocks=4, cluster=4), *PAIRS)
"""Where less is computed: shorter rows, too, by more blocks an SM."""

BEHIND_MOMENTS: Table = (
    Behind(512, 4, blocks=1, cluster=2),
    Behind(512, 4, blocks=1, cluster=4),
    Behind(512, 8, blocks=1, cluster=4),
    Behind(512, 8, blocks=1, cluster=8),
)
"""With two parameters a column in registers, which every SM reads: the fewer rows an SM holds parts
of, the less is read."""

BEHIND_TWO: Table = tuple(Behind(512, 4, blocks=1, cluster=2 << i) for i in range(4))
"""Two arrays, of 32 KB a block of each."""

PLAIN: Table = (
    *BEHIND,
    *(Kept(1 << i, 2) for i in range(9)),
    Kept(256, 4),
    Streamed(512, 8, 3, blocks=2),
    Streamed(512, 24, 6, blocks=1, regs=8),
    Streamed(1024, 12, 3, blocks=1, regs=4, cluster=2),
    Kept(512, 8),
    Kept(256, 16, resident=512),
    Kept(512, 16, resident=512),
    Kept(1024, 4, 12),
)
"""Little is computed: the next rows' packs come while a row is written."""

ALONE: Table = (
    *SHORT,
    Streamed(512, 8, 2, blocks=3, turns=False, holds=True),
    Kept(512, 8),
    Kept(512, 16, resident=512),
)
"""As much is computed as moved: three rows of 64 KB an SM, each a block's only one, drift apart."""

HALVES = Streamed(512, 12, 3, blocks=2, regs=4, cluster=2)
"""Half a row a block, two blocks an SM: as many threads a row as of 1024, in the same order."""

LOG_ONLINE: Table = (
    *BEHIND,
    *ALONE,
    Streamed(1024, 12, 3, blocks=1, regs=4),
    Streamed(1024, 12, 3, blocks=1, regs=4, cluster=2),
    Kept(1024, 4, 12),
)
"""One exponential an element: the last pass subtracts."""

ONLINE: Table = (
    *PAIRS,
    *ALONE,
    Streamed(512, 10, 7, blocks=2, regs=6, cluster=2),
    HALVES,
    Streamed(1024, 12, 3, blocks=1, regs=4, cluster=2),
    Kept(1024, 4, 12),
)
"""One exponential an element in the first pass, one in the last: 112 KB a block, so that more than
a row is on its way meanwhile."""

MAXIMUM_FIRST: Table = (
    *PAIRS,
    *ALONE,
    HALVES,
    Streamed(512, 8, 2, blocks=3, cluster=8),
    Kept(1024, 4, 12),
)
"""A row is waited for twice, for its maximum and its sum: by several blocks of an SM in turns."""

LOG_MAXIMUM_FIRST: Table = (BEHIND[0], *MAXIMUM_FIRST)
"""The last pass subtracts: there is less to hide a meeting behind."""

MOMENTS: Table = (
    Kept(512, 8),
    Kept(512, 16, resident=512),
    Kept(1024, 4, 12),
    Kept(1024, 4, 12, cluster=2),
    Kept(1024, 4, 12),
)

TWO_PARAMETERS: Table = (
    *BEHIND_MOMENTS,
    *SHORT,
    Streamed(512, 8, 6, blocks=1, holds=True),
    Streamed(512, 8, 3, blocks=2),
    *MOMENTS,
)
"""For LayerNorm, which reads two parameters a column besides: once where they stay in registers."""

TWO_ARRAYS: Table = (
    *(Kept(1 << i, 2) for i in range(11)),
    *BEHIND_TWO,
    Kept(1024, 4),
    Streamed(512, 8, 3, blocks=1, cluster=2),
    Streamed(512, 4, 3, blocks=1, cluster=8, holds=True, polls=True),
    Streamed(512, 8, 3, blocks=1, cluster=8, polls=True),
    Kept(512, 4, 4, resident=512),
    Kept(1024, 2, 4),
)
"""For kernels that keep the packs of both addends: the fewer packs a thread, the more threads."""

ONCE: Table = (*(Ahead(1 << i, 16 << i) for i in range(9)), Ahead(512, 16384), Ahead(1024, 0))
"""For kernels that go over a row once."""


def shape(table: Table, row: Packs, capability: Capability) -> Shape:
    """How the card takes such rows."""
    found = [here for each in table if (here := each.on(capability, row)) is not None]
    return next((each for each in found if row.count <= each.packs), found[-1])
