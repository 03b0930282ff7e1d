"""Matmul on the tensor cores by mma.sync: one source, one row a number format and accumulator."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.formats import get, storage_dtype
from gpulab.kernels.matmul.simt import HALF_LESSON, params
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

CHUNK_BYTES = 16
"""The widest copy; rows whose pitch is a multiple of it need no narrower ones."""

LARGEST_DIM = 2**31 - 1024
"""Indices are 32-bit and may run one tile past the end."""


@dataclass(frozen=True)
class Tile:
    """A block's share of the work; the template arguments of ``Tile`` in matmul/mma_feed.cuh.

    Args:
        block_m: rows of C a block.
        block_n: columns of C a block.
        slab_bytes: bytes along k of one pipeline stage.
        warp_m: rows of C a warp.
        warp_n: columns of C a warp.
        stages: slabs in shared memory at a time.
        band: tile rows that are walked together, for L2.
        asynchronous: cp.async (sm_80); else slabs pass through registers.
    """

    block_m: int
    block_n: int
    slab_bytes: int
    warp_m: int
    warp_n: int
    stages: int
    band: int = 8
    asynchronous: bool = True

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * (self.block_m // self.warp_m) * (self.block_n // self.warp_n)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block."""
        return self.stages * (self.block_m + self.block_n) * self.slab_bytes

    def plan(self, dims: Dims) -> LaunchPlan:
        """One block a tile of C, in one row of blocks: the kernel maps them to tiles itself."""
        tiles = -(-dims["m"] // self.block_m) * -(-dims["n"] // self.block_n)
        return LaunchPlan((tiles, 1, 1), (self.threads, 1, 1), self.shared_bytes)

    @property
    def cpp(self) -> str:
        """The C++ type."""
        sizes = (self.block_m, self.block_n, self.slab_bytes, self.warp_m, self.warp_n)
        rest = (self.stages, self.band, "true" if self.asynchronous else "false")
        return f"Tile<{', '.join(map(str, sizes + rest))}>"


_HUNDRED_KIB = Tile(128, 128, 64, 64, 64, stages=3)  # 48 KiB: two blocks an SM
TILES: dict[Capability, Tile] = {
    (7, 5): Tile(128, 128, 64, 64, 32, stages=2, asynchronous=False),  # 32 KiB
    (8, 0): Tile(128, 256, 64, 64, 64, stages=4),  # 96 KiB of 164
    (8, 6): _HUNDRED_KIB,
    (9, 0): Tile(128, 256, 128, 64, 64, stages=4),  # 192 KiB of 228
    (12, 0): _HUNDRED_KIB,
}
"""By lowest capability. The warp tile is as large as the registers allow (64 x 64 is 128 sums a
thread): it decides how often shared memory is read for the same work."""

_WIDENED_FP8 = TILES | {
    (8, 9): TILES[8, 6],
    (9, 0): Tile(128, 128, 128, 64, 32, stages=4),  # 128 KiB
}
"""sm_90 and sm_100 widen the operands to fp16 in registers, which a 64 x 64 warp tile does not
leave; sm_89 and sm_120 multiply fp8 natively."""

TILES_BY_FORMAT: dict[str, dict[Capability, Tile]] = {
    "e4m3": _WIDENED_FP8,
    "e5m2": _WIDENED_FP8,
    # 144 KiB; faster on an H200 than four stages of 128 bytes.
    "tf32": TILES | {(9, 0): Tile(128, 256, 64, 64, 64, stages=6)},
}
"""Where a format has rows of its own; the others take ``TILES``."""

FLOAT_SUM = "the running sum is kept by the tensor core in float32, cut rather than rounded"

VARIANTS = (
    Variant(
        "fp16",
        "fp32",
        "fp32",
        (7, 5),
        (
            ((7, 5), "mma.sync.m16n8k8.f32.f16.f16.f32"),
            ((8, 0), "mma.sync.m16n8k16.f32.f16.f16.f32"),
        ),
        note=FLOAT_SUM,
    ),
    Variant(
        "bf16",
        "fp32",
        "fp32",
        (8, 0),
        (((8, 0), "mma.sync.m16n8k16.f32.bf16.bf16.f32"),),
        note=FLOAT_SUM,
    ),
    Variant(
        "tf32",
        "fp32",
        "fp32",
        (8, 0),
        (((8, 0), "mma.sync.m16n8k8.f32.tf32.tf32.f32"),),
        note=FLOAT_SUM,
    ),
    *(
        Variant(
            fp8,
            "fp32",
            "fp32",
            (8, 9),
            (((8, 9), f"mma.sync.m16n8k32.f32.{fp8}.{fp8}.f32"),),
            note="native on sm_89 and sm_120; widened to fp16 by the hardware on sm_90 and sm_100",
        )
        for fp8 in ("e4m3", "e5m2")
    ),
    Variant(
        "int8",
        "int32",
        "int32",
        (7, 5),
        (((7, 5), "mma.sync.m8n8k16.s32.s8.s8.s32"), ((8, 0), "mma.sync.m16n8k32.s32.s8.s8.s32")),
        note="exact modulo 2^32",
    ),
    Variant(
        "fp16",
        "fp16",
        "fp32",
        (7, 5),
        (
            ((7, 5), "mma.sync.m16n8k8.f16.f16.f16.f16"),
            ((8, 0), "mma.sync.m16n8k16.f16.f16.f16.f16"),
        ),
        lesson=True,
        note=HALF_LESSON,
    ),
)

_ACCUMULATORS = {"fp32": "float", "int32": "int", "fp16": "ptx::f16"}


def tile(variant: Variant, capability: Capability) -> Tile:
    """The tile of the nearest row at or below ``capability``."""
    rows = TILES_BY_FORMAT.get(variant.format, TILES)
    return rows[max(c for c in rows if c <= capability)]


def aligned(variant: Variant, dims: Dims) -> bool:
    """Whether every row of A and B starts on a multiple of 16 bytes."""
    size = storage_dtype(variant.format).itemsize
    return dims["k"] * size % CHUNK_BYTES == 0 and dims["n"] * size % CHUNK_BYTES == 0


def _atom(variant: Variant, capability: Capability) -> str:
    depth = tensorcore.depth(variant.instruction(capability) or "")
    operand = get(variant.format).ptx
    return f"ptx::Atom<ptx::{operand}, {_ACCUMULATORS[variant.accumulator]}, {depth}>"


def build(variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    """The instantiation for these dims: 16-byte copies where every row starts aligned."""
    vector = "true" if aligned(variant, dims) else "false"
    entry = f"matmul_mma<{_atom(variant, capability)}, {tile(variant, capability).cpp}, {vector}>"
    return RawBuild("matmul/mma.cu", entry)


def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """A block a tile of C."""
    return tile(variant, capability).plan(dims)


def supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    """The kernel's own limits."""
    if max(dims[d] for d in "mnk") > LARGEST_DIM:
        return f"m, n and k <= {LARGEST_DIM} (indices are 32-bit)"
    return None


register(
    KernelSpec(
        op="matmul",
        name="mma",
        backend="raw",
        idea="tensor cores by mma.sync, fed from a ring of shared-memory stages",
        order=40,
        variants=VARIANTS,
        params=params,
        build=build,
        plan=plan,
        supports=supports,
        source='PTX ISA, "mma"; CUTLASS, "Efficient GEMM in CUDA"',
    )
)
