"""The fp32 matmul that CUDA cores do best: register tiles, 16-byte loads, a multistage pipeline."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from gpulab.kernels.matmul.simt import params
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
    """Template arguments of ``raw_kernels/matmul/blocked.cu``, in its order.

    Args:
        block_m: rows of C a block computes.
        block_n: columns of C a block computes.
        block_k: terms of K a step brings to shared memory.
        warps_m: warps along M.
        warps_n: warps along N.
        thread_m: rows of C a thread holds.
        thread_n: columns of C a thread holds.
        stages: steps in shared memory at once; one is multiplied, the others are on their way.
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
        """Dynamic shared memory a block: A's rows are padded by 16 bytes, B's are not."""
        return 4 * self.stages * (self.block_m * (self.block_k + 4) + self.block_k * self.block_n)

    def blocks(self, dims: Dims) -> int:
        """Tiles that cover C."""
        return -(-dims["m"] // self.block_m) * -(-dims["n"] // self.block_n)


TILES: dict[Capability, Tile] = {
    # 64 KB of shared memory an SM and no cp.async: two stages, the next one waits in registers.
    (7, 5): Tile(128, 128, 8, 2, 2, 8, 16, 2, 2),
    # 164 KB an SM: three blocks of three stages, as on 9.0.
    (8, 0): Tile(128, 64, 16, 2, 2, 8, 8, 3, 3),
    # 100 KB an SM: three blocks of two stages.
    (8, 6): Tile(128, 64, 16, 2, 2, 8, 8, 2, 3),
    # 228 KB an SM. Measured best: 12 warps hide more than the fewer reads of larger tiles save.
    (9, 0): Tile(128, 64, 16, 2, 2, 8, 8, 3, 3),
    # 100 KB an SM again.
    (12, 0): Tile(128, 64, 16, 2, 2, 8, 8, 2, 3),
}
"""By the lowest capability each serves."""

FLOATS_A_LOAD = 4
"""A 16-byte access; rows whose length is no multiple of it are read float by float."""

MAX_ROW = 2**30
"""A row's length in bytes fits 32 bits below this many floats."""


def tile(capability: Capability) -> Tile:
    """The tile used on a capability: the row of the highest key not above it."""
    return TILES[max(lowest for lowest in TILES if lowest <= capability)]


def _supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    chosen = tile(capability)
    if max(dims["k"], dims["n"]) >= MAX_ROW:
        return f"k and n < 2^30 (row lengths in bytes are 32-bit), got {dims['k']}, {dims['n']}"
    if dims["m"] > 2**31 - chosen.block_m:
        return f"m <= 2^31 - {chosen.block_m} (indices are 32-bit), got {dims['m']}"
    if chosen.blocks(dims) >= 2**31:
        return f"{chosen.block_m}x{chosen.block_n} tiles of C must number < 2^31 (grid.x)"
    return None


def _build(variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    aligned = dims["n"] % FLOATS_A_LOAD == 0 and dims["k"] % FLOATS_A_LOAD == 0
    arguments = [*map(str, astuple(tile(capability))), str(aligned).lower()]
    return RawBuild("matmul/blocked.cu", f"matmul_blocked<{', '.join(arguments)}>")


def _plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """One block a tile of C, in one grid dimension: the kernel orders the tiles itself."""
    chosen = tile(capability)
    return LaunchPlan(
        grid=(chosen.blocks(dims), 1, 1),
        block=(chosen.threads, 1, 1),
        shared_bytes=chosen.shared_bytes,
    )


register(
    KernelSpec(
        op="matmul",
        name="blocked",
        backend="raw",
        idea="each thread keeps a tile of C in registers; loads are 16 bytes wide and overlapped",
        order=30,
        variants=(Variant("fp32", "fp32", "fp32"),),
        params=params,
        build=_build,
        plan=_plan,
        supports=_supports,
        source='V. Volkov, "Better performance at lower occupancy", GTC 2010; NVIDIA CUTLASS '
        'documentation, "Efficient GEMM in CUDA"',
    )
)
