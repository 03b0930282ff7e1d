"""Matmul on Hopper's tensor cores: wgmma fed by TMA, one row a format and accumulation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpulab.formats import get, storage_dtype
from gpulab.kernels.matmul import simt
from gpulab.kernels.matmul.mma import FLOAT_SUM, LARGEST_DIM
from gpulab.kernels.matmul.wgmma_tiles import (
    BOX_ROWS,
    H200_MULTIPROCESSORS,
    PROMOTED,
    ROW_BYTES,
    TILES,
    Tile,
    choose,
)
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

HOPPER: Capability = (9, 0)
PITCH_BYTES = 16
"""Rows that TMA copies begin on multiples of it."""
PROMOTION = 128
"""Terms of a slab of fp8, after which sums are promoted."""

FAST, PROMOTED_SUMS = "fast", "promoted"
_K_MAJOR = "B is transposed by a launch of its own before, whose time is reported apart"
_NOTES = {
    FAST: f"the tensor core's own accumulator of 13 fraction bits; {_K_MAJOR}",
    PROMOTED_SUMS: f"promoted to float32 every {PROMOTION} terms; {_K_MAJOR}",
}
_DEPTHS = {1: 32, 2: 16, 4: 8}
"""Terms of one instruction, by bytes an element."""


def _variant(fmt: str, output: str, contract: str = "") -> Variant:
    operand, size = get(fmt).ptx, storage_dtype(fmt).itemsize
    return Variant(
        fmt,
        "fp32",
        output,
        HOPPER,
        ((HOPPER, f"wgmma.m64n256k{_DEPTHS[size]}.f32.{operand}.{operand}"),),
        contract=contract,
        promotion=PROMOTION if contract == PROMOTED_SUMS else None,
        note=_NOTES.get(contract, FLOAT_SUM if size == 2 else f"{FLOAT_SUM}; {_K_MAJOR}"),
    )


VARIANTS = (
    _variant("fp16", "fp32"),
    _variant("fp16", "fp16"),
    _variant("bf16", "fp32"),
    _variant("bf16", "bf16"),
    _variant("tf32", "fp32"),
    *(
        _variant(fp8, output, contract)
        for fp8 in ("e4m3", "e5m2")
        # Rounding to bf16 hides what tells a promoted sum from a half one: no verdict could rest
        # on such a row.
        for contract, output in ((FAST, "fp32"), (FAST, "bf16"), (PROMOTED_SUMS, "fp32"))
    ),
)

_STORES = {"fp32": "f32", "fp16": "ptx::f16", "bf16": "ptx::bf16"}


def n_major(variant: Variant) -> bool:
    """Whether wgmma takes B as it is, (k, n) row-major: 16-bit elements only."""
    return storage_dtype(variant.format).itemsize == 2


def own_params(variant: Variant) -> tuple[Param, ...]:
    """The device function's parameters: B as the step before left it, where there is one."""
    if n_major(variant):
        return simt.params(variant)
    transposed = Param("b_transposed", "in", variant.format, ("n", "k"))
    return tuple(transposed if p.name == "b" else p for p in simt.params(variant))


def tile(variant: Variant, dims: Dims, multiprocessors: int = H200_MULTIPROCESSORS) -> Tile:
    """The tile for these dims on a card of so many multiprocessors."""
    candidates = PROMOTED if variant.promotion else TILES
    return choose(candidates, dims, storage_dtype(variant.format).itemsize, multiprocessors)


def entry(variant: Variant, t: Tile) -> str:
    """The instantiation for a tile."""
    cpp = t.cpp(str(get(variant.format).ptx), n_major(variant))
    store = f"StoreTma<{_STORES[variant.output]}, {t.consumers}, {t.buffers}>"
    if variant.promotion:
        return f"matmul_wgmma<{cpp}, {store}, Promoted<{cpp}, {min(t.part, t.block_n)}>>"
    return f"matmul_wgmma<{cpp}, {store}>"


def build_tile(variant: Variant, t: Tile) -> RawBuild:
    """What to compile for a tile."""
    return RawBuild("matmul/wgmma.cu", entry(variant, t), feature_target=True)


