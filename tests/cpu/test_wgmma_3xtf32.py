"""3xTF32 by wgmma, as far as it goes without a card: what is compiled, what lies where, and how B
is turned and split, from the PTX of that very launch.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from wgmma_compiled import HOPPER, compiled, findings

from gpulab import registry
from gpulab.kernels.matmul import wgmma_3xtf32
from gpulab.kernels.matmul.wgmma_3xtf32 import TILE, Tile
from gpulab.numerics import split
from gpulab.runtime.emulated import EmulatedDevice
from gpulab.runtime.objects import DeviceArray

(CASE,) = registry.cases("matmul", kernel="wgmma_3xtf32")
SPEC, VARIANT, CARD = CASE.spec, CASE.variant, (9, 0)
SHAPES = [(1, 4, 4), (64, 64, 64), (129, 268, 84), (1024, 1024, 1024), (4096, 7168, 2048)]


def dims(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k}


@pytest.fixture(scope="module")
def kernel() -> tuple[str, list[str]]:
    """The PTX, and what is wrong with the code."""
    made, used = compiled(wgmma_3xtf32.build(VARIANT, CARD, dims(64, 64, 64)))
    return made.ptx, findings(used, TILE)


def test_it_compiles_without_spills_or_serialisation(kernel: tuple[str, list[str]]) -> None:
    ptx, found = kernel
    assert found == []
    assert ".target sm_90a" in ptx


def test_three_of_the_declared_multiplications_stand_for_one_and_take_a_from_registers(
    kernel: tuple[str, list[str]],
) -> None:
    declared = VARIANT.instruction(CARD)
    assert declared is not None
    shape, types = re.fullmatch(r"wgmma\.(m\d+n\d+k\d+)\.(.+)", declared).groups()  # type: ignore[union-attr]
    found = re.findall(r"(wgmma\.mma_async[.\w]+) \{[^}]*\}, (\{[^}]*\})?", kernel[0])
    assert {name for name, _ in found} == {f"wgmma.mma_async.sync.aligned.{shape}.{types}"}
    assert all(len(a.split(",")) == 4 for _, a in found)
    steps = wgmma_3xtf32.SLAB // wgmma_3xtf32.DEPTH
    assert len(found) == split.PRODUCTS * steps
    assert "multicast::cluster" in kernel[0]


def test_a_tile_that_does_not_fit_is_found() -> None:
    wide = Tile(block_n=64, stages=8)
    assert wide.shared_bytes > HOPPER.shared_per_block_bytes
    _, used = compiled(
        registry.RawBuild(
            wgmma_3xtf32.SOURCE, f"matmul_wgmma_3xtf32<{wide.cpp}>", feature_target=True
        )
    )
    assert any("shared memory" in each for each in findings(used, wide))


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_the_tiles_cover_c_once(m: int, n: int, k: int) -> None:
    plan = wgmma_3xtf32.plan(VARIANT, CARD, dims(m, n, k))
    height, width = TILE.block_m * TILE.pair_m, TILE.block_n
    rows, columns = -(-m // height), -(-n // width)
    assert (rows - 1) * height < m <= rows * height
    assert plan.grid == (rows * columns * TILE.pair_m, 1, 1)
    assert plan.persistent
    assert plan.cluster == TILE.pair_m


def test_boxes_are_a_swizzle_wide_and_fill_a_stage() -> None:
    plan = wgmma_3xtf32.plan(VARIANT, CARD, dims(64, 64, 64))
    assert [box.param for box in plan.maps] == ["a", "b_high", "b_low"]
    assert all(box.columns * 4 == box.swizzle_bytes == 128 for box in plan.maps)
    a, *parts = (box.rows * 128 for box in plan.maps)
    barriers = 2 * 8
    assert plan.shared_bytes == TILE.stages * (a + TILE.pair_m * sum(parts) + barriers)


def test_a_and_b_are_passed_as_they_are_too() -> None:
    """For results that are not finite; an array that is named twice is its map first."""
    names = [p.name for p in wgmma_3xtf32.own_params(VARIANT)]
    assert names == ["a", "b_high", "b_low", "a", "b", "c", "m", "n", "k"]


@pytest.mark.parametrize(("k", "n"), [(4, 4), (64, 64), (36, 132), (140, 68)])
def test_b_is_turned_and_split(k: int, n: int) -> None:
    device = EmulatedDevice(CARD)
    (step,) = wgmma_3xtf32.steps(VARIANT, CARD, dims(1, n, k))
    rng = np.random.default_rng(k)
    b = (rng.standard_normal((k, n)) * np.exp2(rng.uniform(-140, 120, (k, n)))).astype("f4")
    out = [device.empty((n, k), b.dtype, name=name) for name in wgmma_3xtf32.PARTS]
    args: list[DeviceArray | int | float] = [device.upload(b, "b"), *out, k, n]
    device.bind(device.build(step.build, step.params), step.plan, args)()
    high, low = (device.download(each) for each in out)
    want = split.split(b.T)
    assert np.array_equal(high, want[0])
    # The tensor core leaves out the low 13 bits: the launch need not.
    kept = np.uint32(0xFFFFE000)
    assert np.array_equal(low.view(np.uint32) & kept, want[1].view(np.uint32))
    assert np.array_equal(high.astype("f8") + low.astype("f8") / split.LOW_SCALE, b.T.astype("f8"))


@pytest.mark.parametrize(
    ("m", "n", "k", "word"),
    [(8, 8, 6, "A lie 24 bytes"), (8, 6, 8, "B lie 24 bytes"), (2**31 - 1023, 8, 8, "32-bit")],
)
def test_what_it_cannot_take_is_refused_with_a_way_out(m: int, n: int, k: int, word: str) -> None:
    reason = CASE.refusal(CARD, "cuda", dims(m, n, k))
    assert reason is not None
    assert word in reason
    assert "32-bit" in reason or "mma_3xtf32" in reason
    assert CASE.refusal(CARD, "cuda", dims(1, 4, 4)) is None


def test_it_runs_on_9_0_alone() -> None:
    assert CASE.refusal(CARD, "emulated") is None
    assert CASE.refusal((8, 9), "cuda") == "needs sm_90"
    assert "sm_90 alone" in str(CASE.refusal((10, 0), "cuda"))
