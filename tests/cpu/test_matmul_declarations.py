"""The CUDA-core matmul declarations: tiles that fit, launch shapes that cover C, refusals."""

from __future__ import annotations

import pytest

from gpulab import arch, registry
from gpulab.kernels.matmul import blocked, simt
from gpulab.registry import Capability, RawBuild

CASES = [c for name in ("simt", "blocked") for c in registry.cases("matmul", kernel=name)]


@pytest.mark.parametrize("capability", arch.EMULATED, ids=str)
def test_the_blocked_tiles_of_min_blocks_fit_one_sm(capability: Capability) -> None:
    tile, row = blocked.tile(capability), arch.get(capability)
    shared = tile.shared_bytes + row.shared_reserved_bytes
    assert tile.min_blocks * shared <= row.shared_per_sm_bytes
    assert tile.min_blocks * tile.threads <= row.max_threads_per_sm
    # Every result of the block belongs to one thread.
    assert tile.threads * tile.thread_m * tile.thread_n == tile.block_m * tile.block_n
    assert capability >= (8, 0) or tile.stages == 2


def test_a_tile_serves_the_capabilities_up_to_the_next_row() -> None:
    assert blocked.tile((8, 9)) is blocked.TILES[8, 6]
    assert blocked.tile((10, 0)) is blocked.TILES[9, 0]
    assert blocked.tile((7, 5)) is blocked.TILES[7, 5]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label.replace(" ", ""))
@pytest.mark.parametrize("m", [1, 31, 32, 33, 257])
@pytest.mark.parametrize("n", [1, 128, 129])
def test_the_grid_covers_c_and_no_more(case: registry.Case, m: int, n: int) -> None:
    assert case.spec.plan is not None
    plan = case.spec.plan(case.variant, (9, 0), {"m": m, "n": n, "k": 7})
    if case.spec.name == "blocked":
        tile = blocked.tile((9, 0))
        rows, columns = tile.block_m, tile.block_n
        assert plan.grid[1:] == (1, 1)
    else:
        rows = columns = simt.TILE
        assert plan.grid[2] == 1
    blocks = plan.grid[0] * plan.grid[1]
    assert blocks == ((m + rows - 1) // rows) * ((n + columns - 1) // columns)


def test_numba_and_raw_rows_are_twins() -> None:
    raw, twin = (
        next(s for s in registry.specs("matmul") if s.name == "simt" and s.backend == backend)
        for backend in ("raw", "numba")
    )
    assert raw.variants == twin.variants
    dims = {"m": 70, "n": 45, "k": 9}
    for variant in raw.variants:
        assert raw.plan is not None
        assert twin.plan is not None
        assert raw.params(variant) == twin.params(variant)
        assert raw.plan(variant, (8, 9), dims) == twin.plan(variant, (8, 9), dims)


def test_only_the_half_sums_are_lessons_and_all_rows_store_fp32() -> None:
    for case in CASES:
        assert case.variant.lesson == (case.variant.accumulator == "fp16")
        assert case.variant.output == "fp32"
        assert bool(case.variant.note) == case.variant.lesson


@pytest.mark.parametrize(
    ("kernel", "dims", "word"),
    [
        ("simt", {"m": 65535 * 32 + 1, "n": 1, "k": 1}, "grid.y"),
        ("simt", {"m": 1, "n": 2**31 - 1, "k": 1}, "32-bit"),
        ("simt", {"m": 1, "n": 1, "k": 2**31 - 1}, "32-bit"),
        ("blocked", {"m": 1, "n": 1, "k": 2**30}, "2^30"),
        ("blocked", {"m": 1, "n": 2**30, "k": 1}, "2^30"),
        ("blocked", {"m": 2**31 - 1, "n": 1, "k": 1}, "32-bit"),
        ("blocked", {"m": 2**30, "n": 2**29, "k": 1}, "grid.x"),
    ],
)
def test_limits_are_refused_with_the_limit(kernel: str, dims: dict[str, int], word: str) -> None:
    case = next(registry.cases("matmul", kernel=kernel))
    reason = case.refusal((9, 0), "cuda", dims)
    assert reason is not None
    assert word in reason
    fitting = {name: min(size, 4096) for name, size in dims.items()}
    assert case.refusal((9, 0), "cuda", fitting) is None


def test_entries_name_the_tile_and_the_formats() -> None:
    half = next(c for c in CASES if c.variant.accumulator == "fp16" and c.spec.backend == "raw")
    assert half.spec.build is not None
    build = half.spec.build(half.variant, (8, 0), {"m": 1, "n": 1, "k": 1})
    assert isinstance(build, RawBuild)
    assert build.entry == "matmul_simt<__half, __half, float, 32>"
    fp32 = next(registry.cases("matmul", kernel="blocked"))
    assert fp32.spec.build is not None
    for n, k, wide in ((4, 8, "true"), (5, 8, "false"), (4, 6, "false")):
        build = fp32.spec.build(fp32.variant, (7, 5), {"m": 3, "n": n, "k": k})
        assert isinstance(build, RawBuild)
        assert build.entry == f"matmul_blocked<128, 128, 8, 2, 2, 8, 16, 2, 2, {wide}>"
