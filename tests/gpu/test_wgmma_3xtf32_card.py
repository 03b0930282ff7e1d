"""3xTF32 by wgmma on a card of capability 9.0: exact on odd shapes, the declared sums bit for bit,
any value of float32, and judged rows.
"""

import numpy as np
import pytest
from runtime_card import CONNECTION

from gpulab import registry
from gpulab.lab import evaluate
from gpulab.lab.runner import KernelRunner
from gpulab.numerics import split, tensorcore
from gpulab.runtime.cuda import CudaDevice

pytestmark = pytest.mark.gpu

if CONNECTION.card.capability != (9, 0):
    pytest.skip(f"wgmma is sm_90a's; this is {CONNECTION.card.name}", allow_module_level=True)

(CASE,) = registry.cases("matmul", kernel="wgmma_3xtf32")
SHAPES = [  # m, n, k: less than a tile, tails in each dim, tiles outside of C, long and short K
    (1, 4, 4), (64, 64, 64), (129, 268, 84), (300, 532, 212), (257, 1044, 140), (1000, 332, 16),
    (128, 128, 4096), (2100, 4372, 272),
]  # fmt: skip
LARGEST = 4
"""Integers up to it, and all sums of their products, are exact in every accumulator here."""


@pytest.fixture(scope="module")
def card():
    return CudaDevice(connection=CONNECTION)


def run(card, a, b, poison=0xA5):
    (m, k), n = a.shape, b.shape[1]
    result = KernelRunner(CASE, card, {"m": m, "n": n, "k": k})({"a": a, "b": b}, poison=poison)
    assert result.inputs_unchanged
    return result.outputs["c"]


@pytest.mark.parametrize("dims", SHAPES, ids=str)
def test_integers_are_exact_on_odd_shapes(card, dims):
    m, n, k = dims
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-LARGEST, LARGEST + 1, s).astype("f4") for s in ((m, k), (k, n)))
    want = a.astype("f8") @ b.astype("f8")
    for poison in (0xA5, 0x5A):
        assert np.array_equal(run(card, a, b, poison), want)


@pytest.mark.parametrize("k", [8, 40, 416])
def test_bits_equal_the_declared_sums(card, k):
    """Exponents spread, subnormal operands too: every bit is foretold."""
    rng = np.random.default_rng(k)
    for low_a, low_b in ((-6, -6), (-132, 60)):
        a, b = (
            (rng.choice([-1.0, 1.0], s) * np.exp2(rng.uniform(low, low + 8, s))).astype("f4")
            for s, low in (((70, k), low_a), ((k, 60), low_b))
        )
        beyond = -k % 8
        rules = tensorcore.model(CASE.variant.instruction((9, 0)), (9, 0))
        whole = np.pad(a, ((0, 0), (0, beyond))), np.pad(b, ((0, beyond), (0, 0)))
        assert np.array_equal(run(card, a, b), split.sums(rules, *whole, CASE.variant.promotion))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38, 2.0**127], ids=str)
def test_infinities_nan_and_the_largest_numbers_reach_their_results_and_no_other(card, value):
    rng = np.random.default_rng(5)
    a = rng.standard_normal((150, 64)).astype("f4")
    b = (0.01 * rng.standard_normal((64, 140))).astype("f4")
    clean = run(card, a, b)
    a[3, 5] = a[140, 1] = b[2, 7] = value
    got = run(card, a, b)
    touched = np.zeros(got.shape, bool)
    touched[[3, 140]], touched[:, 7] = True, True
    with np.errstate(all="ignore"):
        want = (a.astype("f8") @ b.astype("f8")).astype("f4")
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
    assert np.array_equal(got[~touched], clean[~touched])
    there = touched & np.isfinite(want)
    assert np.allclose(got[there], want[there], rtol=1e-4, atol=1e-4)


def test_the_row_is_judged_right_and_repeats(card):
    for dims in ({"m": 300, "n": 532, "k": 1040}, {"m": 64, "n": 64, "k": 4096}):
        (record,) = evaluate.evaluate_all([CASE], card, dims, measured=False, effort="full")
        assert record["verdict"] == "PASS", record["reason"]
