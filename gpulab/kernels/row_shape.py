"""How the row kernels share a row among threads, and what follows from it for a launch.

A row is read in packs of up to 16 bytes. A group of threads of a block (of each of a cluster)
shares it. ``Kept``: each thread keeps its first packs in registers, the next in its own places of
shared memory, and what is left is read again. ``Streamed``: all packs wait in shared memory, those
of the next rows are on their way. ``Behind``: and two rows are summed while the one before them is
written. ``Ahead``: rows are gone over once, the next packs are on their way to registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gpulab import arch
from gpulab.kernels.row_packs import BATCH, PACK_BYTES, Packs, aligned, batch_of
from gpulab.registry import Capability, Dims, LaunchPlan

WARP = 32
BLOCK = 128
"""Threads of a block that holds several rows."""
MAX_THREADS = 1024
"""Of a block."""
PART_FLOATS = 4
"""What a warp hands on, each in two places: Welford's moments; of other rows less."""
BEHIND_BYTES = 4 * 4
"""What it hands on of a row that is summed behind another: LayerNorm's; of other rows less."""
BEHIND_PLACES = 6
"""Places where rows meet that are summed behind another."""
BARRIER_BYTES = 8
ASYNC: Capability = (8, 0)
"""From here a copy into shared memory needs no registers (cp.async, of whole words)."""
CLUSTERS: Capability = (9, 0)
"""From here several blocks may share a row."""
LARGEST_CLUSTER: dict[Capability, int] = {(9, 0): 16}
"""What more was seen to run: on an H200, whose driver calls it not portable."""

MAX_COLS = (1 << 28) - 1


