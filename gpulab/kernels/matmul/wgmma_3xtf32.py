"""Matmul of float32 on Hopper's tensor cores: three tf32 products by wgmma stand for one."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.kernels.matmul import simt, wgmma
from gpulab.kernels.matmul.mma import LARGEST_DIM
from gpulab.kernels.matmul.wgmma_tiles import BARRIER_BYTES, ROW_BYTES, WARPGROUP
from gpulab.numerics.split import TF32_SPLIT
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    Param,
    RawBuild,
    Step,
    TensorBox,
    Variant,
    register,
)

SOURCE = "matmul/wgmma_3xtf32.cu"
CONSUMERS = 2
"""Warpgroups that multiply, 64 rows each: registers for three sums an element allow no more."""
SLAB = ROW_BYTES // 4
"""Elements of k in a stage."""
DEPTH = 8
"""Terms of one instruction."""
EDGE, TURNERS = 64, 128
"""Of the tile in which B is turned; threads that turn it."""
PARTS = ("b_high", "b_low")


@dataclass(frozen=True)
class Tile:
    """A block's share of the work; the template arguments of ``SplitTile``.

    Args:
        block_m: rows of C a block.
        block_n: columns of C a block.
        stages: slabs in shared memory at a time.
        pair_m: 2: the blocks of a cluster lie below each other and share B.
        band: rows of tiles (of pairs) that are walked together, for L2.
        chained: instructions after which a sum of hi hi is added to a float32 sum.
    """

    block_m: int = 128
    block_n: int = 128
    stages: int = 4
    pair_m: int = 2
    band: int = 8
    chained: int = 2

    @property
    def cpp(self) -> str:
        """The C++ type."""
        sizes = (self.block_m, self.block_n, self.stages, self.pair_m, self.band, self.chained)
        return f"SplitTile<{', '.join(map(str, sizes))}>"

    @property
    def threads(self) -> int:
        """Threads a block: the consumers and one warpgroup that loads."""
        return (CONSUMERS + 1) * WARPGROUP

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block: A and both parts of B in every stage, and barriers."""
        stage = (self.block_m + len(PARTS) * self.block_n) * ROW_BYTES
        return self.stages * (stage + 2 * BARRIER_BYTES)

    def plan(self, dims: Dims) -> LaunchPlan:
        """One block a tile of C, as far as the card holds them at a time."""
        pairs = -(-dims["m"] // (self.block_m * self.pair_m)) * -(-dims["n"] // self.block_n)
        return LaunchPlan(
            (pairs * self.pair_m, 1, 1),
            (self.threads, 1, 1),
            self.shared_bytes,
            maps=(
                TensorBox("a", self.block_m, SLAB),
                *(TensorBox(part, self.block_n // self.pair_m, SLAB) for part in PARTS),
            ),
            persistent=True,
            cluster=self.pair_m,
        )


TILE = Tile()
"""Two are chained: on an H200 that is faster than one, while four gain next to nothing over two and
their sums of few positive numbers err more."""

VARIANT = Variant(
    "fp32",
    "fp32",
    "fp32",
    wgmma.HOPPER,
    ((wgmma.HOPPER, f"wgmma.m64n{TILE.block_n}k{DEPTH}.f32.tf32.tf32"),),
    contract=TF32_SPLIT,
    promotion=DEPTH * TILE.chained,
    note="operands are split into two tf32 parts; three of the four products are taken, "
    "within 2^-21 of the exact one (a subnormal operand: its last bit); every "
    f"{DEPTH * TILE.chained} terms are added to a float32 sum; B is turned and split by a launch "
    "of its own before, whose time is reported apart",
)


def own_params(variant: Variant) -> tuple[Param, ...]:
    """A and the parts of B as tensor maps, A and B once more as they are, C, and the dims."""
    a, b, c, *dims = simt.params(variant)
    parts = (Param(name, "in", variant.format, ("n", "k")) for name in PARTS)
    return (a, *parts, a, b, c, *dims)


def build(variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    """The one instantiation."""
    return RawBuild(SOURCE, f"matmul_wgmma_3xtf32<{TILE.cpp}>", feature_target=True)


def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """That of the tile."""
    return TILE.plan(dims)


def steps(variant: Variant, capability: Capability, dims: Dims) -> tuple[Step, ...]:
    """B (k, n) to its high and its low parts, (n, k) each."""
    tiles = -(-dims["k"] // EDGE) * -(-dims["n"] // EDGE)
    params = (
        Param("b", "in", variant.format, ("k", "n")),
        *(Param(name, "out", variant.format, ("n", "k")) for name in PARTS),
        Param("k", "dim", "int32"),
        Param("n", "dim", "int32"),
    )
    turn = RawBuild(SOURCE, f"split_transposed<{EDGE}, {TURNERS}>", feature_target=True)
    return (Step("turn and split b", params, turn, LaunchPlan((tiles, 1, 1), (TURNERS, 1, 1))),)


def supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    """TMA's rule for strides, the same for what is read by vectors, and 32-bit coordinates."""
    if max(dims[d] for d in "mnk") > LARGEST_DIM:
        return f"m, n and k <= {LARGEST_DIM} (coordinates are 32-bit)"
    for name, dim in (("A", "k"), ("B", "n")):
        if dims[dim] * 4 % wgmma.PITCH_BYTES:
            return (
                f"rows of {name} lie {dims[dim] * 4} bytes apart, it needs a multiple of "
                f"{wgmma.PITCH_BYTES}: use the mma_3xtf32 kernel, which takes any"
            )
    return None


register(
    KernelSpec(
        op="matmul",
        name="wgmma_3xtf32",
        backend="raw",
        idea="Hopper: float32 as three tf32 products by wgmma; A is split in registers, B before",
        order=51,
        variants=(VARIANT,),
        params=simt.params,
        own_params=own_params,
        build=build,
        plan=plan,
        supports=supports,
        steps=steps,
        only_capability=wgmma.HOPPER,
        source="CUTLASS, example 27 (3xTF32); H. Ootomo and R. Yokota, IJHPCA 36(4), 2022; "
        'PTX ISA, "wgmma"',
    )
)
