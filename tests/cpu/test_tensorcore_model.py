"""The vectorised model against a slow scalar one, for every instruction and capability."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import slow_dot
from tensorcore_cases import (
    ADA,
    CASES,
    H100,
    RTX,
    aligned_terms,
    dtype_sign,
    encoded,
    how,
    random_c,
    random_codes,
    seeded,
)

from gpulab.numerics import _fdpa
from gpulab.numerics.tensorcore import evaluate, mma, mma_block_scaled, model


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
        kind = np.uint16 if rules["d_type"] == "f16" else np.uint32
        if rules["fraction"] <= 25:
            mma(a, b, np.zeros((2, 16, 8), kind), name, capability)


# --- block scales ---


def scale_values(codes, ptx):
    out = []
    for code in codes:
        if ptx == "ue8m0":
            out.append(slow_dot.NAN if code == 255 else (Fraction(1), int(code) - 127))
        else:
            number = slow_dot.value(int(code) & 0x7F, "e4m3")
            if number == slow_dot.NAN:
                out.append(number)
            else:
                e = slow_dot.exponent(number, -6) if number else -6
                out.append((number / Fraction(2) ** e, e))
    return out


SCALED = [
    ("mxf8f6f4", "1X", 32, 32, "ue8m0", a, b) for a, b in (("e4m3", "e5m2"), ("e2m3", "e2m1"))
]
SCALED += [
    ("mxf4", "2X", 64, 32, "ue8m0", "e2m1", "e2m1"),
    ("mxf4nvf4", "2X", 64, 32, "ue8m0", "e2m1", "e2m1"),
    ("mxf4nvf4", "4X", 64, 16, "ue4m3", "e2m1", "e2m1"),
]


@pytest.mark.parametrize(("kind", "vector", "k", "per", "scale", "ta", "tb"), SCALED)
def test_block_scales_equal_the_slow_model(kind, vector, k, per, scale, ta, tb):
    shape = f"mma.sync.aligned.m16n8k{k}.row.col"
    name = f"{shape}.kind::{kind}.block_scale.scale_vec::{vector}.f32.{ta}.{tb}.f32.{scale}"
    assert model(name, RTX).verified == "assumed"
    group, fraction = (1, 25) if k == 32 else (16, 35)
    rules = {"a_type": ta, "b_type": tb, "group": group, "scale_block": per, "fraction": fraction}
    rng = seeded(name)
    for chain in (1, 2):
        a = random_codes(rng, ta, (6, k * chain))
        b = random_codes(rng, tb, (k * chain, 7))
        c = random_c(rng, "f32", (6, 7))
        c[0], a[1, : k // 2] = 0, 0
        low, high = (97, 150) if scale == "ue8m0" else (0, 256)
        sa = rng.integers(low, high, (6, k * chain // per), dtype=np.uint8)
        sb = rng.integers(low, high, (k * chain // per, 7), dtype=np.uint8)
        sa[5, 0] = 0xFF
        got = mma_block_scaled(a, b, c, sa, sb, name, RTX)
        for i, j in np.ndindex(6, 7):
            total = c[i, j]
            for s in range(chain):
                ks, vs = slice(s * k, (s + 1) * k), slice(s * k // per, (s + 1) * k // per)
                total = slow_dot.scaled_dot(
                    a[i, ks],
                    b[ks, j],
                    total,
                    scale_values(sa[i, vs], scale),
                    scale_values(sb[vs, j], scale),
                    rules,
                )
            assert int(got[i, j]) == total, (i, j)
        assert (got[5] == 0x7FFFFFFF).all()


# --- integers ---


@pytest.mark.parametrize(("a_type", "b_type"), [("s8", "s8"), ("u8", "u8"), ("s8", "u8")])
@pytest.mark.parametrize("saturate", [False, True])
def test_integers_wrap_or_saturate(a_type, b_type, saturate):
    rng = seeded(a_type, b_type)
    suffix = ".satfinite" if saturate else ""
    name = f"mma.sync.aligned.m16n8k32.row.col{suffix}.s32.{a_type}.{b_type}.s32"
    a = rng.integers(0, 256, (5, 64), dtype=np.uint8)
    b = rng.integers(0, 256, (64, 6), dtype=np.uint8)
    a[0], b[:, 0] = 127, 127
    c = rng.integers(-(2**31), 2**31, (5, 6)).astype(np.int32)
    c[0, 0] = 2**31 - 5
    got = mma(a, b, c.view(np.uint32), name, ADA).view(np.int32)
    signed = [x.view(np.int8) if t == "s8" else x for x, t in ((a, a_type), (b, b_type))]
    for i, j in np.ndindex(5, 6):
        total = int(c[i, j])
        for first in (0, 32):
            for k in range(first, first + 32):
                total += int(signed[0][i, k]) * int(signed[1][k, j])
            if saturate:
                total = min(max(total, -(2**31)), 2**31 - 1)
            total = (total + 2**31) % 2**32 - 2**31
        assert got[i, j] == total
