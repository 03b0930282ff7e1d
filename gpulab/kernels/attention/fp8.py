"""Attention on e4m3 Q, K and V with scales, on the tensor cores by mma.sync."""

from __future__ import annotations

from gpulab.kernels.attention.mma import Tile, has_extra
from gpulab.kernels.attention.problem import KEYS, PASSED, QUERIES, ROWS, blocks, limits
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

TILES: dict[Capability, dict[int, Tile]] = {
    (8, 9): {128: Tile(4, 1, 64, blocks=2), 192: Tile(4, 1, 32)},
    (9, 0): {96: Tile(4, 1, 64, blocks=2), 128: Tile(4, 1, 32, blocks=2), 192: Tile(4, 1, 32)},
    (12, 0): {128: Tile(4, 1, 64, blocks=2), 192: Tile(4, 1, 32)},
}
"""By lowest capability, then by largest head dim; a row of shared memory has half as many bytes as
one of 16-bit elements. sm_90 and sm_100 widen e4m3 to fp16 in registers."""

ALIGNED = 16
"""Head dims are multiples of it: rows are copied in chunks of 16 bytes."""
LARGEST, LARGEST_EXTRA = 192, 160
"""Largest head dim, without and with bias or mask: beyond it output, scores and widened operands
exceed the registers."""

INSTRUCTIONS = (((8, 9), "mma.sync.m16n8k32.f32.e4m3.e4m3.f32"),)
_NOTE = (
    "{}; P is rounded to e4m3 after its sum is taken; the sum of every tile of keys, at most 64, "
    "is added to a float32 sum"
)

VARIANTS = (
    Variant(
        "e4m3",
        "fp32",
        "bf16",
        (8, 9),
        INSTRUCTIONS,
        contract="block-scaled",
        note=_NOTE.format("one scale for 64 rows of Q, K and V"),
    ),
    Variant(
        "e4m3",
        "fp32",
        "bf16",
        (8, 9),
        INSTRUCTIONS,
        contract="tensor-scaled",
        note=_NOTE.format("one scale for a whole head of Q, K and V"),
    ),
)


def params(variant: Variant) -> tuple[Param, ...]:
    """``(q, k, v, q_scale, k_scale, v_scale, bias, mask, out, lse, dims)``."""
    return (
        Param("q", "in", variant.format, QUERIES),
        Param("k", "in", variant.format, KEYS),
        Param("v", "in", variant.format, KEYS),
        Param("q_scale", "in", "fp32", ROWS),
        Param("k_scale", "in", "fp32", KEYS[:-1]),
        Param("v_scale", "in", "fp32", KEYS[:-1]),
        Param("bias", "in", "fp32", ("bias_planes", "seq_q", "seq_k")),
        Param("mask", "in", "int8", ("mask_planes", "seq_q", "seq_k")),
        Param("out", "out", variant.output, QUERIES),
        Param("lse", "out", "fp32", ROWS),
        *(Param(name, "dim", "int32") for name in PASSED),
    )


def tile(capability: Capability, head_dim: int) -> Tile:
    """The tile of the nearest row at or below ``capability`` for a head dim."""
    rows = TILES[max(c for c in TILES if c <= capability)]
    return rows[min((d for d in rows if d >= head_dim), default=max(rows))]


def _padded(dims: Dims) -> int:
    return -(-dims["head_dim"] // ALIGNED) * ALIGNED


def build(variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    """The instantiation for a head dim, with or without bias and mask."""
    per_tensor = str(variant.contract == "tensor-scaled").lower()
    head_dim = _padded(dims)
    shape = tile(capability, head_dim).cpp
    extra = str(has_extra(dims)).lower()
    entry = f"attention_fp8<ptx::bf16, {shape}, {head_dim}, {per_tensor}, {extra}>"
    return RawBuild("attention/fp8.cu", entry)


def plan(variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """One block a tile of queries and head, in the order that ``locate`` gives them."""
    t = tile(capability, dims["head_dim"])
    shared = t.shared_bytes(_padded(dims) // 2)
    return LaunchPlan((blocks(dims, t.rows), 1, 1), (t.threads, 1, 1), shared)


def supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    """The kernel's own limits."""
    largest = LARGEST_EXTRA if has_extra(dims) else LARGEST
    if dims["head_dim"] % ALIGNED or dims["head_dim"] > largest:
        which = "with bias or mask " if has_extra(dims) else ""
        return f"{which}head_dim must be a multiple of {ALIGNED} up to {largest}"
    return limits(variant, capability, dims, tile(capability, dims["head_dim"]).rows)


register(
    KernelSpec(
        op="attention",
        name="fp8",
        backend="raw",
        idea="e4m3 operands with scales along the sequence, tiles promoted to float32 sums",
        order=50,
        variants=VARIANTS,
        params=params,
        build=build,
        plan=plan,
        supports=supports,
        source="Shah et al., arXiv 2407.08608; DeepSeek-AI, arXiv 2412.19437",
    )
)
