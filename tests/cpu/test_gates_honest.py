"""No honest kernel is ever failed: orders of summation, formats, sizes, families and seeds."""

from itertools import product

import numpy as np
import pytest
from gate_kernels import MMA, ORDERS, WGMMA_E4M3, Row, chained, exact, runner

from gpulab.numerics.cache import Cache
from gpulab.numerics.inputs import families_for
from gpulab.ops.matmul import MATMUL

SIZES = (1, 15, 16, 17, 64, 255, 256, 257)
SEEDS = range(10)
FORMATS = ("fp32", "fp16", "bf16", "e4m3", "e5m2")


def judged(row, kernel, dims, seed, *, raw=False, capability=(8, 9), cache=None, **options):
    m, n, k = dims
    return MATMUL.judge(
        row,
        {"m": m, "n": n, "k": k},
        runner(row, kernel, raw),
        capability=capability,
        seed=seed,
        cache=cache,
        **options,
    )


def shape(size, seed):
    """Square where that is cheap; else a few rows and columns, not the same number of each."""
    return (size, size, size) if size <= 64 else (9 + seed, 21 - seed, size)


SHARES = [2, pytest.param(1, marks=pytest.mark.whole)]
"""In `make test` half as many seeds as in `make test-whole`."""


def picked(seed, at, size, share):
    """A format has every second seed at small sizes, every fourth at large ones, or a share of
    these; the real kernels on all pairs of family, size and seed are
    ``scripts/cover_honest.py``'s."""
    return (seed + at) % ((2 if size <= 64 else 4) * share) == 0


def assert_passes(judgement, *what):
    assert judgement.verdict == "PASS", (*what, [str(r) for r in judgement.reasons])


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("size", SIZES)
def test_orders_of_a_float32_sum(size, share):
    names = list(ORDERS)
    for seed, (at, fmt) in product(SEEDS, enumerate(FORMATS)):
        if not picked(seed, at, size, share):
            continue
        cache = Cache()
        for order in (names[(seed + at) % len(names)], names[(seed + at + 3) % len(names)]):
            j = judged(
                Row(fmt), ORDERS[order], shape(size, seed), seed,
                cache=cache, families=families_for(fmt),
            )  # fmt: skip
            assert_passes(j, size, seed, fmt, order)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("size", SIZES)
def test_tensor_cores(size, share):
    cards = ((8, 0), (8, 9), (9, 0), (12, 0))
    for seed, (at, (fmt, instruction)) in product(SEEDS, enumerate(MMA.items())):
        if not picked(seed, at, size, share):
            continue
        options = [c for c in cards if c >= (8, 9) or fmt not in ("e4m3", "e5m2")]
        card = options[seed % len(options)]
        j = judged(
            Row(fmt, tensor_core=instruction), chained(instruction, card), shape(size, seed), seed,
            raw=True, capability=card, families=families_for(fmt),
        )  # fmt: skip
        assert_passes(j, size, seed, fmt, card)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("size", [17, 257])
def test_thirteen_fraction_bits_are_judged_as_declared(size, share):
    row, card = Row("e4m3", tensor_core=WGMMA_E4M3), (9, 0)
    for seed in SEEDS[::share]:
        j = judged(
            row, chained(WGMMA_E4M3, card), shape(size, seed), seed, raw=True, capability=card
        )
        assert_passes(j, size, seed)


@pytest.mark.parametrize(("fmt", "output"), [("fp16", "fp16"), ("bf16", "bf16"), ("fp32", "fp32")])
@pytest.mark.parametrize("size", [1, 17, 257])
@pytest.mark.parametrize("share", SHARES)
def test_full_effort_and_narrow_outputs(fmt, output, size, share):
    for seed in SEEDS[::share]:
        order = list(ORDERS)[seed % len(ORDERS)]
        j = judged(Row(fmt, output=output), ORDERS[order], shape(size, seed), seed, effort="full")
        assert_passes(j, size, seed, fmt, order)
        assert j.runs == 9


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("size", SIZES)
def test_int8(size, share):
    for seed in SEEDS[::share]:
        row = Row("int8", "int32", "int32")
        j = judged(
            row, exact, shape(size, seed), seed, families=families_for("int8"), effort="full"
        )
        assert_passes(j, size, seed)


def test_int8_sums_wrap_at_32_bits():
    j = judged(Row("int8", "int32", "int32"), exact, (2, 3, 1 << 18), 0, families=["uniform"])
    assert np.iinfo(np.int32).max < (1 << 18) * 127 * 127
    assert_passes(j)


@pytest.mark.parametrize("k", [2048, 8192])
@pytest.mark.parametrize("fmt", ["fp32", "fp16"])
def test_long_sums(k, fmt):
    for order in ("sequential", "backwards", "split_k"):
        assert_passes(judged(Row(fmt), ORDERS[order], (12, 20, k), 0), k, fmt, order)


@pytest.mark.parametrize(
    "dims", [(1, 257, 33), (257, 1, 33), (1, 1, 257), (3, 130, 1), (97, 5, 97)]
)
@pytest.mark.parametrize("share", SHARES)
def test_thin_shapes(dims, share):
    for seed, fmt in product(range(0, 4, share), ("fp32", "fp16")):
        for order in ("sequential", "backwards", "split_k"):
            j = judged(Row(fmt), ORDERS[order], dims, seed, families=families_for(fmt))
            assert_passes(j, dims, seed, fmt, order)


@pytest.mark.parametrize("size", [255, 256, 257])
def test_whole_squares(size):
    for fmt in ("fp32", "bf16"):
        assert_passes(judged(Row(fmt), ORDERS["sequential"], (size, size, size), 0), size, fmt)
