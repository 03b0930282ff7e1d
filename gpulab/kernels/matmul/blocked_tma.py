"""The fp32 matmul of CUDA cores whose tiles are brought by TMA: for sm_90.

It is ``blocked`` with the copies taken from its threads, and gives the same bits. Threads of
``blocked`` spend instructions and registers on addresses and copies; here the tensor memory
accelerator copies, threads hold up to twice as many results, and warps wait for bytes instead of
for each other. Both stay: ``blocked`` is the one that every card runs, and that takes every k and
n; TMA takes rows of whole 16 bytes, and these tiles were made for one card.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import partial

from gpulab.kernels.matmul import blocked
from gpulab.kernels.matmul.mma import LARGEST_DIM
from gpulab.kernels.matmul.simt import params
from gpulab.kernels.matmul.wgmma import HOPPER, PITCH_BYTES
from gpulab.kernels.matmul.wgmma_tiles import (
    BARRIER_BYTES,
    H200_MULTIPROCESSORS,
    first_of_least,
)
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


@dataclass(frozen=True)
class Tile(blocked.Tile):
    """Template arguments of ``raw_kernels/matmul/blocked_tma.cu``, in its order."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block: stages without padding, and two barriers each."""
        stage = 4 * self.block_k * (self.block_m + self.block_n)
        return self.stages * (stage + 2 * BARRIER_BYTES)

    def halved(self, dims: Dims, multiprocessors: int) -> int:
        """Tiles that two blocks share: all of the last round, if their halves have a place each.

        Whole tiles in that round may come two to one multiprocessor while others idle.
        """
        places = multiprocessors * self.min_blocks
        left = self.blocks(dims) % places
        return left if 2 * left <= places else 0


TILES: dict[Tile, float] = {
    Tile(112, 128, 16, 2, 2, 7, 16, 4, 2): 143.5,
    Tile(128, 128, 16, 2, 2, 8, 16, 4, 2): 171.9,
}
"""Clocks in which a scheduler issues a term of K of one tile, by the machine code.

A card takes little more: docs/results/matmul_large.jsonl. The lower tile is the faster one by the
result; the higher one covers some matrices in a round less.
"""


def tile(dims: Dims, multiprocessors: int = H200_MULTIPROCESSORS) -> Tile:
    """The tile that takes least time on a card of so many multiprocessors; of those that cannot be
    told apart the lower one."""
    rounds = {t: -(-t.blocks(dims) // multiprocessors) for t in TILES}
    return first_of_least({t: rounds[t] * clocks for t, clocks in TILES.items()})


def _supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    for name, dim in (("A", "k"), ("B and C", "n")):
        if 4 * dims[dim] % PITCH_BYTES:
            return (
                f"rows of {name} lie {4 * dims[dim]} bytes apart, TMA needs a multiple of "
                f"{PITCH_BYTES}: use the blocked kernel, which takes any"
            )
    if max(dims[d] for d in "mnk") > LARGEST_DIM:
        return f"m, n and k <= {LARGEST_DIM} (coordinates are 32-bit)"
    if max(t.blocks(dims) for t in TILES) >= 2**30:
        return "tiles of C must number < 2^30 (grid.x counts two blocks for a halved one)"
    return None


def _build(
    variant: Variant,
    capability: Capability,
    dims: Dims,
    multiprocessors: int = H200_MULTIPROCESSORS,
) -> RawBuild:
    arguments = ", ".join(map(str, astuple(tile(dims, multiprocessors))))
    return RawBuild("matmul/blocked_tma.cu", f"matmul_blocked_tma<{arguments}>")


def _plan(
    variant: Variant,
    capability: Capability,
    dims: Dims,
    multiprocessors: int = H200_MULTIPROCESSORS,
) -> LaunchPlan:
    """One block a tile of C, two a halved one; the kernel orders the tiles itself."""
    chosen = tile(dims, multiprocessors)
    return LaunchPlan(
        grid=(chosen.blocks(dims) + chosen.halved(dims, multiprocessors), 1, 1),
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
        variants=(Variant("fp32", "fp32", "fp32", HOPPER),),
        params=params,
        build=_build,
        plan=_plan,
        supports=_supports,
        for_card=_for_card,
        only_capability=HOPPER,
        source='V. Volkov, "Better performance at lower occupancy", GTC 2010; PTX ISA, '
        '"Tensor copy", "mbarrier"',
    )
)
