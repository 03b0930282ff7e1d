"""The vectorised model against a slow scalar one, for every instruction and capability."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import slow_dot
from tensorcore_cases import (
    CASES,
    H100,
    ROW,
    aligned_terms,
    dtype_sign,
    encoded,
    how,
    random_c,
    random_codes,
    seeded,
)

from gpulab.formats import FORMATS
from gpulab.numerics import _fdpa
from gpulab.numerics.tensorcore import evaluate, mma, model


def compare(got, a, b, c, rules):
    """Every element of one (M, K) x (K, N) product against the slow model."""
    for i, j in np.ndindex(*got.shape):
        want = slow_dot.dot(a[i], b[:, j], c[i, j], rules)
        assert int(got[i, j]) == want, (i, j, hex(got[i, j]), hex(want), a[i], b[:, j], c[i, j])


@pytest.mark.parametrize(("name", "capability", "rules"), CASES)
def test_random_codes_equal_the_slow_model(name, capability, rules):
    rng = seeded(name, capability)
    for chain in (1, 2):
        k = rules["k"] * chain
        a = random_codes(rng, rules["a_type"], (4, k))
        b = random_codes(rng, rules["b_type"], (k, 5))
        c = random_c(rng, rules["d_type"], (4, 5))
        compare(mma(a, b, c, name, capability), a, b, c, rules)


@pytest.mark.parametrize(("name", "capability", "rules"), CASES)
def test_cancelling_and_misaligned_terms_equal_the_slow_model(name, capability, rules):
    """The second half of K takes back much of the first; what alignment cut stays."""
    rng = seeded("cancel", name, capability)
    k = rules["k"]
    a = aligned_terms(rng, rules["a_type"], (4, k))
    b = aligned_terms(rng, rules["b_type"], (5, k))
    b[:, k // 2 :] = b[:, : k // 2] ^ dtype_sign(rules["b_type"])
    c = random_c(rng, rules["d_type"], (4, 5))
    c[0] = 0
    b = np.ascontiguousarray(b.T)
    compare(mma(a, b, c, name, capability), a, b, c, rules)


@pytest.mark.parametrize("result", ["rne_f32", "rz_f32", "rz_e8m13", "rne_f16", "rz_f16"])
@pytest.mark.parametrize("fraction", [10, 23, 25, 29, 30, 35])
def test_altered_models_equal_the_slow_model(result, fraction):
    d = "f16" if result.endswith("f16") else "f32"
    name = f"mma.sync.m16n8k16.{d}.f16.f16.{d}"
    altered = replace(model(name, H100), fraction_bits=fraction, result=result)
    rules = how("f16", "f16", d, 16, 16, fraction) | {"result": result}
    rng = seeded(result, fraction)
    a, b = random_codes(rng, "f16", (6, 16)), random_codes(rng, "f16", (16, 6))
    c = random_c(rng, d, (6, 6))
    compare(evaluate(altered, a, b, c), a, b, c, rules)


@pytest.mark.parametrize("fraction", [8, 12])
@pytest.mark.parametrize("ptx", ["e4m3", "e5m2"])
def test_altered_fp8_through_fp16_equals_the_slow_model(ptx, fraction):
    """Few fraction bits make the exponents that fp8 values have as fp16 visible."""
    name = f"mma.sync.m16n8k32.f32.{ptx}.{ptx}.f32"
    altered = replace(model(name, H100), fraction_bits=fraction)
    rules = how(ptx, ptx, "f32", 32, 16, fraction, through=True)
    rng = seeded(ptx, fraction)
    a, b = (rng.integers(0, 128, shape, dtype=np.uint8) for shape in ((6, 32), (32, 6)))
    a[:3], b[:, :3] = a[:3] % 16, b[:, :3] % 16  # small exponents and subnormals
    c = random_c(rng, "f32", (6, 6))
    compare(evaluate(altered, a, b, c), a, b, c, rules)


@pytest.mark.parametrize(("name", "capability", "rules"), CASES)
def test_an_idle_accumulator_equals_the_slow_model(name, capability, rules):
    """Every product is zero, by one operand or both: C alone, of any size, goes through."""
    rng = seeded("idle", name, capability)
    k = rules["k"]
    large_a, large_b = (FORMATS[ROW[rules[t]]].max_finite for t in ("a_type", "b_type"))
    kind = np.uint16 if rules["d_type"] == "f16" else np.uint32
    c = rng.integers(0, np.iinfo(kind).max, (2, 20), dtype=np.uint64).astype(kind)
    c[:, :5] &= kind(np.iinfo(kind).max >> 8)  # small ones
    for row, column in (([0, large_a], 0), (0, [0, large_b] * 10)):
        a = encoded(np.full((k, 2), row).T, rules["a_type"])
        b = encoded(np.full((k, 20), column), rules["b_type"])
        compare(mma(a, b, c, name, capability), a, b, c, rules)


@pytest.mark.parametrize("name", [n for n, _, r in CASES if r["d_type"] == "f16"][:6])
def test_ties_of_half_results_are_decided_by_the_last_kept_bit(name):
    """2^-25 is half of the smallest subnormal; a term at the edge of alignment decides."""
    capability, rules = next((c, r) for n, c, r in CASES if n == name)
    k = rules["k"]
    rng = seeded("ties", name)
    a, b = np.zeros((40, k)), np.zeros((k, 3))
    a[:, 0], a[:, 1] = 2.0**-12, 2.0 ** -rng.integers(18, 24, 40)
    b[0], b[1] = [2.0**-13, -(2.0**-13), 2.0**-10], 2.0 ** -rng.integers(18, 24, 3)
    a, b = encoded(a, rules["a_type"]), encoded(b, rules["b_type"])
    c = np.tile(np.array([0, 1, 0x8001], np.uint16)[:, None], (14, 3))[:40]
    compare(mma(a, b, c, name, capability), a, b, c, rules)


@pytest.mark.parametrize("ptx", ["bf16", "tf32"])
def test_results_at_the_bottom_of_float32_equal_the_slow_model(ptx):
    """Sums of products below 2^-149 that only together reach it; C zero, subnormal, or neither."""
    rng = seeded("bottom", ptx)
    name, k = (
        ("mma.sync.m16n8k16.f32.bf16.bf16.f32", 16)
        if ptx == "bf16"
        else ("mma.sync.m16n8k8.f32.tf32.tf32.f32", 8)
    )
    rules = how(ptx, ptx, "f32", k, k, 25)
    a = encoded(rng.choice([1, 1.5, -1], (12, k)) * 2.0 ** rng.integers(-78, -70, (12, 1)), ptx)
    b = encoded(rng.choice([1, 1.25], (k, 12)) * 2.0 ** rng.integers(-80, -75, (k, 1)), ptx)
    a[0], b[:, 0] = encoded([2.0**-76], ptx), encoded([2.0**-77], ptx)
    c = rng.integers(0, 64, (12, 12)).astype(np.uint32)
    c[::2] = 0
    got = mma(a, b, c, name, H100)
    compare(got, a, b, c, rules)
    assert got[0, 0] == k // 16  # k products of 2^-153


@pytest.mark.parametrize(("name", "capability", "rules"), CASES)
def test_the_largest_sums_equal_the_slow_model(name, capability, rules):
    """Every operand at its largest significand: the most carry bits a block can need."""
    k = rules["k"]
    a, b = (
        encoded(np.full(shape, 2 - FORMATS[ROW[rules[t]]].eps), rules[t])
        for shape, t in (((2, k), "a_type"), ((k, 2), "b_type"))
    )
    a[1] |= dtype_sign(rules["a_type"])
    half = rules["d_type"] == "f16"
    c = np.full((2, 2), 0x3FFF if half else 0x407FFFFF, np.uint16 if half else np.uint32)
    compare(mma(a, b, c, name, capability), a, b, c, rules)
    c[1] ^= c.dtype.type(1 << (15 if half else 31))
    compare(mma(a, b, c, name, capability), a, b, c, rules)


def test_results_that_overflow_or_underflow():
    """Float16: 65520 is the tie that becomes infinity. Float32: RZ stops short of 2^128 only."""
    f16 = "mma.sync.m16n8k16.f16.f16.f16.f16"
    for total, want in (
        (65504.0, 0x7BFF),
        (65519.0, 0x7BFF),
        (65520.0, 0x7C00),
        (-65520.0, 0xFC00),
    ):
        a, b = np.zeros((1, 16)), np.zeros((16, 1))
        a[0, :2], b[:2, 0] = (np.sign(total) * 32768, total - np.sign(total) * 32768), 1
        a, b = encoded(a, "f16"), encoded(b, "f16")
        c = np.zeros((1, 1), np.uint16)
        rest = Fraction(total) - sum(Fraction(float(v)) for v in a.view(np.float16)[0])
        a[0, 2], b[2, 0] = encoded([float(rest)], "f16")[0], encoded([1.0], "f16")[0]
        assert mma(a, b, c, f16, H100)[0, 0] == want
    bf16 = "mma.sync.m16n8k16.f32.bf16.bf16.f32"
    a, b = np.zeros((1, 16)), np.zeros((16, 1))
    a[0, 0], b[0, 0] = 2.0**64, 2.0**63
    a, b = encoded(a, "bf16"), encoded(b, "bf16")
    top = np.array([[0x7F7FFFFF]], np.uint32)
    assert mma(a, b, np.zeros_like(top), bf16, H100)[0, 0] == 0x7F000000
    assert mma(a, b, top, bf16, H100)[0, 0] == 0x7F800000


@pytest.mark.parametrize("exponent", [125, 126, 127, 128, 129])
def test_products_beyond_float32_that_cancel(exponent):
    """Their significands are 3.06; a term that no float32 holds goes with its negative alike."""
    name = "mma.sync.m16n8k16.f32.bf16.bf16.f32"
    a, b = np.zeros((1, 16)), np.zeros((16, 2))
    a[0, :3] = 1.75 * 2.0**64, 1.75 * 2.0**64, 1.5 * 2.0**60
    b[:3, 0] = 1.75 * 2.0 ** (exponent - 64), -1.75 * 2.0 ** (exponent - 64), 2.0**60
    b[:3, 1] = b[:3, 0] * [1, 0.5, 1]
    a, b = encoded(a, "bf16"), encoded(b, "bf16")
    c = np.array([[0x3F800000, 0]], np.uint32)
    got = mma(a, b, c, name, H100)
    compare(got, a, b, c, how("bf16", "bf16", "f32", 16, 16, 25))
    assert got[0, 0] == np.float32(1.5 * 2.0**120).view(np.uint32)


def test_the_two_carriers_agree(monkeypatch):
    """The fast float32 carrier and the float64 one give the same bits wherever both apply."""
    rng = seeded("carriers")
    work = []
    for name, ptx in (
        ("mma.sync.m16n8k16.f32.f16.f16.f32", "f16"),
        ("mma.sync.m16n8k16.f32.bf16.bf16.f32", "bf16"),
        ("mma.sync.m16n8k8.f32.tf32.tf32.f32", "tf32"),
        ("mma.sync.m16n8k16.f16.f16.f16.f16", "f16"),
    ):
        k = model(name, H100).k
        a = aligned_terms(rng, ptx, (300, 16, k)) if ptx == "f16" else None
        for scale in (0, -8, 3) if ptx == "f16" else (0, -40, -60, 30):
            x = rng.standard_normal((300, 16, k)) * 2.0 ** rng.integers(scale - 6, scale + 6)
            y = rng.standard_normal((300, k, 8)) * 2.0 ** rng.integers(-6, 6, (1, k, 8))
            y[rng.random(y.shape) < 0.1] = 0
            c = random_c(rng, "f16" if ".f16.f16.f16.f16" in name else "f32", (300, 16, 8))
            left = a if a is not None and scale == 0 else encoded(x, ptx)
            work.append((left, encoded(y, ptx), c, name, H100))
    fast = [mma(*w) for w in work]
    calls = []
    monkeypatch.setattr(_fdpa, "_narrow", lambda *_: calls.append(1))
    for w, d in zip(work, fast, strict=True):
        assert (mma(*w) == d).all()
    assert calls


def test_the_fast_carrier_is_the_one_in_use(monkeypatch):
    """Ordinary data must not fall back to the slow carrier: that would be right but slow."""

    def refuse(*_):
        raise AssertionError("float64 carrier")

    monkeypatch.setattr(_fdpa, "_wide", refuse)
    rng = seeded("in use")
    for name, capability, rules in CASES:
        a = encoded(rng.standard_normal((2, 16, rules["k"])), rules["a_type"])
        b = encoded(rng.standard_normal((2, rules["k"], 8)), rules["b_type"])
        a[0, :, 1:], b[1] = 0, 0
        if rules["a_type"] == "bf16":
            a[0, 0, 0] = 0x7FC0  # NaN
        kind = np.uint16 if rules["d_type"] == "f16" else np.uint32
        if rules["fraction"] <= 25:
            mma(a, b, np.zeros((2, 16, 8), kind), name, capability)
