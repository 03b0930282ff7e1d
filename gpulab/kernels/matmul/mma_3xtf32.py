"""Matmul of float32 on the tensor cores: three tf32 products stand for one of float32."""

from __future__ import annotations

from gpulab.kernels.matmul import mma
from gpulab.kernels.matmul.mma import Tile
from gpulab.kernels.matmul.simt import params
from gpulab.numerics.split import TF32_SPLIT
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    RawBuild,
    Variant,
    register,
)

LOWEST: Capability = (8, 0)
INSTRUCTION = "mma.sync.m16n8k8.f32.tf32.tf32.f32"
TERMS = 8
"""Of one instruction: its sum starts from zero and is added to a float32 sum."""

TILES: dict[Capability, Tile] = {
    (8, 0): Tile(128, 128, 64, 64, 32, stages=4),  # 64 KiB of 99 or more
    (9, 0): Tile(128, 128, 64, 64, 32, stages=6),  # 96 KiB
    (12, 0): Tile(64, 128, 64, 64, 32, stages=3),  # 36 KiB: two blocks an SM
}
"""By lowest capability. A thread keeps two sums an element and both parts of its fragments, which
leaves registers for a warp tile of 64 x 32 and one block an SM."""

VARIANT = Variant(
    "fp32",
    "fp32",
    "fp32",
    LOWEST,
    ((LOWEST, INSTRUCTION),),
    contract=TF32_SPLIT,
    promotion=TERMS,
    note="operands are split into two tf32 parts; three of the four products are taken, "
    "within 2^-21 of the exact one (a subnormal operand: its last bit); every eight terms are "
    "added to a float32 sum",
)


def tile(capability: Capability) -> Tile:
    """The tile of the nearest row at or below ``capability``."""
    return TILES[max(c for c in TILES if c <= capability)]


def build(variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    """The instantiation for these dims: 16-byte copies where every row starts aligned."""
    vector = "true" if mma.aligned(variant, dims) else "false"
    entry = f"matmul_mma_3xtf32<{tile(capability).cpp}, {vector}>"
    return RawBuild("matmul/mma_3xtf32.cu", entry)


def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """A block a tile of C."""
    return tile(capability).plan(dims)


register(
    KernelSpec(
        op="matmul",
        name="mma_3xtf32",
        backend="raw",
        idea="float32 on the tensor cores: values split in two tf32 parts, three products for one",
        order=45,
        variants=(VARIANT,),
        params=params,
        build=build,
        plan=plan,
        supports=mma.supports,
        source="CUTLASS, example 27 (3xTF32); H. Ootomo and R. Yokota, IJHPCA 36(4), 2022",
    )
)
