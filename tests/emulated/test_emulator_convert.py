"""Conversions between numbers of different formats against exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from ptxcase import floats, instruction, integers, run
from roundings import BF16, F16, F32, F64, Binary, negative, number

from gpulab.emulator import smallfloat

COUNT = 1200
FORMS: dict[str, tuple[Binary, Any]] = {
    "f16": (F16, np.uint16), "bf16": (BF16, np.uint16),
    "f32": (F32, np.uint32), "f64": (F64, np.uint64),
}  # fmt: skip
NANS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def values(name: str, seed: int, count: int = COUNT) -> Any:
    form, raw = FORMS[name]
    rng = np.random.default_rng(seed)
    if name in ("f32", "f64"):
        return floats(rng, form.width, count).view(raw)
    return rng.integers(0, 1 << 16, count).astype(raw)


def converted(form: Binary, value: Fraction | str, mode: str) -> int | None:
    if value == "nan":
        return None
    top = int(negative(value)) << (form.width - 1)
    if "inf" in str(value):
        return ((1 << form.exponent) - 1) << form.mantissa | top
    return form.round(Fraction(number(value)), mode, int(negative(value)))


def payload_of(bits: int, target: str) -> int:
    """NaN of a float64 one, as recorded on an H200: sign and upper payload, made quiet."""
    if target == "f16":
        return (bits >> 63) << 15 | 0x7E00 | (bits >> 42) & 0x1FF
    return (bits >> 63) << 31 | 0x7FC00000 | (bits >> 29) & 0x3FFFFF


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("f32", "f64"),
        ("f16", "f32"),
        ("f16", "f64"),
        ("bf16", "f32"),
        ("f16", "f16"),
        ("bf16", "bf16"),
    ],
)
def test_narrowing(target: str, source: str, mode: str) -> None:
    if target == source:
        return  # the same format converts only to integral values, below
    a = values(source, 1)
    if source in ("f32", "f64"):  # values near the target's ties and its subnormal range
        form = FORMS[target][0]
        rng = np.random.default_rng(2)
        ticks = rng.integers(-(1 << 13), 1 << 13, COUNT) * 0.25
        scale = np.ldexp(1.0, rng.integers(1 - form.bias - form.mantissa - 2, 4, COUNT))
        near = (ticks * scale).astype(np.float32 if source == "f32" else np.float64).view(a.dtype)
        a = np.where(rng.random(COUNT) < 0.5, near, a)
    got = instruction(f"cvt.{mode}.{target}.{source}", [a], FORMS[target][1])
    for bits, g in zip(a.tolist(), got.tolist(), strict=True):
        value = FORMS[source][0].value(bits)
        want = converted(FORMS[target][0], value, mode)
        nan = payload_of(bits, target) if source == "f64" else NANS[target]
        assert g == (nan if want is None else want), (value, hex(g))


@pytest.mark.parametrize(
    ("target", "source"), [("f64", "f32"), ("f64", "f16"), ("f32", "f16"), ("f32", "bf16")]
)
def test_widening_is_exact(target: str, source: str) -> None:
    a = values(source, 3)
    got = instruction(f"cvt.{target}.{source}", [a], FORMS[target][1])
    form = FORMS[target][0]
    for bits, g in zip(a.tolist(), got.tolist(), strict=True):
        value = FORMS[source][0].value(bits)
        assert form.value(g) == value, (value, hex(g))


def test_widening_with_ftz_makes_a_nan_canonical() -> None:
    """ptxas flushes by a product with 1; recorded on an H200."""
    a = np.uint32([0x7F800001, 0xFFC12345, 0x7FFFFFFF, 0x00000001, 0x80700000, 0x3F800000])
    got = instruction("cvt.ftz.f64.f32", [a], np.uint64)
    canonical, zero, one = 0x7FFFFFFFE0000000, 0, 0x3FF0000000000000
    assert got.tolist() == [canonical] * 3 + [zero, 1 << 63, one]
    kept = instruction("cvt.f64.f32", [a[:2]], np.uint64)
    assert [hex(v) for v in kept] == ["0x7ff8000020000000", "0xfff82468a0000000"]


INTEGRAL = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


def integral(value: Fraction, mode: str) -> int:
    low = math.floor(value)
    if mode == "rm" or low == value:
        return low
    if mode == "rp":
        return low + 1
    if mode == "rz":
        return low + 1 if value < 0 else low
    part = value - low
    return low + int(part > Fraction(1, 2) or (part == Fraction(1, 2) and low % 2 == 1))


@pytest.mark.parametrize("word", INTEGRAL)
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("target", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_float_to_integer(target: str, source: str, word: str) -> None:
    a = values(source, 4, 500)
    if source != "f16":
        kind = np.float32 if source == "f32" else np.float64
        rng = np.random.default_rng(5)
        edge = float(2 ** int(target[1:])) / rng.choice([1, 2], 500) * rng.choice([1.0, -1.0], 500)
        near = (edge + rng.integers(-3, 4, 500) * 0.5).astype(kind).view(a.dtype)
        a = np.where(rng.random(500) < 0.3, near, a)
    width, signed = int(target[1:]), target[0] == "s"
    wide = {8: 16}.get(width, width)
    got = instruction(
        f"cvt.{word}.{target}.{source}", [a], np.dtype(f"{'i' if signed else 'u'}{wide // 8}")
    )
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    for bits, g in zip(a.tolist(), got.tolist(), strict=True):
        value = FORMS[source][0].value(bits)
        if value == "nan":
            want = 0 if source != "f64" and width < 64 else (low if signed else 1 << (width - 1))
        elif "inf" in str(value):
            want = low if negative(value) else high
        else:
            want = max(low, min(high, integral(Fraction(number(value)), INTEGRAL[word])))
        assert g == want, (value, g, want)


@pytest.mark.parametrize("word", INTEGRAL)
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_rounding_to_integral_values(kind: str, word: str) -> None:
    a = values(kind, 6)
    got = instruction(f"cvt.{word}.{kind}.{kind}", [a], FORMS[kind][1])
    form = FORMS[kind][0]
    for bits, g in zip(a.tolist(), got.tolist(), strict=True):
        value = form.value(bits)
        if isinstance(value, Fraction):
            zero = bits >> (form.width - 1)
            assert g == form.round(Fraction(integral(value, INTEGRAL[word])), "rn", zero), value
        elif value != "nan":
            assert g == bits


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", ["f16", "f32", "f64"])
def test_integer_to_float(target: str, source: str, mode: str) -> None:
    rng = np.random.default_rng(7)
    dtype = np.dtype({"s": "i", "u": "u"}[source[0]] + str(int(source[1:]) // 8))
    a = integers(rng, dtype, 600)
    shift = rng.integers(0, 8 * dtype.itemsize - 1, 600).astype(dtype)
    a = np.where(rng.random(600) < 0.5, a >> shift, a)
    got = instruction(f"cvt.{mode}.{target}.{source}", [a], FORMS[target][1])
    want = [FORMS[target][0].round(Fraction(v), mode) for v in a.tolist()]
    assert got.tolist() == want


def test_half_pairs() -> None:
    a, b = values("f32", 8), values("f32", 9)
    for name in ("f16", "bf16"):
        one = [instruction(f"cvt.rn.{name}.f32", [x], np.uint16).astype(np.uint32) for x in (a, b)]
        got = instruction(f"cvt.rn.{name}x2.f32", [a, b], np.uint32)
        assert np.array_equal(got, one[0] << 16 | one[1])  # the first operand is the upper half
        relu = instruction(f"cvt.rn.relu.{name}x2.f32", [a, b], np.uint32)
        for half, at in ((relu & 0xFFFF, b), (relu >> 16, a)):
            x = at.view(np.float32)
            assert np.all(half[~np.isnan(x) & (x <= 0)] & 0x7FFF == 0)


SMALL = {"e4m3": (4, 3, 448.0), "e5m2": (5, 2, 57344.0)}


def small_value(name: str, code: int) -> float:
    exponent_bits, mantissa_bits, largest = SMALL[name]
    bias = (1 << (exponent_bits - 1)) - 1
    exponent, mantissa = (
        code >> mantissa_bits & ((1 << exponent_bits) - 1),
        code & ((1 << mantissa_bits) - 1),
    )
    if name == "e4m3" and code & 0x7F == 0x7F:
        return math.nan
    if name == "e5m2" and exponent == 31:
        return math.nan if mantissa else math.copysign(math.inf, -1 if code & 0x80 else 1)
    size = math.ldexp(
        mantissa + ((1 << mantissa_bits) if exponent else 0),
        max(exponent, 1) - bias - mantissa_bits,
    )
    assert math.isinf(size) or size <= largest
    return -size if code & 0x80 else size


@pytest.mark.parametrize("name", SMALL)
def test_fp8_from_float32_saturates_and_rounds_to_even(name: str) -> None:
    rng = np.random.default_rng(10)
    finite = [c for c in range(128) if math.isfinite(small_value(name, c))]
    grid = np.array([small_value(name, c) for c in finite])
    exact = {c: Fraction(small_value(name, c)) for c in finite}

    @cache
    def nearest(size: float) -> int:
        return min(finite, key=lambda c: (abs(exact[c] - Fraction(size)), c & 1))

    between = np.concatenate(
        [grid, (grid[1:] + grid[:-1]) / 2, np.nextafter((grid[1:] + grid[:-1]) / 2, 0)]
    )
    a = np.concatenate([between, -between, floats(rng, 32, 600)]).astype(np.float32)
    b = rng.permutation(a)
    got = instruction(f"cvt.rn.satfinite.{name}x2.f32", [a, b], np.uint16)
    for values_, codes in ((b, got & 0xFF), (a, got >> 8)):
        for x, code in zip(values_.tolist(), codes.tolist(), strict=True):
            if math.isnan(x):
                assert code == 0x7F
                continue
            assert code & 0x7F == nearest(min(abs(x), SMALL[name][2])), x
            assert (code >> 7) == (math.copysign(1, x) < 0)


@pytest.mark.parametrize("name", SMALL)
def test_fp8_to_half_and_back(name: str) -> None:
    codes = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    got = instruction(f"cvt.rn.f16x2.{name}x2", [codes], np.uint32)
    for half, octet in ((got & 0xFFFF, codes & 0xFF), (got >> 16, codes >> 8)):
        want = np.array([small_value(name, int(c)) for c in range(256)])[octet]
        decoded = half.astype(np.uint16).view(np.float16).astype(float)
        assert np.array_equal(decoded, want, equal_nan=True)
        assert np.all(half[np.isnan(want)] == 0x7FFF)
    back = instruction(f"cvt.rn.satfinite.{name}x2.f16x2", [got], np.uint16)
    for at in (0, 8):
        c, b = codes >> at & 0xFF, back >> at & 0xFF
        special = np.array([not math.isfinite(small_value(name, int(x))) for x in range(256)])[c]
        assert np.array_equal(b[~special], c[~special])


def test_clamped_integers_are_packed_with_the_second_lowest() -> None:
    """PTX ISA, "cvt.pack": b goes below a; c's lower half above both where they are bytes."""
    a, b = (np.array(x, np.int32) for x in ([1, 70000, -9, -70000], [2, -3, 70000, 5]))
    c = np.full(4, 0xABCD1234, np.uint32)
    got = instruction("cvt.pack.sat.s16.s32", [a, b], np.uint32)
    assert got.tolist() == [0x00010002, 0x7FFFFFFD, 0xFFF77FFF, 0x80000005]
    got = instruction("cvt.pack.sat.u8.s32.b32", [a, b, c], np.uint32)
    assert got.tolist() == [0x12340102, 0x1234FF00, 0x123400FF, 0x12340005]


