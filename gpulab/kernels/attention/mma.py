"""Attention on the tensor cores by mma.sync: scores and probabilities never leave registers."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.formats import get
from gpulab.kernels.attention.problem import blocks, limits, params
from gpulab.numerics import tensorcore
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    RawBuild,
    Variant,
    register,
)


@dataclass(frozen=True)
class Tile:
    """A block's share of the work; the template arguments of ``Tile`` in attention/mma_copy.cuh.

    Args:
        warps: warps a block.
        row_tiles: tiles of 16 queries a warp.
        keys: keys a stage.
        stages: tiles of keys and values in shared memory at a time.
        group: heads taken together, for L2.
        blocks: blocks that an SM shall hold.
        asynchronous: cp.async (sm_80); else copies pass through registers.
    """

    warps: int
    row_tiles: int
    keys: int
    stages: int = 2
    group: int = 8
    blocks: int = 1
    asynchronous: bool = True

    @property
    def rows(self) -> int:
        """Queries a block."""
        return 16 * self.warps * self.row_tiles

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps

    def shared_bytes(self, head_dim: int) -> int:
        """Dynamic shared memory: rows padded to an odd number of 16-byte chunks."""
        pitch = 16 * (2 * -(-head_dim // 16) + 1)
        return (self.rows + 2 * self.stages * self.keys) * pitch

    @property
    def cpp(self) -> str:
        """The C++ type."""
        sizes = (self.warps, self.row_tiles, self.keys, self.stages, self.group, self.blocks)
        return f"Tile<{', '.join(map(str, sizes))}, {str(self.asynchronous).lower()}>"


_HUNDRED_KIB = {
    64: Tile(4, 2, 32, blocks=2),
    128: Tile(4, 2, 32),
    256: Tile(4, 1, 16),
}
TILES: dict[Capability, dict[int, Tile]] = {
    (7, 5): {
        64: Tile(4, 1, 64, asynchronous=False),
        128: Tile(4, 1, 32, asynchronous=False),
        192: Tile(4, 1, 16, asynchronous=False),
        256: Tile(3, 1, 16, asynchronous=False),
    },
    (8, 0): {
        64: Tile(4, 2, 64, blocks=2),
        128: Tile(4, 2, 32, blocks=2),
        256: Tile(8, 1, 32),
    },
    (8, 6): _HUNDRED_KIB,
    (9, 0): {
        64: Tile(4, 2, 48, blocks=3),
        128: Tile(4, 2, 64, group=16, blocks=2),
        256: Tile(8, 1, 64),
    },
    (10, 0): {
        64: Tile(4, 2, 48, blocks=3),
        128: Tile(4, 2, 32, group=16, blocks=2),
        256: Tile(8, 1, 64),
    },
    (12, 0): _HUNDRED_KIB,
}
"""By lowest capability, then by largest head dim. A warp's output is head_dim x 16 float32 a row
tile: above 128 there are registers for one row tile only."""

TILES_EXTRA: dict[tuple[Capability, int], Tile] = {
    ((9, 0), 128): Tile(4, 2, 48, group=16, blocks=2),
    ((10, 0), 64): Tile(4, 2, 48, blocks=2),
}
"""Where bias and mask need registers that the tile above does not leave."""

_NOTE = "P is rounded to {} after its sum is taken; sums are the tensor core's float32, which cuts"

VARIANTS = (
    Variant(
        "fp16",
        "fp32",
        "fp16",
        (7, 5),
        (
            ((7, 5), "mma.sync.m16n8k8.f32.f16.f16.f32"),
            ((8, 0), "mma.sync.m16n8k16.f32.f16.f16.f32"),
        ),
        note=_NOTE.format("fp16"),
    ),
    Variant(
        "bf16",
        "fp32",
        "bf16",
        (8, 0),
        (((8, 0), "mma.sync.m16n8k16.f32.bf16.bf16.f32"),),
        note=_NOTE.format("bf16"),
    ),
)


def tile(capability: Capability, head_dim: int, extra: bool = False) -> Tile:
    """The tile of the nearest row at or below ``capability`` for a head dim.

    Args:
        capability: of the target.
        head_dim: columns.
        extra: with bias or mask.
    """
    row = max(c for c in TILES if c <= capability)
    column = min((d for d in TILES[row] if d >= head_dim), default=max(TILES[row]))
    plain = TILES[row][column]
    return TILES_EXTRA.get((row, column), plain) if extra else plain


def has_extra(dims: Dims) -> bool:
    """Whether there is a bias or a mask."""
    return bool(dims["bias_planes"] or dims["mask_planes"])


def build(variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    """The instantiation for a head dim, with or without bias and mask."""
    depth = tensorcore.depth(variant.instruction(capability) or "")
    head_dim = dims["head_dim"]
    extra = str(has_extra(dims)).lower()
    operand, shape = get(variant.format).ptx, tile(capability, head_dim, has_extra(dims)).cpp
    entry = f"attention_mma<ptx::{operand}, {depth}, {shape}, {head_dim}, {extra}>"
    return RawBuild("attention/mma.cu", entry)


def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """One block a tile of queries and head, in the order that ``locate`` gives them."""
    t = tile(capability, dims["head_dim"], has_extra(dims))
    shared = t.shared_bytes(dims["head_dim"])
    return LaunchPlan((blocks(dims, t.rows), 1, 1), (t.threads, 1, 1), shared)


def supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    """The kernel's own limits."""
    return limits(variant, capability, dims, tile(capability, dims["head_dim"]).rows)


register(
    KernelSpec(
        op="attention",
        name="mma",
        backend="raw",
        idea="tensor cores by mma.sync; scores become the next product's operand in registers",
        order=40,
        variants=VARIANTS,
        params=params,
        build=build,
        plan=plan,
        supports=supports,
        source="Dao, arXiv 2307.08691; PTX ISA, mma",
    )
)
