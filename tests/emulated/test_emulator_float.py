"""float32 and float64 arithmetic against exact rationals: every rounding mode, special values."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from ptxcase import floats, instruction
from roundings import BF16, F16, F32, F64, Binary, fused, negative, number

from gpulab.emulator import exact

MODES = ("rn", "rz", "rm", "rp")
COUNT = 1000
RAW = {16: np.uint16, 32: np.uint32, 64: np.uint64}
NAN = {32: 0x7FFFFFFF}


def bits(x: Any) -> list[int]:
    return [int(v) for v in np.ascontiguousarray(x).view(RAW[8 * x.itemsize])]


def check(got: Any, want: list[int | None], *sources: Any) -> None:
    width = 8 * got.itemsize
    for i, (g, w) in enumerate(zip(bits(got), want, strict=True)):
        shown = [float(s[i]) for s in sources]
        if w is None:
            assert math.isnan(float(got[i])), shown
            assert g == NAN.get(width, g), hex(g)
        else:
            assert g == w, (shown, hex(g), hex(w))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("width", "form"), [(32, F32), (64, F64)])
def test_fused_multiply_add(mode: str, width: int, form: Binary) -> None:
    rng = np.random.default_rng(width)
    a, b, c = (floats(rng, width, COUNT) for _ in range(3))
    near = rng.random(COUNT) < 0.3  # cancellation: c close to -a b
    with np.errstate(all="ignore"):
        c = np.where(near, np.nan_to_num(-a * b).astype(c.dtype), c)
    got = instruction(f"fma.{mode}.f{width}", [a, b, c], a.dtype)
    want = [fused(form, *v, mode) for v in zip(bits(a), bits(b), bits(c), strict=True)]
    check(got, want, a, b, c)


def test_fused_multiply_add_next_to_ties() -> None:
    """Sums that float64 rounds onto a float32 tie: float64 arithmetic alone gets these wrong."""
    rng = np.random.default_rng(3)
    n = 4000
    c = rng.integers(1 << 23, 1 << 24, n).astype(np.float32)
    a = (0.5 + 2.0**-13 * rng.integers(-1, 2, n)).astype(np.float32)  # near half a place of c
    b = (1 + 2.0**-23 * rng.integers(-2, 3, n)).astype(np.float32)
    scale = np.float32(2.0) ** rng.integers(-140, 90, n).astype(np.float32)
    ones = np.ones(n, np.float32)
    parts = [
        (a, b, c),
        (a * scale, b, c * scale),
        (ones, b * np.float32(2.0**-24), ones),
        (a * np.float32(2.0**-75), b * np.float32(2.0**-74), c * np.float32(2.0**-149)),
    ]
    for x, y, z in parts:
        x, y, z = (np.broadcast_to(v, n).astype(np.float32).copy() for v in (x, y, z))
        got = instruction("fma.rn.f32", [x, y, z], np.float32)
        want = [fused(F32, *v) for v in zip(bits(x), bits(y), bits(z), strict=True)]
        check(got, want, x, y, z)


def test_float64_arithmetic_alone_would_be_wrong() -> None:
    """c = 1 + 2^-23 and a product just under half a place: the exact sum rounds down, but float64
    first rounds it up onto the tie, which then goes to the even neighbour above."""
    a, b, c = (
        np.float32(1 + 2.0**-23),
        np.float32(2.0**-24 * (1 - 2.0**-23)),
        np.float32(1 + 2.0**-23),
    )
    assert np.float32(np.float64(a) * np.float64(b) + np.float64(c)) == 1 + 2.0**-22
    assert instruction("fma.rn.f32", [np.array([x]) for x in (a, b, c)], np.float32)[0] == c
    assert exact.fma_f32(*(np.array([[x]]) for x in (a, b, c)))[0, 0] == c


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize(("width", "form"), [(32, F32), (64, F64)])
def test_binary(opcode: str, mode: str, width: int, form: Binary) -> None:
    rng = np.random.default_rng(width + len(opcode))
    a, b = (floats(rng, width, COUNT) for _ in range(2))
    got = instruction(f"{opcode}.{mode}.f{width}", [a, b], a.dtype)
    one, sign = form.round(Fraction(1), "rn"), 1 << (width - 1)
    want: list[int | None] = []
    for x, y in zip(bits(a), bits(b), strict=True):
        if opcode == "add":
            want.append(fused(form, one, x, y, mode))
        elif opcode == "sub":
            want.append(fused(form, one, x, y ^ sign, mode))
        elif opcode == "mul":
            zero = (x ^ y) & sign  # adding a zero of the product's sign changes nothing
            want.append(fused(form, x, y, zero, mode))
        else:
            want.append(quotient(form, x, y, mode))
    check(got, want, a, b)


def quotient(form: Binary, a: int, b: int, mode: str) -> int | None:
    x, y = form.value(a), form.value(b)
    sign = negative(x) != negative(y)
    top = sign << (form.width - 1)
    exponents = ((1 << form.exponent) - 1) << form.mantissa
    fx, fy = number(x), number(y)
    if "nan" in (x, y) or (fx == 0 and fy == 0) or ("inf" in str(x) and "inf" in str(y)):
        return None
    if "inf" in str(x) or fy == 0:
        return exponents | top
    if "inf" in str(y) or fx == 0:
        return top
    return form.round(Fraction(fx) / Fraction(fy), mode, int(sign))


def root(form: Binary, a: int, mode: str) -> int | None:
    x = form.value(a)
    if x in ("nan", "-inf") or (isinstance(x, Fraction) and x < 0):
        return None
    if not isinstance(x, Fraction) or x == 0:
        return a
    scale = 1200
    n = x * Fraction(2) ** (2 * scale)
    whole = math.isqrt(n.numerator // n.denominator)
    exact_root = Fraction(whole) if Fraction(whole) ** 2 == n else Fraction(2 * whole + 1, 2)
    return form.round(exact_root / Fraction(2) ** scale, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("opcode", ["rcp", "sqrt"])
@pytest.mark.parametrize(("width", "form"), [(32, F32), (64, F64)])
def test_unary(opcode: str, mode: str, width: int, form: Binary) -> None:
    a = floats(np.random.default_rng(width), width, 800)
    if opcode == "sqrt":
        a = np.where(np.random.default_rng(1).random(800) < 0.8, np.abs(a), a)
    got = instruction(f"{opcode}.{mode}.f{width}", [a], a.dtype)
    one = form.round(Fraction(1), "rn")
    want = [
        quotient(form, one, x, mode) if opcode == "rcp" else root(form, x, mode) for x in bits(a)
    ]
    check(got, want, a)


def flushed(v: int) -> int:
    return v & 0x80000000 if v & 0x7F800000 == 0 else v


@pytest.mark.parametrize("opcode", ["add.ftz.f32", "mul.rn.ftz.f32", "fma.rn.ftz.f32"])
def test_ftz_flushes_inputs_and_results(opcode: str) -> None:
    rng = np.random.default_rng(5)
    count = 3 if opcode.startswith("fma") else 2
    inputs = [floats(rng, 32, COUNT) for _ in range(count)]
    tiny = (rng.integers(1, 1 << 24, COUNT) * 2.0**-149).astype(np.float32)
    inputs[0] = np.where(rng.random(COUNT) < 0.5, tiny, inputs[0])
    got = instruction(opcode, inputs, np.float32)
    want: list[int | None] = []
    for row in zip(*(bits(x) for x in inputs), strict=True):
        v = [flushed(x) for x in row]
        one = 0x3F800000
        if opcode.startswith("add"):
            r = fused(F32, one, v[0], v[1])
        elif opcode.startswith("mul"):
            r = fused(F32, v[0], v[1], (v[0] ^ v[1]) & 0x80000000)
        else:
            r = fused(F32, *v)
        want.append(None if r is None else flushed(r))
    check(got, want, *inputs)
    plain = instruction(opcode.replace(".ftz", ""), inputs, np.float32)
    assert (plain.view(np.uint32) != got.view(np.uint32)).any(), "the inputs do not show .ftz"


@pytest.mark.parametrize("opcode", ["add.sat.f32", "mul.sat.f32", "fma.rn.sat.f32"])
def test_sat_clamps_and_makes_nan_zero(opcode: str) -> None:
    rng = np.random.default_rng(6)
    inputs = [floats(rng, 32, COUNT) for _ in range(3 if opcode.startswith("fma") else 2)]
    got = instruction(opcode, inputs, np.float32)
    plain = instruction(opcode.replace(".sat", ""), inputs, np.float32)
    want = np.where(np.isnan(plain) | (plain <= 0), 0, np.minimum(plain, 1)).astype(np.float32)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("opcode", ["min", "max"])
@pytest.mark.parametrize("width", [32, 64])
def test_min_max(opcode: str, width: int) -> None:
    rng = np.random.default_rng(7)
    a, b = (floats(rng, width, COUNT) for _ in range(2))
    a[:4], b[:4] = [0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, 0.0, -0.0]
    got = instruction(f"{opcode}.f{width}", [a, b], a.dtype)
    for x, y, g in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        if math.isnan(x) or math.isnan(y):
            other = y if math.isnan(x) else x
            assert g == other or (math.isnan(g) and math.isnan(other))
        else:
            key = lambda v: (v, math.copysign(1, v))  # noqa: E731
            want = (min if opcode == "min" else max)(x, y, key=key)
            assert key(g) == key(want)
    if width == 32:
        loud = instruction(f"{opcode}.NaN.f32", [a, b], a.dtype)
        assert np.array_equal(np.isnan(loud), np.isnan(a) | np.isnan(b))


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_ordered_and_unordered(name: str) -> None:
    rng = np.random.default_rng(8)
    a, b = (floats(rng, 32, COUNT) for _ in range(2))
    b = np.where(rng.random(COUNT) < 0.2, a, b)
    nan = np.isnan(a) | np.isnan(b)
    operator = getattr(
        np,
        {
            "eq": "equal",
            "ne": "not_equal",
            "lt": "less",
            "le": "less_equal",
            "gt": "greater",
            "ge": "greater_equal",
        }[name],
    )
    plain = operator(a, b)
    assert np.array_equal(instruction(f"setp.{name}.f32", [a, b], bool), plain & ~nan)
    assert np.array_equal(instruction(f"setp.{name}u.f32", [a, b], bool), plain | nan)
    assert np.array_equal(instruction("setp.num.f32", [a, b], bool), ~nan)
    assert np.array_equal(instruction("setp.nan.f32", [a, b], bool), nan)


HALVES = {"f16": F16, "bf16": BF16}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "fma.rn"])
def test_half_arithmetic(name: str, opcode: str) -> None:
    form = HALVES[name]
    rng = np.random.default_rng(9)
    count = 3 if opcode == "fma.rn" else 2
    inputs = [rng.integers(0, 1 << 16, 2500).astype(np.uint16) for _ in range(count)]
    near = rng.random(2500) < 0.7  # exponents close together, so that terms interact
    for x in inputs:
        mild = form.round(Fraction(1), "rn") + rng.integers(
            -(5 << form.mantissa), 5 << form.mantissa, 2500
        )
        x[near] = (
            mild.astype(np.uint16)[near] | (rng.integers(0, 2, 2500) << 15).astype(np.uint16)[near]
        )
    got = instruction(f"{opcode}.{name}", inputs, np.uint16)
    pairs = [x.astype(np.uint32) | (x[::-1].astype(np.uint32) << 16) for x in inputs]
    both = instruction(f"{opcode}.{name}x2", pairs, np.uint32)
    assert np.array_equal(both & 0xFFFF, got)
    assert np.array_equal(both >> 16, got[::-1])
    one = form.round(Fraction(1), "rn")
    for i, row in enumerate(zip(*(map(int, x) for x in inputs), strict=True)):
        if opcode == "add":
            want = fused(form, one, *row)
        elif opcode == "sub":
            want = fused(form, one, row[0], row[1] ^ 0x8000)
        elif opcode == "mul":
            want = fused(form, *row, (row[0] ^ row[1]) & 0x8000)
        else:
            want = fused(form, *row)
        assert int(got[i]) == (0x7FFF if want is None else want), [hex(v) for v in row]
