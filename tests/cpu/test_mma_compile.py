"""mma.sync matmul: compiles for every capability, spills nothing, fits, and uses what it says."""

from __future__ import annotations

import re

import pytest

from gpulab import arch
from gpulab.kernels.matmul import mma
from gpulab.registry import Capability, Variant
from gpulab.runtime import nvrtc, resources

CASES = [
    pytest.param(v, c, id=f"{v.format}-{v.accumulator}-{c[0]}.{c[1]}")
    for v in mma.VARIANTS
    for c in arch.EMULATED
    if c >= v.min_capability
]
EVEN, ODD = {"m": 64, "n": 64, "k": 64}, {"m": 5, "n": 7, "k": 9}


def _compile(variant: Variant, capability: Capability, dims: dict[str, int]) -> nvrtc.Compiled:
    request = mma.build(variant, capability, dims)
    return nvrtc.compile_cubin(request.source, request.entry, capability)


@pytest.mark.parametrize("dims", [EVEN, ODD], ids=["vector", "narrow"])
@pytest.mark.parametrize(("variant", "capability"), CASES)
def test_no_spill_and_the_declared_instruction(
    variant: Variant, capability: Capability, dims: dict[str, int]
) -> None:
    made = _compile(variant, capability, dims)
    used = resources.parse(made.log, made.lowered, made.ptx)
    tile = mma.tile(variant, capability)
    row = arch.get(capability)
    assert used.spill_bytes == 0
    assert used.stack_bytes == 0
    assert used.warnings == ()
    assert used.max_threads_per_block == tile.threads
    assert tile.threads * used.registers <= row.registers_per_sm
    assert tile.shared_bytes <= row.shared_per_block_bytes

    # Every mma in the PTX is the one that the row declares, and there is a full warp tile of them.
    declared = variant.instruction(capability)
    assert declared is not None
    _, _, shape, *types = declared.split(".")
    spelled = f"mma.sync.aligned.{shape}.row.col.{'.'.join(types)}"
    found = re.findall(r"mma\.sync\.aligned[.\w]+", made.ptx)
    assert set(found) == {spelled}
    m, n, k = map(int, re.findall(r"\d+", shape))
    depth = tile.slab_bytes // mma.storage_dtype(variant.format).itemsize
    assert len(found) == (tile.warp_m // m) * (tile.warp_n // n) * (depth // k)


def test_the_spill_check_sees_a_spill() -> None:
    """And why fp8 has a tile of its own where the hardware widens it to fp16."""
    e4m3 = next(v for v in mma.VARIANTS if v.format == "e4m3")
    entry = mma.build(e4m3, (9, 0), EVEN).entry
    large = entry.replace(mma.tile(e4m3, (9, 0)).cpp, mma.TILES[9, 0].cpp)
    assert large != entry
    made = nvrtc.compile_cubin("matmul/mma.cu", large, (9, 0))
    assert resources.parse(made.log, made.lowered).spill_bytes > 0


@pytest.mark.parametrize("capability", arch.EMULATED)
def test_cp_async_from_8_0_only(capability: Capability) -> None:
    fp16 = mma.VARIANTS[0]
    text = _compile(fp16, capability, EVEN).ptx
    assert ("cp.async.cg" in text) == (capability >= (8, 0))
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in text
    assert ("st.shared.v4" in text) == (capability < (8, 0))


def test_16_byte_copies_only_where_every_row_starts_on_one() -> None:
    fp16, tf32, int8 = (
        next(v for v in mma.VARIANTS if v.format == f) for f in ("fp16", "tf32", "int8")
    )
    for variant, per_chunk in ((fp16, 8), (tf32, 4), (int8, 16)):
        for n, k, want in ((1, 1, True), (2, 3, True)):
            assert mma.aligned(variant, {"m": 1, "n": n * per_chunk, "k": k * per_chunk}) is want
        for off_n, off_k in ((1, 0), (0, 1), (per_chunk // 2, 0), (0, per_chunk // 2)):
            dims = {"m": 8, "n": per_chunk + off_n, "k": per_chunk + off_k}
            assert not mma.aligned(variant, dims)
            assert mma.build(variant, (9, 0), dims).entry.endswith("false>")


def test_the_grid_covers_c_once_and_limits_are_refused() -> None:
    fp16 = mma.VARIANTS[0]
    for m, n in ((1, 1), (128, 256), (129, 257), (4096, 4096)):
        for capability in arch.EMULATED:
            tile = mma.tile(fp16, capability)
            plan = mma.plan(fp16, capability, {"m": m, "n": n, "k": 1})
            rows, columns = -(-m // tile.block_m), -(-n // tile.block_n)
            assert plan.grid == (rows * columns, 1, 1)
            assert (rows - 1) * tile.block_m < m <= rows * tile.block_m
            assert plan.block == (tile.threads, 1, 1)
            assert plan.shared_bytes == tile.shared_bytes
    assert mma.supports(fp16, (9, 0), {"m": 1, "n": 2**31 - 1024, "k": 1}) is None
    assert "32-bit" in (mma.supports(fp16, (9, 0), {"m": 1, "n": 2**31 - 1023, "k": 1}) or "")


def test_two_blocks_an_sm_where_shared_memory_is_100_kib() -> None:
    for capability in ((8, 6), (8, 9), (12, 0)):
        row, tile = arch.get(capability), mma.tile(mma.VARIANTS[0], capability)
        assert 2 * (tile.shared_bytes + row.shared_reserved_bytes) <= row.shared_per_sm_bytes
