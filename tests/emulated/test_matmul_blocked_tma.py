"""blocked_tma, emulated as on 9.0: the bits of blocked with every tile, whole and halved; what is
taken out shows."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changed_sources import changed
from numpy.typing import NDArray

from gpulab import arch, registry
from gpulab.errors import FaultError
from gpulab.kernels.matmul import blocked_tma
from gpulab.kernels.matmul.wgmma_tiles import H200_MULTIPROCESSORS
from gpulab.lab.runner import KernelRunner
from gpulab.registry import Case, RawBuild
from gpulab.runtime import assembly
from gpulab.runtime.emulated import EmulatedDevice

HOPPER = (9, 0)
(CASE,) = registry.cases("matmul", kernel="blocked_tma")
(BLOCKED,) = registry.cases("matmul", kernel="blocked")
SIZES = {112: {"m": 130, "n": 132, "k": 148}, 128: {"m": 250, "n": 132, "k": 36}}
"""By rows of the tile that one multiprocessor takes: a second tile with little in it in m and n, k
that ends within a step; more steps than there are stages twice over, and fewer."""


def operands(dims: dict[str, int]) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(3)
    shapes = {"a": (dims["m"], dims["k"]), "b": (dims["k"], dims["n"])}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def product(case: Case, dims: dict[str, int], device: EmulatedDevice) -> NDArray[Any]:
    """C of a card of one multiprocessor, as bits."""
    result = KernelRunner(case.on(1), device, dims)(operands(dims))
    assert result.inputs_unchanged
    return result.outputs["c"].view(np.uint32)


@pytest.mark.parametrize("rows", SIZES)
def test_the_bits_are_those_of_blocked(rows: int) -> None:
    dims, device = SIZES[rows], EmulatedDevice(HOPPER, sanitize=True)
    assert blocked_tma.tile(dims, 1).block_m == rows
    np.testing.assert_array_equal(product(CASE, dims, device), product(BLOCKED, dims, device))


HALVED = {
    (112, 260, 100): (
        2,
        2,
    ),  # the third tile ends 36 rows, its right half 36 columns from its begin
    (128, 350, 36): (2, 1),  # the third tile's right half has nothing
    (112, 20, 100): (0, 2),  # the only tile
}
"""By rows of the tile, m and n: blocks that compute a whole tile and half a tile of C, on a card of
one multiprocessor, which has two places."""


@pytest.mark.parametrize(("rows", "m", "n"), HALVED)
def test_halves_cover_the_last_tile_once(rows: int, m: int, n: int) -> None:
    dims, device = {"m": m, "n": n, "k": 20}, EmulatedDevice(HOPPER, sanitize=True, counters=True)
    assert blocked_tma.tile(dims, 1).block_m == rows
    runner = KernelRunner(CASE.on(1), device, dims)
    bits = runner(operands(dims)).outputs["c"].view(np.uint32)
    np.testing.assert_array_equal(bits, product(BLOCKED, dims, device))
    counted, (whole, halves), steps = runner.last_report.counters, HALVED[rows, m, n], 2
    assert counted is not None
    assert counted["global_store_bytes"] == 4 * m * n, "nothing is stored twice"
    assert counted["tensor_copy_boxes"] == (whole + halves) * steps * 2
    products = (whole * 128 + halves * 64) * rows * steps * 16
    assert counted["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"] == products


def test_the_tiles_of_a_last_round_are_halved_where_the_halves_fit() -> None:
    """4096 is 1184 tiles on 264 places: four rounds and 128 more, whose 256 halves fit; 8192 is
    17 rounds and 248; 2048 is 256 in one. On two multiprocessors there are four places."""
    spec = CASE.on(132).spec
    assert spec.plan is not None
    for size, blocks in ((4096, 1184 + 128), (8192, 4736), (2048, 256)):
        plan = spec.plan(CASE.variant, HOPPER, dict.fromkeys("mnk", size))
        assert plan.grid == (blocks, 1, 1)
    for tile in blocked_tma.TILES:
        rows = [{"m": tile.block_m * tiles, "n": 128} for tiles in range(1, 8)]
        assert [tile.halved(dims, 2) for dims in rows] == [1, 2, 0, 0, 1, 2, 0]


@pytest.mark.parametrize("rows", SIZES)
def test_no_tile_spills_and_min_blocks_fit_one_sm(rows: int) -> None:
    spec, dims, card = CASE.on(1).spec, SIZES[rows], arch.get(HOPPER)
    assert spec.build is not None
    build = spec.build(CASE.variant, HOPPER, dims)
    assert isinstance(build, RawBuild)
    used = assembly.prepare(build, spec.params(CASE.variant), HOPPER).resources
    assert used is not None
    assert (used.spill_bytes, used.stack_bytes, used.warnings) == (0, 0, ())
    chosen = blocked_tma.tile(dims, 1)
    assert used.registers * chosen.threads * chosen.min_blocks <= card.registers_per_sm
    shared = chosen.shared_bytes + card.shared_reserved_bytes
    assert chosen.min_blocks * shared <= card.shared_per_sm_bytes
    assert chosen.threads * chosen.thread_m * chosen.thread_n == chosen.block_m * chosen.block_n


FFMA = 0x7223
"""The lower 16 bits of a multiply-add of four registers, which every thread executes."""
RECORDS = Path(__file__).resolve().parents[2] / "docs" / "results" / "matmul_large.jsonl"


def instructions(cubin: bytes) -> list[int]:
    """The kernel's machine code, 128 bits each: the one section called ``.text.<name>``."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    strings = sections[names][4]
    (code,) = (s for s in sections if cubin.startswith(b".text.", strings + s[0]))
    text = cubin[code[4] : code[4] + code[5]]
    return [int.from_bytes(text[i : i + 16], "little") for i in range(0, len(text), 16)]


