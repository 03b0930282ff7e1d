"""What all attention kernels share: their parameter list and the shapes they take."""

from __future__ import annotations

from gpulab.registry import Capability, Dims, Param, Variant

MAX_HEAD_DIM = 256
LARGEST_GRID = 2**31 - 1
LARGEST_SEQUENCE = 2**31 - 1024
"""Positions are 32-bit and may run one tile past the end."""

QUERIES = ("batch", "heads", "seq_q", "head_dim")
KEYS = ("batch", "kv_heads", "seq_k", "head_dim")
ROWS = ("batch", "heads", "seq_q")
PASSED = (
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "seq_k",
    "causal",
    "window",
    "bias_planes",
    "mask_planes",
)
"""Dims that kernels take as arguments; the head dim is known when they are compiled."""


def params(variant: Variant) -> tuple[Param, ...]:
    """``(q, k, v, bias, mask, out, lse, dims)``; layouts in raw_kernels/attention/shape.cuh."""
    return (
        Param("q", "in", variant.format, QUERIES),
        Param("k", "in", variant.format, KEYS),
        Param("v", "in", variant.format, KEYS),
        Param("bias", "in", "fp32", ("bias_planes", "seq_q", "seq_k")),
        Param("mask", "in", "int8", ("mask_planes", "seq_q", "seq_k")),
        Param("out", "out", variant.output, QUERIES),
        Param("lse", "out", "fp32", ROWS),
        *(Param(name, "dim", "int32") for name in PASSED),
    )


def blocks(dims: Dims, rows: int) -> int:
    """Tiles of ``rows`` queries over all heads: the grid of every kernel here."""
    return -(-dims["seq_q"] // rows) * dims["batch"] * dims["heads"]


def limits(variant: Variant, capability: Capability, dims: Dims, rows: int) -> str | None:
    """The limits that kernels with tiles of ``rows`` queries have in common."""
    if dims["head_dim"] > MAX_HEAD_DIM:
        return f"head_dim <= {MAX_HEAD_DIM}"
    if max(dims["seq_q"], dims["seq_k"], dims["window"]) > LARGEST_SEQUENCE:
        return f"seq_q, seq_k and window <= {LARGEST_SEQUENCE} (positions are 32-bit)"
    if blocks(dims, rows) > LARGEST_GRID:
        return f"at most {LARGEST_GRID} tiles of {rows} queries (blocks lie along grid.x)"
    return None