def boxes(variant: Variant, t: Tile) -> tuple[TensorBox, ...]:
    """The boxes of A, B and C; see ``WgmmaTile`` and ``StoreTma``."""
    slab = ROW_BYTES // storage_dtype(variant.format).itemsize
    a = TensorBox("a", t.block_m // t.pair_n, slab)
    b = TensorBox("b_transposed", t.block_n // t.pair_m, slab)
    if n_major(variant):
        b = TensorBox("b", slab, ROW_BYTES // storage_dtype(variant.format).itemsize)
    return a, b, TensorBox("c", BOX_ROWS, ROW_BYTES // storage_dtype(variant.output).itemsize)


def plan_tile(variant: Variant, t: Tile, dims: Dims) -> LaunchPlan:
    """One block a tile of C, as far as the card holds them at a time."""
    return LaunchPlan(
        (t.units(dims) * t.cluster, 1, 1),
        (t.threads, 1, 1),
        t.shared_bytes,
        maps=boxes(variant, t),
        persistent=True,
        cluster=t.cluster,
    )


def _build(
    variant: Variant,
    capability: Capability,
    dims: Dims,
    multiprocessors: int = H200_MULTIPROCESSORS,
) -> RawBuild:
    return build_tile(variant, tile(variant, dims, multiprocessors))


def _plan(
    variant: Variant,
    capability: Capability,
    dims: Dims,
    multiprocessors: int = H200_MULTIPROCESSORS,
) -> LaunchPlan:
    return plan_tile(variant, tile(variant, dims, multiprocessors), dims)


def for_card(spec: KernelSpec, multiprocessors: int) -> KernelSpec:
    """The declaration with tiles chosen for so many multiprocessors."""
    return replace(
        spec,
        build=partial(_build, multiprocessors=multiprocessors),
        plan=partial(_plan, multiprocessors=multiprocessors),
    )


def steps(variant: Variant, capability: Capability, dims: Dims) -> tuple[Step, ...]:
    """B (k, n) to (n, k), for elements that wgmma takes K-major only."""
    if n_major(variant):
        return ()
    size = storage_dtype(variant.format).itemsize
    edge = 32 * (4 // size)
    tiles = -(-dims["k"] // edge) * -(-dims["n"] // edge)
    params = (
        Param("b", "in", variant.format, ("k", "n")),
        Param("b_transposed", "out", variant.format, ("n", "k")),
        Param("k", "dim", "int32"),
        Param("n", "dim", "int32"),
    )
    build = RawBuild("common/transpose.cu", f"transpose<{size}>")
    return (Step("transpose b", params, build, LaunchPlan((tiles, 1, 1), (32, 8, 1))),)


def supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    """TMA's rule for strides, and 32-bit coordinates."""
    if max(dims[d] for d in "mnk") > LARGEST_DIM:
        return f"m, n and k <= {LARGEST_DIM} (coordinates are 32-bit)"
    rows = {"A": ("k", variant.format), "C": ("n", variant.output)}
    if n_major(variant):
        rows["B"] = ("n", variant.format)
    for name, (dim, fmt) in rows.items():
        pitch = dims[dim] * storage_dtype(fmt).itemsize
        if pitch % PITCH_BYTES:
            return (
                f"rows of {name} lie {pitch} bytes apart, TMA needs a multiple of {PITCH_BYTES}: "
                "use the mma kernel, which takes any"
            )
    return None


register(
    KernelSpec(
        op="matmul",
        name="wgmma",
        backend="raw",
        idea="Hopper: wgmma fed by TMA, warps specialise, blocks persist and share loads in pairs",
        order=50,
        variants=VARIANTS,
        params=simt.params,
        own_params=own_params,
        build=_build,
        plan=_plan,
        supports=supports,
        steps=steps,
        for_card=for_card,
        only_capability=HOPPER,
        source='PTX ISA, "wgmma", "cp.async.bulk.tensor"; CUTLASS, "Efficient GEMM in CUDA"',
    )
)
