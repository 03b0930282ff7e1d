"""Attention on CUDA cores: one source, one row a number format, on every capability."""

from __future__ import annotations

from gpulab.formats import get
from gpulab.kernels.attention.problem import blocks, limits, params
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    RawBuild,
    Variant,
    register,
)

WARPS, QUERIES, KEYS = 4, 4, 32
"""Warps a block, queries a warp, keys a tile: ``SimtTile`` of attention/simt.cuh."""
ROWS = WARPS * QUERIES

VARIANTS = (
    Variant("fp32", "fp32", "fp32"),
    Variant("fp16", "fp32", "fp16"),
    Variant("bf16", "fp32", "bf16"),
)


def entry(variant: Variant, dims: Dims, rules: str) -> str:
    """The instantiation of attention/simt.cuh for a row and its rules."""
    stored, out = get(variant.format).cpp, get(variant.output).cpp
    return f"attention_simt<{stored}, {out}, {dims['head_dim']}, {rules}>"


def shared_bytes(dims: Dims) -> int:
    """Queries of the block and one tile of keys or values, as float32."""
    head_dim = dims["head_dim"]
    return 4 * (ROWS * head_dim + KEYS * (head_dim | 1))


def build(variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    """What to compile."""
    return RawBuild("attention/simt.cu", entry(variant, dims, "RightRules"))


def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """One block a tile of 16 queries and head."""
    return LaunchPlan((blocks(dims, ROWS), 1, 1), (32 * WARPS, 1, 1), shared_bytes(dims))


def supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    """The kernel's own limits."""
    return limits(variant, capability, dims, ROWS)


register(
    KernelSpec(
        op="attention",
        name="simt",
        backend="raw",
        idea="online softmax on CUDA cores, a warp for four queries",
        order=10,
        variants=VARIANTS,
        params=params,
        build=build,
        plan=plan,
        supports=supports,
        source="Milakov and Gimelshein, arXiv 1805.02867",
    )
)
