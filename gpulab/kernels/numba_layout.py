"""How the Numba row kernels share a row among threads and blocks: measured with bf16 on an H200."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab import arch
from gpulab.kernels import row_shape, row_tables
from gpulab.registry import Capability, Dims, Variant

IN_FLIGHT = 4
"""Packs on their way at once."""
PACKS_OF_A_BLOCK = 4096
"""Where the blocks of a cluster share a row, if they need not keep more."""
MOST_BLOCKS = 8
"""Of a cluster, on every card that has them."""
THREADS_AN_SM = {False: 1280, True: 1024}
"""Resident ones, without and with a rest: what a thread has of the registers."""


@dataclass(frozen=True)
class Layout:
    """How a block takes a row.

    Args:
        vec: elements of a pack.
        threads: of a block, a power of two, whole warps.
        keep: packs a thread keeps in shared memory.
        rest: a thread has more packs than those.
        arrays: rows read side by side (the residual's beside x).
        kept_bytes: shared memory of one kept pack.
        modern: the capability has asynchronous copies, and rounds to bf16 by twos.
        resident: threads that an SM should hold.
        cluster: blocks of a row.
        whole: all rows have just the packs that are kept.
    """

    vec: int
    threads: int
    keep: int
    rest: bool
    arrays: int
    kept_bytes: int
    modern: bool
    resident: int
    cluster: int
    whole: bool

    @property
    def step(self) -> int:
        """Threads of a row: from a thread's pack to its next."""
        return self.threads * self.cluster

    @property
    def parts(self) -> int:
        """Warps of a row."""
        return self.step // row_shape.WARP

    @property
    def batches(self) -> int:
        """Groups of kept packs that are waited for."""
        return -(-self.keep // IN_FLIGHT)

    @property
    def bounds(self) -> tuple[int, int]:
        """Threads of a block and blocks of an SM."""
        return self.threads, max(1, self.resident // self.threads)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.keep * self.threads * self.kept_bytes


def layout(
    variant: Variant, capability: Capability, dims: Dims, arrays: int = 1, kept: bool = True
) -> Layout:
    """Threads and kept packs of a row: measured with bf16 on an H200.

    A thread has four packs of a short row, of two rows side by side, and otherwise eight; as long
    as a block can keep the row, as many as it takes. Beyond, a cluster's blocks share it, and the
    longest rows take all the shared memory there is. Of rows that are not kept it has sixteen.
    """
    beside = (variant.output,) if kept else ()
    row = row_shape.packs_of(dims["cols"], variant.format, beside, arrays)
    card, cluster, threads = arch.get(capability), 1, row_shape.WARP

    def keeps() -> int:
        room = card.shared_per_block_bytes - row_shape.static_bytes(threads, cluster)
        return room // (threads * row.kept_bytes) if kept else 0

    if kept:
        share = 4 if arrays > 1 or row.count <= 1024 else 8
        while threads < 1024 and row.count > threads * share:
            threads *= 2
        if row.count > threads * keeps() and capability >= row_shape.CLUSTERS:
            threads = PACKS_OF_A_BLOCK // share
            while cluster < MOST_BLOCKS and row.count > PACKS_OF_A_BLOCK * cluster:
                cluster *= 2
    else:
        threads = max(threads, row_tables.shape(row_tables.ONCE, row, capability).group)
    wanted = -(-row.count // (threads * cluster))
    keep = min(wanted, keeps())
    rest, modern = keep < wanted, capability >= row_shape.ASYNC
    held = min(card.max_threads_per_sm, card.max_blocks_per_sm * threads)
    return Layout(
        vec=row.elements,
        threads=threads,
        keep=keep,
        rest=rest,
        arrays=arrays,
        kept_bytes=row.kept_bytes,
        modern=modern,
        resident=min(THREADS_AN_SM[rest], held),
        cluster=cluster,
        whole=keep % IN_FLIGHT == 0 and row.count == threads * cluster * keep,
    )