BRANCH = 0x947
"""The lower 12 bits of a branch."""


def branch_target(code: list[int], at: int) -> int:
    """Where a branch goes: bits 34 to 81, then 16 to 23, count quarters of instructions from the
    next one on."""
    high, low = code[at] >> 34 & (1 << 48) - 1, code[at] >> 16 & 255
    return at + 1 + ((high - (high >> 47 << 48) << 8) + low) // 4


def loop_of(code: list[int], multiply_adds: int) -> list[int]:
    """The shortest loop that has so many."""
    ends = (i for i, word in enumerate(code) if word & 0xFFF == BRANCH)
    loops = (code[branch_target(code, i) : i + 1] for i in ends if branch_target(code, i) <= i)
    return min(
        (loop for loop in loops if sum(w & 0xFFFF == FFMA for w in loop) == multiply_adds), key=len
    )


def clocks_of_a_step(code: list[int]) -> int:
    """Clocks in which a scheduler issues a warp's step: one an instruction, one more where a
    multiply-add reads two registers of one bank (even, odd), two more where three. A register that
    the multiply-add before keeps at the same place (bits 122 to 124) is not read."""
    found = [i for i, word in enumerate(code) if word & 0xFFFF == FFMA]
    clocks, kept = 0, {}
    for word in code[found[0] : found[-1] + 1]:
        clocks, before, kept = clocks + 1, kept, {}
        if word & 0xFFFF == FFMA:
            read = [(slot, word >> bit & 255) for slot, bit in enumerate((24, 32, 64))]
            banks = [number % 2 for slot, number in read if before.get(slot) != number]
            clocks += max(banks.count(0), banks.count(1), 1) - 1
            kept = {slot: number for slot, number in read if word >> 122 + slot & 1}
    return clocks


