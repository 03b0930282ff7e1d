"""wgmma and TMA on a card of capability 9.0: exact on odd shapes with every tile, the model's bits,
judged rows, refusals, and what the host spends."""

import time
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from runtime_card import CONNECTION

from gpulab import registry
from gpulab.formats import decode, encode
from gpulab.kernels.matmul import wgmma, wgmma_ladder
from gpulab.kernels.matmul.wgmma_tiles import CANDIDATES
from gpulab.lab import evaluate
from gpulab.lab.compiling import compile_ahead
from gpulab.lab.runner import KernelRunner
from gpulab.numerics import simulate
from gpulab.numerics.contract import Contract
from gpulab.registry import Case
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice

pytestmark = pytest.mark.gpu

if CONNECTION.card.capability != (9, 0):
    pytest.skip(f"wgmma is sm_90a's; this is {CONNECTION.card.name}", allow_module_level=True)

(SPEC,) = [s for s in registry.specs("matmul") if s.name == "wgmma"]
SHAPES = [  # m, n, k: one element of a tile, tails in each dim, several tiles, long and short K
    (1, 16, 16), (64, 64, 64), (129, 272, 80), (300, 528, 208), (257, 1040, 144), (1000, 336, 16),
    (128, 256, 1024), (640, 16, 2048), (2100, 4368, 272),
]  # fmt: skip
LARGEST = 4
"""Integers up to it, and all sums of their products, are exact in every accumulator here."""


def with_tile(variant, tile):
    """The row with one tile, whatever the shape."""
    spec = replace(
        SPEC,
        build=lambda v, c, d: wgmma.build_tile(v, tile),
        plan=lambda v, c, d: wgmma.plan_tile(v, tile, d),
        for_card=None,
    )
    return Case(spec, variant)


def tiles(variant):
    return [t for t in CANDIDATES if not variant.promotion or t.block_n >= t.part]


def name(variant):
    return f"{variant.format}-{variant.output}-{variant.contract}".rstrip("-")


@pytest.fixture(scope="module")
def card():
    device = CudaDevice(connection=CONNECTION)
    every = [with_tile(v, t) for v in wgmma.VARIANTS for t in tiles(v)]
    rungs = list(registry.cases("matmul", kernel=",".join(wgmma_ladder.LADDER)))
    compile_ahead([*every, *rungs], device, {"m": 64, "n": 64, "k": 64})
    return device


@cache
def product(dims):
    """Small integers a, b as float64, and their exact product."""
    m, n, k = dims
    rng = np.random.Generator(np.random.PCG64(m * 7 + n))
    a, b = (rng.integers(-LARGEST, LARGEST + 1, s).astype(np.float64) for s in ((m, k), (k, n)))
    return a, b, a @ b


@cache
def stored(fmt, dims):
    a, b, _ = product(dims)
    return {"a": encode(fmt, a), "b": encode(fmt, b)}


@cache
def wanted(output, dims):
    return encode(output, product(dims)[2])


def wrong(case, card, dims):
    """What is wrong with an exact product, in words; None where nothing is."""
    variant = case.variant
    runner = KernelRunner(case, card, dict(zip("mnk", dims, strict=True)))
    want = wanted(variant.output, dims)
    for poison in (0xA5, 0x5A):
        result = runner(stored(variant.format, dims), poison=poison)
        got = result.outputs["c"]
        if not result.inputs_unchanged:
            return "inputs changed"
        if not np.array_equal(got, want):
            bad = np.argwhere(got != want)
            at = tuple(bad[0])
            values = decode(variant.output, got[at]), decode(variant.output, want[at])
            return f"{len(bad)} of {got.size} wrong, first {at}: {values[0]} for {values[1]}"
    return None


@pytest.mark.parametrize("variant", wgmma.VARIANTS, ids=name)
def test_every_tile_is_exact_on_odd_shapes(card, variant):
    found = {
        (tile.key, dims): text
        for tile in tiles(variant)
        for dims in SHAPES
        if (text := wrong(with_tile(variant, tile), card, dims)) is not None
    }
    assert found == {}


@pytest.mark.parametrize("rung", wgmma_ladder.RUNGS, ids=lambda r: r.name)
def test_every_rung_is_exact_on_odd_shapes(card, rung):
    (case,) = registry.cases("matmul", kernel=rung.name)
    found = {dims: text for dims in SHAPES if (text := wrong(case, card, dims)) is not None}
    assert found == {}


def test_16_bit_rows_take_every_multiple_of_8(card):
    """The smallest step that TMA allows, on either side of tiles and boxes."""
    bf16 = next(v for v in wgmma.VARIANTS if (v.format, v.output) == ("bf16", "bf16"))
    for tile in tiles(bf16):
        for n in (8, 56, 72, 248, 264):
            for k in (8, 56, 72):
                assert wrong(with_tile(bf16, tile), card, (65, n, k)) is None, (tile.key, n, k)


