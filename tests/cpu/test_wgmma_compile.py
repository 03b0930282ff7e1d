"""The wgmma kernels on sm_90a: nothing spills, nothing is serialised, tiles fit and cover C."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from wgmma_compiled import compiled, findings

from gpulab import registry
from gpulab.formats import get, storage_dtype
from gpulab.kernels.matmul import wgmma, wgmma_tiles
from gpulab.kernels.matmul.wgmma_tiles import PROMOTED, TILES, Cost, Tile
from gpulab.registry import LaunchPlan, Variant
from gpulab.runtime import resources

VARIANTS = [v for v in wgmma.VARIANTS if v.format not in ("fp16", "e5m2")]
"""The others are the same code as bf16 and e4m3 but for a letter."""
CANDIDATES = [
    pytest.param(
        v,
        t,
        id=f"{v.format}-{v.output}-{v.contract}-{t.block_m}x{t.block_n}x{t.cluster}",
        marks=[pytest.mark.whole] if (turn + number) % 2 else [],
    )
    for turn, v in enumerate(VARIANTS)
    for number, (t, _) in enumerate(PROMOTED if v.promotion else TILES)
]
"""`make test` compiles every other tile of each; formats take turns with them."""
SHAPES = [(1, 8, 16), (64, 64, 64), (129, 264, 80), (1024, 1024, 1024), (4096, 7168, 2048)]


def _named(fmt: str, output: str, contract: str = "") -> Variant:
    (found,) = [
        v
        for v in wgmma.VARIANTS
        if (v.format, v.output, v.contract) == (fmt, output, contract)
    ]  # fmt: skip
    return found


@pytest.mark.parametrize(("variant", "tile"), CANDIDATES)
def test_every_candidate_compiles_without_spills_or_serialisation(
    variant: Variant, tile: Tile
) -> None:
    made, used = compiled(wgmma.build_tile(variant, tile))
    assert findings(used, tile) == []
    assert ".target sm_90a" in made.ptx
    # Every multiplication is the declared one, as wide as the tile or its part.
    declared = variant.instruction((9, 0))
    assert declared is not None
    depth, types = re.findall(r"k\d+", declared)[0], declared.split(".", 2)[2]
    width = min(tile.part, tile.block_n) if variant.promotion else tile.block_n
    found = set(re.findall(r"wgmma\.mma_async[.\w]+", made.ptx))
    assert found == {f"wgmma.mma_async.sync.aligned.m64n{width}{depth}.{types}"}
    assert ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group" in made.ptx) is True
    assert ("multicast::cluster" in made.ptx) == (tile.cluster > 1)
    assert ("add.rn.f32" in made.ptx or "add.f32" in made.ptx) == (variant.promotion is not None)


def test_a_tile_that_spills_is_found() -> None:
    wide = Tile(64, 256, 4, 1, part=256)
    _, used = compiled(wgmma.build_tile(_named("e4m3", "fp32", "promoted"), wide))
    assert any("spilled" in each for each in findings(used, wide))


def test_a_serialised_wgmma_is_found() -> None:
    log = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
    tile = TILES[0][0]
    used = resources.Resources(
        168, 0, 0, 0, 0, 3, max_threads_per_block=tile.threads, warnings=(log,)
    )
    assert findings(replace(used, warnings=()), tile) == []
    assert any("C7510" in each for each in findings(used, tile))


@pytest.mark.parametrize("tile", [t for t, _ in TILES])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_the_tiles_cover_c_once(tile: Tile, m: int, n: int, k: int) -> None:
    variant, dims = _named("bf16", "fp32"), {"m": m, "n": n, "k": k}
    plan = wgmma.plan_tile(variant, tile, dims)
    height, width = tile.block_m * tile.pair_m, tile.block_n * tile.pair_n
    rows, columns = -(-m // height), -(-n // width)
    assert plan.grid == (rows * columns * tile.cluster, 1, 1)
    assert (rows - 1) * height < m <= rows * height
    assert plan.persistent
    assert plan.cluster == tile.cluster
    assert plan.block == (tile.threads, 1, 1)


@pytest.mark.parametrize("variant", wgmma.VARIANTS, ids=lambda v: f"{v.format}-{v.output}")
def test_boxes_are_a_swizzle_wide_and_within_tmas_limits(variant: Variant) -> None:
    for tile, _ in PROMOTED if variant.promotion else TILES:
        maps = {box.param: box for box in wgmma.boxes(variant, tile)}
        names = {p.name: p for p in wgmma.own_params(variant)}
        assert set(maps) == {p.name for p in names.values() if p.role in ("in", "out")}
        for name, box in maps.items():
            assert box.columns * names[name].dtype.itemsize == box.swizzle_bytes == 128
            assert 1 <= box.rows <= 256
        # What a block loads in one stage is what its barrier waits for.
        b = maps.get("b") or maps["b_transposed"]
        assert maps["a"].rows * tile.pair_n == tile.block_m
        if wgmma.n_major(variant):
            assert b.rows * storage_dtype(variant.format).itemsize == 128
        else:
            assert b.rows * tile.pair_m == tile.block_n


def test_the_launch_plan_is_the_chosen_tiles() -> None:
    (spec,) = [s for s in registry.specs("matmul") if s.name == "wgmma"]
    assert spec.build is not None
    assert spec.plan is not None
    for variant in wgmma.VARIANTS:
        for m, n, k in SHAPES:
            dims = {"m": m, "n": n, "k": k}
            tile = wgmma.tile(variant, dims)
            assert spec.build(variant, (9, 0), dims) == wgmma.build_tile(variant, tile)
            assert spec.plan(variant, (9, 0), dims) == wgmma.plan_tile(variant, tile, dims)


# -- choice ----------------------------------------------------------------------------------------


def _square(size: int) -> dict[str, int]:
    return {"m": size, "n": size, "k": size}


def test_small_products_take_small_tiles_and_large_ones_pairs() -> None:
    bf16 = _named("bf16", "bf16")
    small, middle, large = (wgmma.tile(bf16, _square(size)) for size in (1024, 2048, 8192))
    assert (small.block_m, small.block_n, small.cluster) == (64, 128, 1)
    assert (middle.block_m, middle.block_n, middle.cluster) == (128, 256, 1)
    assert (large.block_m, large.block_n, large.cluster) == (128, 256, 2)


def test_a_card_with_fewer_multiprocessors_chooses_for_itself() -> None:
    bf16, dims = _named("bf16", "bf16"), _square(2048)
    (spec,) = [s for s in registry.specs("matmul") if s.name == "wgmma"]
    case = registry.Case(spec, bf16)
    own = [case.on(count).spec.plan(bf16, (9, 0), dims) for count in (None, 132, 66, 8)]  # type: ignore[misc]
    assert own[0] == own[1]
    for count, plan in zip((132, 66, 8), own[1:], strict=True):
        tile = wgmma.tile(bf16, dims, count)
        assert plan == wgmma.plan_tile(bf16, tile, dims)
    assert isinstance(own[0], LaunchPlan)
    # 128 tiles are one round of 132 multiprocessors and two of 66.
    single = TILES[1][0]
    assert [single.rounds(dims, count) for count in (132, 128, 66, 64)] == [1, 1, 2, 2]
    pair = TILES[0][0]
    assert [pair.rounds(dims, count) for count in (132, 128, 127)] == [1, 1, 2]


def test_the_choice_is_the_least_time() -> None:
    quick, slow = Tile(64, 64, 2, 1), Tile(128, 128, 2, 2)
    rows = ((quick, Cost(1.0, 1.0)), (slow, Cost(1.0, 3.9)))
    dims = {"m": 128, "n": 128, "k": 128}
    # One multiprocessor: four small tiles take 4 rounds of 1, one large one a round of 3.9.
    assert wgmma_tiles.choose(rows, dims, 2, 1) is slow
    assert wgmma_tiles.choose(rows, dims, 2, 4) is quick
    for share, chosen in ((0.004, slow), (0.006, quick)):  # of what measuring resolves
        near = ((slow, Cost(0.0, 1.0 + share)), (quick, Cost(0.0, 1.0)))
        assert wgmma_tiles.choose(near, dims | {"m": 1, "n": 1}, 2, 132) is chosen
    assert rows[0][1].microseconds(quick, dims, 2, 1) == 9.0


# -- declarations ----------------------------------------------------------------------------------


def test_rows_run_on_sm_90_alone() -> None:
    case = next(registry.cases("matmul", kernel="wgmma"))
    for kind in ("cuda", "emulated"):
        assert case.refusal((9, 0), kind, _square(64)) is None
    assert case.refusal((8, 9), "cuda") == "needs sm_90"
    for newer in ((10, 0), (12, 0)):
        reason = case.refusal(newer, "cuda")
        assert reason is not None
        assert "sm_90 alone" in reason


@pytest.mark.parametrize(
    ("fmt", "output", "contract", "dims", "matrix"),
    [
        ("bf16", "fp32", "", (8, 8, 4), "A"),
        ("bf16", "fp32", "", (8, 4, 8), "B"),
        ("bf16", "bf16", "", (8191, 4095, 2049), "A"),
        ("tf32", "fp32", "", (8, 8, 2), "A"),
        ("tf32", "fp32", "", (8, 6, 8), "C"),
        ("e4m3", "fp32", "fast", (8, 8, 24), "A"),
        ("e4m3", "bf16", "fast", (8, 4, 16), "C"),
    ],
)
def test_strides_that_tma_cannot_take_are_refused_with_a_way_out(
    fmt: str, output: str, contract: str, dims: tuple[int, int, int], matrix: str
) -> None:
    case = registry.Case(
        next(s for s in registry.specs("matmul") if s.name == "wgmma"),
        _named(fmt, output, contract),
    )
    reason = case.refusal((9, 0), "cuda", dict(zip("mnk", dims, strict=True)))
    assert reason is not None
    assert f"rows of {matrix} lie" in reason
    assert "multiple of 16" in reason
    assert "use the mma kernel" in reason


@pytest.mark.parametrize("variant", wgmma.VARIANTS, ids=lambda v: f"{v.format}-{v.output}")
def test_the_smallest_strides_run(variant: Variant) -> None:
    size, out = (storage_dtype(f).itemsize for f in (variant.format, variant.output))
    n = 16 // size if wgmma.n_major(variant) else 16 // out
    assert (
        wgmma.supports(variant, (9, 0), {"m": 1, "n": max(n, 16 // out), "k": 16 // size}) is None
    )
    reason = wgmma.supports(variant, (9, 0), {"m": 2**31 - 1023, "n": 64, "k": 64})
    assert reason is not None
    assert "32-bit" in reason


def test_fast_and_promoted_are_rows_of_their_own() -> None:
    labels = [registry.Case(s, v).label for s in registry.specs("matmul") for v in s.variants]
    assert len(set(labels)) == len(labels)
    for variant in wgmma.VARIANTS:
        eight = get(variant.format).bits == 8
        assert (variant.contract != "") == eight
        assert variant.promotion == (128 if variant.contract == "promoted" else None)
        assert (wgmma.steps(variant, (9, 0), _square(64)) == ()) == wgmma.n_major(variant)
