"""Block-scaled products against the slow model, and integer ones against Python's integers."""

from fractions import Fraction

import numpy as np
import pytest
import slow_dot
from tensorcore_cases import ADA, RTX, random_c, random_codes, seeded

from gpulab.numerics.tensorcore import mma, mma_block_scaled, model


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