@pytest.mark.parametrize("variant", wgmma.VARIANTS, ids=name)
def test_bits_equal_the_model_of_the_instruction(card, variant):
    """Exponents spread, signs mixed, K long enough for three promotions: every bit is foretold."""
    m, n, k = 64, 64, 416
    rng = np.random.Generator(np.random.PCG64(5))
    a, b = (
        encode(variant.format, rng.choice([-1.0, 1.0], s) * np.exp2(rng.uniform(-6, 2, s)))
        for s in ((m, k), (k, n))
    )
    contract = Contract.of(variant, (9, 0))
    whole = SimpleNamespace(a_codes=a, b_codes=b, k=k)
    foretold = contract.store(simulate.tensor_core(contract, contract.model, whole))
    runner = KernelRunner(Case(SPEC, variant), card, {"m": m, "n": n, "k": k})
    got = runner({"a": a, "b": b}).outputs["c"]
    bits = f"u{got.dtype.itemsize}"
    different = np.count_nonzero(got.view(bits) != foretold.view(bits))
    assert different == 0, f"{different} of {got.size} elements differ"


def test_every_row_is_judged_right_and_repeats(card):
    cases = list(registry.cases("matmul", kernel="wgmma"))
    for dims in ({"m": 300, "n": 528, "k": 1040}, {"m": 64, "n": 64, "k": 4096}):
        records = evaluate.evaluate_all(cases, card, dims, measured=False)
        assert [r["verdict"] for r in records] == ["PASS"] * len(cases), [
            (r["format"], r["output"], r["contract"], r["reason"])
            for r in records
            if r["verdict"] != "PASS"
        ]


def test_promotion_keeps_what_the_tensor_core_loses(card):
    """Positive data: the 13-bit accumulator cuts every addition, always in one direction."""
    dims = {"m": 64, "n": 64, "k": 8192}
    rng = np.random.Generator(np.random.PCG64(2))
    inputs = {
        key: encode("e4m3", rng.uniform(0.5, 1.5, shape))
        for key, shape in (("a", (64, 8192)), ("b", (8192, 64)))
    }
    exact = decode("e4m3", inputs["a"]) @ decode("e4m3", inputs["b"])
    errors = {}
    for variant in wgmma.VARIANTS:
        if (variant.format, variant.output) == ("e4m3", "fp32"):
            got = KernelRunner(Case(SPEC, variant), card, dims)(inputs).outputs["c"]
            errors[variant.contract] = float(np.abs(got - exact).max())
    assert 0 < errors["promoted"] < errors["fast"] / 10


def test_strides_of_odd_rows_are_refused_and_the_mma_row_takes_them(card):
    dims = {"m": 191, "n": 95, "k": 49}
    (refused, taken) = evaluate.evaluate_all(
        [
            next(registry.cases("matmul", kernel="wgmma", format="bf16")),
            next(registry.cases("matmul", kernel="mma", format="bf16")),
        ],
        card,
        dims,
        measured=False,
    )
    assert refused["verdict"] is None
    assert "use the mma kernel" in refused["reason"]
    assert taken["verdict"] == "PASS"


def test_the_first_call_takes_less_than_three_seconds(tmp_path):
    """Compiled from nothing, loaded, launched, waited for."""
    fresh = CudaDevice(connection=CONNECTION, store=Store(tmp_path / "cache"))
    case = next(registry.cases("matmul", kernel="wgmma", format="bf16"))
    dims = {"m": 256, "n": 256, "k": 256}
    inputs = {key: np.zeros((256, 256), np.uint16) for key in "ab"}
    begun = time.perf_counter()
    KernelRunner(case, fresh, dims)(inputs)
    assert time.perf_counter() - begun < 3.0


def test_a_later_call_costs_the_host_microseconds(card, record_property):
    case = next(registry.cases("matmul", kernel="wgmma", format="bf16"))
    runner = KernelRunner(case, card, {"m": 64, "n": 64, "k": 64})
    inputs = {key: np.zeros((64, 64), np.uint16) for key in "ab"}
    sent, out = runner.upload(inputs), runner.outputs()
    start = runner.bind({**sent, **out})
    calls = 1000
    for _ in range(100):
        start()
    card.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        start()
    took = (time.perf_counter() - begun) / calls
    card.synchronize()
    record_property("host_us_per_launch", round(took * 1e6, 2))
    print(f"host: {took * 1e6:.1f} us a launch")
    assert took < 100e-6