def test_tf32_rounding_is_ties_away() -> None:
    a = values("f32", 12)
    a[:300] = a[:300] & 0xFFFFE000 | np.resize([0xFFF, 0x1000, 0x1001], 300).astype(np.uint32)
    got = instruction("cvt.rna.tf32.f32", [a], np.uint32)
    form = Binary(8, 10)
    for bits, g in zip(a.tolist(), got.tolist(), strict=True):
        value = F32.value(bits)
        want = converted(form, value, "rna")
        assert g == (bits & 0xFFFFE000 if want is None else want << 13), (value, hex(g))


@pytest.mark.parametrize("name", ["e2m3", "e3m2", "e2m1"])
def test_small_formats_round_to_nearest(name: str) -> None:
    form = smallfloat.FORMATS[name]
    grid = smallfloat.decode(name, np.arange(1 << (form.bits - 1))).astype(float)
    ties = (grid[1:] + grid[:-1]) / 2
    a = np.concatenate([grid, ties, np.nextafter(ties, 0), np.nextafter(ties, 99), [1e9]]).astype(
        np.float32
    )
    got = smallfloat.encode(name, np.concatenate([a, -a]))
    for x, code in zip(np.concatenate([a, -a]).tolist(), got.tolist(), strict=True):
        size = min(abs(x), grid[-1])
        order = sorted(
            range(len(grid)), key=lambda c: (abs(Fraction(grid[c]) - Fraction(size)), c & 1)
        )
        assert code == order[0] | (int(math.copysign(1, x) < 0) << (form.bits - 1)), x


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_float64_just_beside_a_tie_is_not_rounded_twice(name: str) -> None:
    """Nearer to the tie than float32 can tell: rounding through float32 would lose the side."""
    form = FORMS[name][0]
    rng = np.random.default_rng(13)
    whole = rng.integers(1 << form.mantissa, 2 << form.mantissa, 400) + 0.5
    tiny = rng.integers(0, 1 << form.mantissa, 400) + 0.5  # subnormal ties
    grid = np.concatenate([whole * 2.0**-8, tiny * 2.0 ** (1 - form.bias - form.mantissa)])
    a = grid * (1 + rng.choice([-1, 0, 1], grid.size) * 2.0**-45)
    bits = a.view(np.uint64)
    got = smallfloat.encode(name, a)
    want = [form.round(Fraction(x), "rn") for x in a.tolist()]
    assert got.tolist() == want
    if name == "f16":
        assert instruction("cvt.rn.f16.f64", [bits], np.uint16).tolist() == want


def test_unsupported_conversion_names_itself() -> None:
    from gpulab.errors import BuildError

    with pytest.raises(BuildError, match=r"cvt\.rs\.f16x2\.f32"):
        run("cvt.rs.f16x2.f32 %d, %a0, %a0, %a0;", [np.zeros(1, np.uint32)], np.uint32)