def static_bytes(group: int, cluster: int) -> int:
    """Shared memory of the reductions over a row's threads."""
    return aligned(4 * 2 * PART_FLOATS * max(1, group // WARP) * cluster)


Fit = Literal["kWhole", "kWithin", "kBeyond"]
"""A row has just the packs that are kept of one; fewer; or more (``common/row.cuh``)."""


@dataclass(frozen=True)
class Group:
    """The threads of a block that share a row.

    Args:
        group: how many, a power of two.
    """

    group: int

    way = "row"
    """The source beside the others of its operation that takes rows in this way."""

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return BLOCK // self.group if self.group <= WARP else 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.group * self.rows


@dataclass(frozen=True)
class Kept(Group):
    """One thread's share of a row that a block reads as it comes to it.

    Args:
        group: see ``Group``; of a block.
        regs: packs a thread keeps in registers.
        shared: packs it keeps in shared memory.
        cluster: blocks of a row.
        resident: threads that an SM should hold, which limits the registers of each.
        fit: of the rows.
    """

    regs: int
    shared: int = 0
    cluster: int = 1
    resident: int = 1024
    fit: Fit = "kWithin"
    turns = False

    @property
    def blocks(self) -> int:
        """Of an SM."""
        return max(1, self.resident // self.threads)

    @property
    def packs(self) -> int:
        """The longest row that stays on the chip."""
        return self.group * (self.regs + self.shared) * self.cluster

    def shared_bytes(self, row: Packs) -> int:
        """Of a block."""
        return self.shared * self.threads * row.kept_bytes

    def on(self, capability: Capability, row: Packs) -> Kept | None:
        """With no more shared memory than the card has; None if a row needs clusters it lacks.

        Without branches between many packs, all of them would be unpacked at once, into more
        registers than there are.
        """
        if self.cluster > 1 and capability < CLUSTERS:
            return None
        room = arch.get(capability).shared_per_block_bytes - static_bytes(self.group, self.cluster)
        fits = room // (self.threads * row.kept_bytes) // BATCH * BATCH
        here = replace(self, shared=min(self.shared, fits))
        whole = row.count == here.packs and here.regs <= BATCH
        within = row.count <= here.packs
        return replace(here, fit="kWhole" if whole else "kWithin" if within else "kBeyond")

    def cpp(self) -> str:
        """The type in device code."""
        kept = f"{self.regs}, {self.shared}, {self.blocks}, {self.fit}"
        return f"Kept<{self.group}, {self.rows}, {kept}>"


@dataclass(frozen=True)
class Streamed(Group):
    """One thread's share of rows that follow each other through shared memory.

    Args:
        group: see ``Group``; of a block.
        shared: packs a thread has of the longest row in shared memory.
        ring: batches it has places for; those of a row at least.
        blocks: of an SM, of a card that has room for them.
        cluster: blocks of a row.
        regs: more packs of a thread, in registers.
        turns: a block takes row after row; otherwise a block a row, of which an SM holds several.
        holds: a thread keeps the parameters of its columns in registers.
        polls: blocks of a cluster poll for each other's results (one an SM).
        fit: of the rows.
    """

    shared: int
    ring: int
    blocks: int
    cluster: int = 1
    regs: int = 0
    turns: bool = True
    holds: bool = False
    polls: bool = False
    fit: Fit = "kWithin"

    @property
    def packs(self) -> int:
        """The longest row."""
        return self.group * (self.shared + self.regs) * self.cluster

    def shared_bytes(self, row: Packs) -> int:
        """Of a block."""
        return self.ring * batch_of(self.shared) * self.threads * row.kept_bytes

    @property
    def meeting_bytes(self) -> int:
        """Shared memory of a block where its warps meet."""
        return static_bytes(self.group, self.cluster)

    def on(self, capability: Capability, row: Packs) -> Streamed | None:
        """With as many blocks an SM as the card has room for; None if it has not for one."""
        if capability < (ASYNC if self.cluster == 1 else CLUSTERS) or not row.whole_words:
            return None
        card = arch.get(capability)
        each = self.shared_bytes(row) + self.meeting_bytes
        if each > card.shared_per_block_bytes or row.count > self.packs:
            return None
        fits = card.shared_per_sm_bytes // (each + card.shared_reserved_bytes)
        blocks = min(self.blocks, fits, card.max_threads_per_sm // self.threads)
        if blocks < 2 and not self.turns:  # nothing would be read while its one row is written
            return None
        return replace(self, blocks=blocks, fit="kWhole" if row.count == self.packs else "kWithin")

    def cpp(self) -> str:
        """The type in device code."""
        ring = f"{self.shared}, {self.ring}, {self.regs}, {self.blocks}, {self.fit}"
        holds = ", true" if self.holds else ", false" if self.polls else ""
        more = holds + (", true" if self.polls else "")
        return f"Streamed<{self.group}, {self.rows}, {ring}{more}>"


@dataclass(frozen=True)
class Behind(Group):
    """One thread's share of three rows: one is written, two are summed; whole packs, clusters.

    Args:
        group: see ``Group``; of a block, which has a warp more.
        shared: packs a thread has of the longest row, in shared memory.
        blocks: of an SM.
        cluster: blocks of a row; above ``arch.PORTABLE_CLUSTER`` on some cards only.
        fit: of the rows.
    """

    shared: int
    blocks: int
    cluster: int
    fit: Fit = "kWithin"

    way = "behind"
    ring = 3
    """Rows."""
    turns = True

    @property
    def threads(self) -> int:
        """Of a block: those of the row, and a warp that merges what they find."""
        return self.group + WARP

    @property
    def packs(self) -> int:
        """The longest row."""
        return self.group * self.shared * self.cluster

    def shared_bytes(self, row: Packs) -> int:
        """Of a block."""
        return self.ring * self.shared * self.group * row.kept_bytes

    @property
    def meeting_bytes(self) -> int:
        """Six places of parts (a warp, a block, the cluster) and barriers; a count a warp."""
        warps = self.threads // WARP
        each = BEHIND_BYTES * (warps + self.cluster) + 3 * BARRIER_BYTES
        return aligned(BEHIND_PLACES * each + 4 * warps)

    def on(self, capability: Capability, row: Packs) -> Behind | None:
        """None unless all its blocks fit and a row fills most of it with packs of 16 bytes."""
        if capability < CLUSTERS or row.count > self.packs or 4 * row.count <= 3 * self.packs:
            return None
        largest = LARGEST_CLUSTER.get(capability, arch.PORTABLE_CLUSTER)
        if self.cluster > largest or self.threads > MAX_THREADS:
            return None
        if row.kept_bytes != row.arrays * PACK_BYTES:
            return None
        card = arch.get(capability)
        each = self.shared_bytes(row) + self.meeting_bytes
        fits = card.shared_per_sm_bytes // (each + card.shared_reserved_bytes)
        threads = card.max_threads_per_sm // self.threads
        if each > card.shared_per_block_bytes or self.blocks > min(fits, threads):
            return None
        return replace(self, fit="kWhole" if row.count == self.packs else "kWithin")

    def cpp(self) -> str:
        """The type in device code."""
        return f"Behind<{self.group}, {self.shared}, {self.blocks}, {self.fit}>"


@dataclass(frozen=True)
class Ahead(Group):
    """One thread's share of rows that are gone over once: four packs are on their way at any time.

    Args:
        group: see ``Group``.
        packs: rows up to this length.
        resident: threads of an SM.
        fit: of the rows.
    """

    packs: int
    resident: int = 1024
    fit: Fit = "kWithin"
    cluster = 1
    turns = True

    @property
    def blocks(self) -> int:
        """Of an SM."""
        return max(1, self.resident // self.threads)

    def shared_bytes(self, row: Packs) -> int:
        """None: they are in registers."""
        return 0

    def on(self, capability: Capability, row: Packs) -> Ahead:
        """The same on every card."""
        whole = row.count % (2 * BATCH * self.group) == 0
        return replace(self, fit="kWhole" if whole else "kWithin")

    def cpp(self) -> str:
        """The type in device code."""
        return f"Ahead<{self.group}, {self.rows}, {BATCH}, {self.blocks}, {self.fit}>"


Shape = Kept | Streamed | Behind | Ahead


def plan(chosen: Shape, dims: Dims, row: Packs) -> LaunchPlan:
    """Blocks of whole rows along x."""
    return LaunchPlan(
        grid=(-(-dims["rows"] // chosen.rows) * chosen.cluster, 1, 1),
        block=(chosen.threads, 1, 1),
        shared_bytes=chosen.shared_bytes(row),
        persistent=chosen.turns,
        cluster=chosen.cluster,
        blocks_an_sm=chosen.blocks,
        equal_shares=True,
    )


def too_wide(dims: Dims) -> str | None:
    """The kernels' own limit."""
    if dims["cols"] > MAX_COLS:
        return f"cols <= {MAX_COLS} (pack numbers are 32-bit), got {dims['cols']}"
    return None