@pytest.mark.parametrize("rows", SIZES)
def test_the_clocks_of_a_tile_are_those_of_its_machine_code(rows: int) -> None:
    """A tile's four warps lie on the four schedulers: each issues one step of each tile. Two halves
    of a tile take little more."""
    spec = CASE.on(1).spec
    assert spec.build is not None
    build = spec.build(CASE.variant, HOPPER, SIZES[rows])
    assert isinstance(build, RawBuild)
    path = assembly.prepare(build, spec.params(CASE.variant), HOPPER).cubin_path
    assert path is not None
    tile = blocked_tma.tile(SIZES[rows], 1)
    code, products = instructions(path.read_bytes()), tile.thread_m * tile.thread_n * tile.block_k
    whole, half = (clocks_of_a_step(loop_of(code, count)) for count in (products, products // 2))
    assert whole / tile.block_k == pytest.approx(blocked_tma.TILES[tile], rel=0.01)
    assert whole < 2 * half < 1.15 * whole


def test_a_card_takes_little_more_than_the_clocks() -> None:
    """Of the recorded products from 2048 on; at less the start of a launch counts."""
    records = (json.loads(line) for line in RECORDS.read_text().splitlines())
    measured = set()
    for record in (r for r in records if r["kernel"] == "blocked_tma" and r["dims"]["k"] >= 2048):
        tile = blocked_tma.tile(record["dims"])
        rounds = -(-tile.blocks(record["dims"]) // H200_MULTIPROCESSORS)
        khz = 1e3 * record["timing"]["telemetry_after"]["sm_clock_mhz"]
        clocks = record["time_ms"]["median"] * khz / rounds / record["dims"]["k"]
        assert 1 < clocks / blocked_tma.TILES[tile] < 1.08
        measured.add(tile)
    assert measured == set(blocked_tma.TILES)


CHANGES = {
    "full": ("ptx::mbarrier_wait(ring.full(stage), parity);", ""),
    "swizzle": ("return (row >> 1) & 3;", "return row & 3;"),
    "rows": ("if (row + i * Tile::kLanesM >= m) return;", ""),
    "columns": ("if (first >= n) continue;", ""),
    "half": ("column += half % 2 * (kBlockN / 2);", ""),
}
"""A wait, where pieces of A lie, what must not be read or written, where the right half begins."""
SILENT = {"swizzle", "half"}
"""Gives other numbers; all else is a fault."""


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_taken_out_is_missed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = changed("matmul/blocked_tma.cu", *CHANGES[name], tmp_path, monkeypatch)
    dims = SIZES[112] | {"m": 20, "n": 100}
    device = EmulatedDevice(HOPPER, store=store)
    if name in SILENT:
        given = operands(dims)
        got = product(CASE, dims, device).view(np.float32)
        assert not np.allclose(got, given["a"] @ given["b"], rtol=0.1, atol=0.1)
        return
    with pytest.raises(FaultError):
        product(CASE, dims, device)


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({"m": 3, "n": 6, "k": 8}, "rows of B and C lie 24 bytes apart"),
        ({"m": 3, "n": 8, "k": 7}, "rows of A lie 28 bytes apart"),
        ({"m": 2**31 - 1, "n": 4, "k": 4}, "32-bit"),
        ({"m": 2**30, "n": 2**29, "k": 4}, "grid.x"),
    ],
)
def test_what_tensor_copies_cannot_take_is_refused(dims: dict[str, int], said: str) -> None:
    reason = CASE.refusal(HOPPER, "cuda", dims)
    assert reason is not None
    assert said in reason
    assert ("use the blocked kernel" in reason) == ("apart" in said)
    assert CASE.refusal(HOPPER, "cuda", dict.fromkeys(dims, 4096)) is None


def test_the_tile_follows_from_the_rounds_that_a_card_needs() -> None:
    """2048 in tiles of 128 rows is 256 tiles, two rounds of 132; of 112 rows 304, three."""
    rows = [blocked_tma.tile(dict.fromkeys("mnk", s)).block_m for s in (1024, 2048, 4096, 8192)]
    assert rows == [112, 128, 112, 112]
    six_or_five = {"m": 600, "n": 128, "k": 64}  # their clocks cannot be told apart
    assert blocked_tma.tile(six_or_five, 1).block_m == 112
    assert blocked_tma.tile(dict.fromkeys("mnk", 2048), 160).block_m == 112
    for_few = CASE.on(1).spec
    assert for_few.build is not None
    assert for_few.plan is not None
    dims = SIZES[128]
    build = for_few.build(CASE.variant, HOPPER, dims)
    assert isinstance(build, RawBuild)
    assert build.entry == "matmul_blocked_tma<128, 128, 16, 2, 2, 8, 16, 4, 2>"
    assert for_few.plan(CASE.variant, HOPPER, dims).grid == (4, 1, 1)
    assert replace(CASE, spec=for_few).refusal((10, 0), "cuda") == "made for sm_90 alone"
