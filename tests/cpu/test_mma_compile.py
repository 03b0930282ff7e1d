"""mma.sync matmul: tiles that fit or are refused, launch shapes that cover C.

That every row compiles, spills nothing and uses the instruction that it declares is tested with
the rest of the registry (test_kernels_compile.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpulab import arch
from gpulab.errors import BuildError
from gpulab.kernels.matmul import mma
from gpulab.kernels.matmul.simt import params
from gpulab.registry import Capability, Variant
from gpulab.runtime import assembly, nvrtc
from gpulab.runtime.assembly import Code

EVEN, ODD = {"m": 64, "n": 64, "k": 64}, {"m": 5, "n": 7, "k": 9}
FP16, TF32, E4M3, INT8 = (
    next(v for v in mma.VARIANTS if v.format == f) for f in ("fp16", "tf32", "e4m3", "int8")
)


def _compile(variant: Variant, capability: Capability, tile: mma.Tile | None = None) -> Code:
    """The aligned instantiation; with ``tile``, in place of the capability's own."""
    build = mma.build(variant, capability, EVEN)
    if tile is not None:
        entry = build.entry.replace(mma.tile(variant, capability).cpp, tile.cpp)
        assert entry != build.entry
        build = replace(build, entry=entry)
    return assembly.prepare(build, params(variant), capability)


def test_fp8_has_a_tile_of_its_own_where_widening_it_would_spill() -> None:
    used = _compile(E4M3, (9, 0), mma.TILES[9, 0]).resources
    assert used is not None
    assert used.spill_bytes > 0


@pytest.mark.parametrize("narrow", [False, True], ids=["vector", "narrow"])
@pytest.mark.parametrize(
    ("variant", "tile", "why"),
    [
        # Rows of B of 64 bytes: the swizzle, which reaches chunk 7, would leave the row.
        (E4M3, mma.Tile(128, 64, 64, 64, 32, 4), "the swizzle of B covers 128 bytes"),
        (INT8, mma.Tile(64, 64, 64, 64, 32, 4), "the swizzle of B covers 128 bytes"),
        (FP16, mma.Tile(128, 128, 32, 64, 64, 3), "the swizzle of A covers 64 and 128 bytes"),
        (FP16, mma.Tile(96, 128, 64, 64, 64, 3), "whole warp tiles"),
        (FP16, mma.Tile(128, 128, 64, 64, 16, 3), "groups of 32 columns"),
        (FP16, mma.Tile(128, 128, 64, 64, 64, 1), "alternate"),
        (FP16, mma.Tile(128, 256, 64, 128, 32, 3, asynchronous=False), "alternate"),
    ],
)
def test_a_tile_that_the_layout_cannot_hold_does_not_compile(
    variant: Variant, tile: mma.Tile, why: str, narrow: bool
) -> None:
    build = mma.build(variant, (8, 9), ODD if narrow else EVEN)
    entry = build.entry.replace(mma.tile(variant, (8, 9)).cpp, tile.cpp)
    assert entry != build.entry
    with pytest.raises(BuildError) as refused:
        nvrtc.compile_ptx(build.source, entry, (8, 9))
    assert why in str(refused.value)


def test_tf32_takes_its_own_tile_on_9_0_and_up_to_12_0_only() -> None:
    for capability in ((9, 0), (10, 0)):
        assert mma.tile(TF32, capability) == mma.Tile(128, 256, 64, 64, 64, 6)
    for capability in ((8, 0), (8, 6), (8, 9), (12, 0)):
        assert mma.tile(TF32, capability) is mma.tile(FP16, capability)


@pytest.mark.parametrize("capability", arch.EMULATED)
def test_cp_async_from_8_0_only(capability: Capability) -> None:
    text = _compile(FP16, capability).ptx
    assert ("cp.async.cg" in text) == (capability >= (8, 0))
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in text
    assert ("st.shared.v4" in text) == (capability < (8, 0))


def test_16_byte_copies_only_where_every_row_starts_on_one() -> None:
    for variant, per_chunk in ((FP16, 8), (TF32, 4), (INT8, 16)):
        for n, k, want in ((1, 1, True), (2, 3, True)):
            assert mma.aligned(variant, {"m": 1, "n": n * per_chunk, "k": k * per_chunk}) is want
        for off_n, off_k in ((1, 0), (0, 1), (per_chunk // 2, 0), (0, per_chunk // 2)):
            dims = {"m": 8, "n": per_chunk + off_n, "k": per_chunk + off_k}
            assert not mma.aligned(variant, dims)
            assert mma.build(variant, (9, 0), dims).entry.endswith("false>")


def test_the_grid_covers_c_once_and_limits_are_refused() -> None:
    for m, n in ((1, 1), (128, 256), (129, 257), (4096, 4096)):
        for capability in arch.EMULATED:
            tile = mma.tile(FP16, capability)
            plan = mma.plan(FP16, capability, {"m": m, "n": n, "k": 1})
            rows, columns = -(-m // tile.block_m), -(-n // tile.block_n)
            assert plan.grid == (rows * columns, 1, 1)
            assert (rows - 1) * tile.block_m < m <= rows * tile.block_m
            assert plan.block == (tile.threads, 1, 1)
            assert plan.shared_bytes == tile.shared_bytes
    assert mma.supports(FP16, (9, 0), {"m": 1, "n": 2**31 - 1024, "k": 1}) is None
    assert "32-bit" in (mma.supports(FP16, (9, 0), {"m": 1, "n": 2**31 - 1023, "k": 1}) or "")


def test_two_blocks_an_sm_where_shared_memory_is_100_kib() -> None:
    for capability in ((8, 6), (8, 9), (12, 0)):
        row, tile = arch.get(capability), mma.tile(FP16, capability)
        assert 2 * (tile.shared_bytes + row.shared_reserved_bytes) <= row.shared_per_sm_bytes
