"""The fp32 matmul of CUDA cores whose tiles are brought by TMA: from sm_90 on.

It is ``blocked`` with the copies taken from its threads, and gives the same bits. Threads of
``blocked`` spend instructions and registers on addresses and copies; here the tensor memory
accelerator copies, threads hold up to twice as many results, and warps wait for bytes instead of
for each other. Both stay: ``blocked`` is the one that every card runs, and that takes every k and
n; TMA takes rows of whole 16 bytes.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import partial

from gpulab import arch
from gpulab.kernels.matmul.simt import params
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    RawBuild,
    TensorBox,
    Variant,
    register,
)

TMA_FROM: Capability = (9, 0)
H200_MULTIPROCESSORS = 132
"""What a choice assumes where no card is there to be asked."""
FLOATS_A_PITCH = 4
"""Rows that TMA copies begin on multiples of 16 bytes."""
MOST_STAGES = 4
LARGEST_DIM = 2**31 - 1024
"""Coordinates are 32-bit and may run one tile past the end."""
_BARRIER_BYTES = 8


@dataclass(frozen=True)
class Tile:
    """Template arguments of ``raw_kernels/matmul/blocked_tma.cu``, in its order.

    Args:
        block_m: rows of C a block computes.
        block_n: columns of C a block computes.
        block_k: terms of K a step brings to shared memory.
        warps_m: warps along M.
        warps_n: warps along N.
        thread_m: rows of C a thread holds.
        thread_n: columns of C a thread holds.
        stages: steps in shared memory at once.
        min_blocks: blocks an SM must be able to hold; bounds the registers.
    """

    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    thread_m: int
    thread_n: int
    stages: int
    min_blocks: int

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps_m * self.warps_n

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block: stages, and two barriers each."""
        stage = 4 * self.block_k * (self.block_m + self.block_n) + 2 * _BARRIER_BYTES
        return self.stages * stage

    def blocks(self, dims: Dims) -> int:
        """Tiles that cover C."""
        return -(-dims["m"] // self.block_m) * -(-dims["n"] // self.block_n)


TILES: dict[Tile, float] = {
    Tile(112, 128, 16, 2, 2, 7, 16, MOST_STAGES, 2): 72.2,
    Tile(128, 128, 16, 2, 2, 8, 16, MOST_STAGES, 2): 87.7,
}
"""Nanoseconds that a term of K takes on an H200, where every multiprocessor has one tile to do.

Measured at 8192. The lower tile is the faster one by the result; the higher one covers some
matrices in a round less.
"""


def tile(capability: Capability, dims: Dims, multiprocessors: int = H200_MULTIPROCESSORS) -> Tile:
    """The tile that takes least time, with as many stages as leave room for ``min_blocks``."""

    def time(candidate: Tile) -> float:
        return -(-candidate.blocks(dims) // multiprocessors) * TILES[candidate]

    best, card = min(TILES, key=time), arch.get(capability)
    room = card.shared_per_sm_bytes // best.min_blocks - card.shared_reserved_bytes
    return replace(best, stages=min(MOST_STAGES, room // (best.shared_bytes // best.stages)))


def _supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    for name, dim in (("A", "k"), ("B and C", "n")):
        if dims[dim] % FLOATS_A_PITCH:
            return (
                f"rows of {name} lie {4 * dims[dim]} bytes apart, TMA needs a multiple of "
                f"{4 * FLOATS_A_PITCH}: use the blocked kernel, which takes any"
            )
    if max(dims[d] for d in "mnk") > LARGEST_DIM:
        return f"m, n and k <= {LARGEST_DIM} (coordinates are 32-bit)"
    if tile(capability, dims).blocks(dims) >= 2**31:
        return "tiles of C must number < 2^31 (grid.x)"
    return None


def _build(
    variant: Variant,
    capability: Capability,
    dims: Dims,
    multiprocessors: int = H200_MULTIPROCESSORS,
) -> RawBuild:
    arguments = ", ".join(map(str, astuple(tile(capability, dims, multiprocessors))))
    return RawBuild("matmul/blocked_tma.cu", f"matmul_blocked_tma<{arguments}>")


def _plan(
    variant: Variant,
    capability: Capability,
    dims: Dims,
    multiprocessors: int = H200_MULTIPROCESSORS,
) -> LaunchPlan:
    """One block a tile of C, in one grid dimension: the kernel orders the tiles itself."""
    chosen = tile(capability, dims, multiprocessors)
    return LaunchPlan(
        grid=(chosen.blocks(dims), 1, 1),
        block=(chosen.threads, 1, 1),
        shared_bytes=chosen.shared_bytes,
        maps=(
            TensorBox("a", chosen.block_m, chosen.block_k, swizzle_bytes=4 * chosen.block_k),
            TensorBox("b", chosen.block_k, chosen.block_n, swizzle_bytes=0),
        ),
    )


def _for_card(spec: KernelSpec, multiprocessors: int) -> KernelSpec:
    """The declaration with tiles chosen for so many multiprocessors."""
    return replace(
        spec,
        build=partial(_build, multiprocessors=multiprocessors),
        plan=partial(_plan, multiprocessors=multiprocessors),
    )


register(
    KernelSpec(
        op="matmul",
        name="blocked_tma",
        backend="raw",
        idea="Hopper: blocked, its tiles brought by TMA; a thread's results fill its registers",
        order=31,
        variants=(Variant("fp32", "fp32", "fp32", TMA_FROM),),
        params=params,
        build=_build,
        plan=_plan,
        supports=_supports,
        for_card=_for_card,
        source='V. Volkov, "Better performance at lower occupancy", GTC 2010; PTX ISA, '
        '"Tensor copy", "mbarrier"',
    )
)
