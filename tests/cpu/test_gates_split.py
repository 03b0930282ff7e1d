"""float32 products by three of tf32: what a split loses, the bound, and the wrong kernels it fails.

The kernels here are written with fractions or from the instruction's own arithmetic, not from the
simulation that the gates use.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from gate_kernels import MMA, runner

from gpulab.numerics import probes, split, tensorcore
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Contract
from gpulab.ops.matmul import MATMUL
from gpulab.registry import Variant

ROW = Variant(
    "fp32", "fp32", "fp32", (8, 0), (((8, 0), MMA["tf32"]),), contract="3xtf32", promotion=8
)
PLAIN = Variant("fp32", "fp32", "fp32")
DIMS = {"m": 24, "n": 24, "k": 256}
LOWEST_NORMAL, LAST_BIT = 2.0**-126, Fraction(1, 2**149)
AMPERE, HOPPER = (8, 0), (9, 0)
CACHE = Cache()


def bits(value):
    return int(np.float32(value).view(np.uint32))


def nearest_tf32(x):
    """To 11 significant bits, at least 2^-136 apart, halves away from zero; float64 is exact."""
    exponent = np.maximum(np.frexp(x)[1] - 1, -126)
    unit = np.ldexp(1.0, exponent - 10)
    return np.copysign(np.floor(np.abs(x) / unit + 0.5) * unit, x)


def values():
    rng = np.random.default_rng(5)
    some = rng.integers(0, 0x7E000000, 4000, dtype=np.uint32)  # below 2^125
    rest = np.arange(1 << 13, dtype=np.uint32) + np.uint32(bits(1.0))  # every low part of one high
    tiny = rng.integers(1, 1 << 23, 1000, dtype=np.uint32)  # subnormal
    found = np.concatenate([some, rest, tiny]).view(np.float32)
    return found * rng.choice(np.float32([-1, 1]), found.size)


def test_the_parts_are_the_nearest_tf32_and_the_rest_within_one_ulp():
    x = values()
    high, low = split.split(x)
    assert np.array_equal(high, nearest_tf32(x.astype(np.float64)))
    assert not ((high.view(np.uint32) | low.view(np.uint32)) & 0x1FFF).any()  # as they are read
    worst = 0.0
    for one, hi, lo in zip(x.tolist(), high.tolist(), low.tolist(), strict=True):
        rest = Fraction(one) - Fraction(hi)
        left = abs(rest - Fraction(lo) / 2**13)
        if abs(one) >= LOWEST_NORMAL:
            worst = max(worst, float(left / abs(Fraction(one))))
            assert abs(rest) <= abs(Fraction(one)) / 2**11
        else:
            assert left <= LAST_BIT
    assert 0.9 * 2.0**-23 < worst <= 2.0**-23  # the bound is met, nearly
    assert (split.LOW_SHARE, split.PRODUCT_LOSS) == (2.0**-11, 2.0**-21)


def test_values_of_23_bits_are_held_whole_and_of_24_are_not():
    rng = np.random.default_rng(6)
    for width, held in ((23, True), (24, False)):
        x = (rng.integers(1 << (width - 1), 1 << width, 4000) | 1).astype(np.float32)
        high, low = split.split(x)
        assert np.array_equal(high + low / 2.0**13, x) == held
    assert Contract.of(ROW, AMPERE).operand_bits == 23


def product(a, b, drop=(), promotion=8, capability=AMPERE):
    """Sums as the row declares them, step by step, but for what is dropped."""

    def parts(x):
        hi = nearest_tf32(x).astype(np.float32)
        return hi, (x.astype(np.float32) - hi) * np.float32(8192)

    (ah, al), (bh, bl) = parts(a), parts(b)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    part = cross = np.zeros(total.shape, np.uint32)

    def add(left, right, to, k):
        codes = (np.ascontiguousarray(x).view(np.uint32) for x in (left[:, k], right[k]))
        return tensorcore.mma(*codes, to, MMA["tf32"], capability)

    for first in range(0, a.shape[1], 8):
        k = slice(first, first + 8)
        if "lo hi" not in drop:
            cross = add(al, bh, cross, k)
        if "hi lo" not in drop:
            cross = add(ah, bl, cross, k)
        part = add(ah, bh, part, k)
        if promotion and (first + 8) % promotion == 0:
            total, part = total + part.view(np.float32), np.zeros_like(part)
    total = total + part.view(np.float32)
    return total.astype(np.float64) + cross.view(np.float32).astype(np.float64) / 8192


def judged(kernel, dims=DIMS, row=ROW, **options):
    options = {"capability": AMPERE, "cache": CACHE} | options
    return MATMUL.judge(row, dims, runner(row, kernel), **options)


def test_the_declared_sums_pass_and_are_the_simulation_bit_for_bit():
    found = judged(product)
    assert found.verdict == "PASS", found.reasons
    assert {c.mutant: c.status for c in found.power}["low_a_dropped"] == "caught"
    assert {c.mutant: c.status for c in found.power}["low_b_dropped"] == "caught"
    assert {c.mutant: c.status for c in found.power}["lower_inputs"] == "caught"
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((9, 40), (40, 11)))
    for capability in (AMPERE, HOPPER):
        rules = tensorcore.model(MMA["tf32"], capability)
        mine = product(a, b, capability=capability).astype(np.float32)
        assert np.array_equal(split.sums(rules, a, b), mine)


def test_sums_of_two_instructions_pass_as_declared():
    declared = replace(ROW, promotion=16)

    def kernel(a, b):
        return product(a, b, promotion=16, capability=HOPPER)

    found = judged(kernel, row=declared, capability=HOPPER)
    assert found.verdict == "PASS", found.reasons
    rng = np.random.default_rng(9)
    rules = tensorcore.model(MMA["tf32"], HOPPER)
    for k in (8, 40, 64):  # the last sum of 8 terms, or of 16
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((9, k), (k, 11)))
        mine = kernel(a, b).astype(np.float32)
        assert np.array_equal(split.sums(rules, a, b, 16), mine)
        assert np.array_equal(split.sums(rules, a, b), mine) == (k == 8)
    # N = 8 and F = 25: a block loses 2 + 9 / 2 units of 2^-24.
    k, u = DIMS["k"], 2.0**-24
    main = (0.4 * 16 / 8 + 1) * 6.5 * u + 4 * (k / 16) ** 0.5 * u
    cross = 2.0**-10 * (0.4 * 2 * k / 8 + 1) * 6.5 * u
    assert Contract.of(declared, HOPPER).allowance(k).relative == pytest.approx(
        2.0**-21 + main + cross + u, rel=1e-12
    )


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        (lambda a, b: product(a, b, drop=("lo hi", "hi lo")), "exact-probe"),  # one tf32 product
        (lambda a, b: product(a, b, drop=("lo hi",)), "exact-probe"),
        (lambda a, b: product(a, b, drop=("hi lo",)), "exact-probe"),
        (lambda a, b: product(a, b, promotion=None), "rms"),
    ],
    ids=["one product", "no lo hi", "no hi lo", "not promoted"],
)
def test_a_kernel_that_leaves_something_out_fails(kernel, part):
    found = judged(kernel)
    assert found.verdict == "FAIL"
    assert part in {r.code for r in found.reasons}
    # The probe is one of the parts; the numbers of every family show it too.
    assert all(f.rms > f.rms_limit for f in found.families)


def test_a_kernel_that_multiplies_whole_float32_passes_too():
    assert judged(lambda a, b: a @ b).verdict == "PASS"


def test_the_bound_is_the_sum_of_its_terms():
    # N = 4 and F = 24 on Ampere: a block loses 2 + 5 * 2^0 = 7 units of 2^-24.
    u, k = 2.0**-24, 256
    main = (0.4 * 8 / 4 + 1) * 7 * u + 4 * (k / 8) ** 0.5 * u
    cross = 2.0**-10 * (0.4 * 2 * k / 4 + 1) * 7 * u
    found = Contract.of(ROW, AMPERE).allowance(k)
    assert found.relative == pytest.approx(2.0**-21 + main + cross + u, rel=1e-12)
    assert found.absolute == k * 2.0**-149
    assert found.text.startswith(
        "D = (2^-21 + (0.4 8/4 + 1) 7 2^-24 + 4 sqrt(256/8) 2^-24 + 2^-10 (0.4 512/4 + 1) 7 2^-24 "
        "+ 2^-24) S + 256 2^-149 ="
    )
    # From there on it is stricter than float32's own on CUDA cores.
    assert found.relative < Contract.of(PLAIN, AMPERE).allowance(k).relative


@pytest.mark.parametrize("k", [1, 8, 40, 1000, 70000])
def test_the_probes_are_exact_in_both_parts(k):
    contract = Contract.of(ROW, AMPERE)
    ints = probes.choose(contract, k)
    assert (ints.wide, ints.narrow <= 11) == (12, True)  # one is split, its partner tf32's own
    terms = -(-k // ints.stride)
    assert terms * (1 << ints.wide) * ((1 << ints.narrow) - 1) <= 1 << 24


def test_sums_err_no_more_than_float32_one_term_after_the_other():
    """And what they would without promotion: the reason for it."""
    rng = np.random.default_rng(8)
    rules = tensorcore.model(MMA["tf32"], AMPERE)
    for draw, times in ((rng.standard_normal, 8), (rng.random, 20)):
        a, b = draw((16, 512)).astype(np.float32), draw((512, 16)).astype(np.float32)
        wide = a.astype(np.float64), b.astype(np.float64)
        right, s = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
        total = np.zeros(right.shape, np.float32)
        for k in range(512):
            total = (total + wide[0][:, k : k + 1] * wide[1][k]).astype(np.float32)

        def rms(found, right=right, s=s):
            return float(np.sqrt(np.mean(((found - right) / s) ** 2)))

        mine = rms(split.sums(rules, a, b))
        assert mine < rms(total)
        high = split.split(a)[0].view(np.uint32), split.split(b)[0].view(np.uint32)
        chained = tensorcore.evaluate(rules, *high, np.zeros(right.shape, np.uint32))
        exact = split.split(a)[0].astype(np.float64) @ split.split(b)[0].astype(np.float64)
        cut = float(np.sqrt(np.mean(((chained.view(np.float32) - exact) / s) ** 2)))
        assert cut > times * mine
