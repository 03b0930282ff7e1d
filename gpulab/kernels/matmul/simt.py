"""The tiled matmul on CUDA cores: one source, one row a number format."""

from __future__ import annotations

from gpulab.formats import get
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    Param,
    RawBuild,
    Variant,
    register,
)

TILE = 32
"""Edge of the block's tile, in results; kTile of the source."""

MAX_GRID_Y = 65535

HALF_LESSON = (
    "the running sum itself is kept in fp16: every term is rounded to 11 bits of the sum so far"
)

VARIANTS = (
    Variant("fp32", "fp32", "fp32"),
    Variant("fp16", "fp32", "fp32"),
    Variant("bf16", "fp32", "fp32"),
    Variant("e4m3", "fp32", "fp32"),
    Variant("e5m2", "fp32", "fp32"),
    Variant("fp16", "fp16", "fp32", lesson=True, note=HALF_LESSON),
)
"""The rows of the raw kernel and of its Numba twin; all store fp32, so that rows differ in how
inputs are stored and sums are kept, and in nothing else."""


def params(variant: Variant) -> tuple[Param, ...]:
    """``(a (m, k), b (k, n), c (m, n), m, n, k)``, row-major: every matmul kernel's parameters."""
    return (
        Param("a", "in", variant.format, ("m", "k")),
        Param("b", "in", variant.format, ("k", "n")),
        Param("c", "out", variant.output, ("m", "n")),
        Param("m", "dim", "int32"),
        Param("n", "dim", "int32"),
        Param("k", "dim", "int32"),
    )


def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """One block a tile of C, one thread a result; n along x, so that a warp writes neighbours."""
    return LaunchPlan(grid=(-(-dims["n"] // TILE), -(-dims["m"] // TILE), 1), block=(TILE, TILE, 1))


def supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    """The kernel's own limits."""
    if dims["m"] > MAX_GRID_Y * TILE:
        return f"m <= {MAX_GRID_Y * TILE} (rows of tiles lie along grid.y)"
    if dims["k"] > 2**31 - TILE or dims["n"] > 2**31 - TILE:
        return f"n and k <= 2^31 - {TILE} (indices are 32-bit)"
    return None


def _build(variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    stored, sum_, out = (get(f).cpp for f in (variant.format, variant.accumulator, variant.output))
    return RawBuild("matmul/simt.cu", f"matmul_simt<{stored}, {sum_}, {out}, {TILE}>")


register(
    KernelSpec(
        op="matmul",
        name="simt",
        backend="raw",
        idea="a shared-memory tile, one result a thread; rows differ in number format only",
        order=10,
        variants=VARIANTS,
        params=params,
        build=_build,
        plan=plan,
        supports=supports,
        source='NVIDIA, CUDA C++ Programming Guide, "Shared Memory"',
    )
)
