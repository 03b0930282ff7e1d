"""The encoder and decoder against ml_dtypes, NumPy and exact rational arithmetic."""

from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.errors import UsageError
from gpulab.formats import FORMATS, decode, encode, get
from gpulab.formats.codec import from_codes, to_codes

ORACLES = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "int8": np.int8,
    "int4": ml_dtypes.int4,
}
PLAIN = [row for row in FORMATS.values() if row.block is None]
TABULAR = [row for row in PLAIN if row.bits <= 19]
FLOATS = [row for row in TABULAR if row.signed and not row.is_integer]
ids = [row.name for row in PLAIN]


def all_codes(row):
    """Stored values of every code, ascending by code."""
    container = np.dtype(f"u{row.storage.itemsize}")
    return from_codes(row, np.arange(1 << row.bits).astype(container))


def code_of(row, stored):
    return to_codes(row, np.asarray(stored)).astype(np.int64)


def by_definition(row, code):
    """The value of a code straight from the definition of a binary interchange format."""
    sign = -1 if code >> (row.exponent_bits + row.mantissa_bits) else 1
    exponent = (code >> row.mantissa_bits) % (1 << row.exponent_bits)
    fraction = Fraction(code % (1 << row.mantissa_bits), 1 << row.mantissa_bits)
    top = (1 << row.exponent_bits) - 1
    if row.specials == "ieee" and exponent == top:
        return sign * np.inf if fraction == 0 else np.nan
    if row.specials == "nan_only" and exponent == top and fraction == 1 - Fraction(row.eps):
        return np.nan
    lead, power = (1, exponent) if exponent else (0, 1)
    return sign * float((lead + fraction) * Fraction(2) ** (power - row.bias))


@pytest.mark.parametrize("row", TABULAR, ids=lambda r: r.name)
def test_every_code_decodes_as_the_oracle(row):
    stored = all_codes(row)
    got = decode(row, stored)
    if row.name in ORACLES:
        codes = np.arange(1 << row.bits).astype(f"u{row.storage.itemsize}")
        with np.errstate(invalid="ignore"):  # signalling NaN
            want = codes.view(ORACLES[row.name]).astype(np.float64)
    else:
        assert row.name == "tf32"
        codes = np.arange(1 << row.bits, dtype=np.uint32) << 13
        with np.errstate(invalid="ignore"):
            want = codes.view(np.float32).astype(np.float64)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("row", FLOATS, ids=lambda r: r.name)
def test_every_code_decodes_by_definition(row):
    codes = range(1 << row.bits) if row.bits <= 8 else range(0, 1 << row.bits, 37)
    want = np.array([by_definition(row, code) for code in codes])
    np.testing.assert_array_equal(decode(row, all_codes(row))[list(codes)], want)


@pytest.mark.parametrize("row", TABULAR, ids=lambda r: r.name)
@pytest.mark.parametrize("rounding", ["nearest", "toward_zero"])
def test_every_code_survives_the_round_trip(row, rounding):
    stored = all_codes(row)
    values = decode(row, stored)
    again = encode(row, values, rounding)
    assert again.dtype == row.storage
    number = ~np.isnan(values)
    np.testing.assert_array_equal(code_of(row, again)[number], code_of(row, stored)[number])
    assert np.isnan(decode(row, again)[~number]).all()


def neighbourhood(row):
    """float32: every value of the format, every midpoint, and the float32 next to each."""
    values = np.unique(decode(row, all_codes(row)))
    values = values[np.isfinite(values)]
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    beyond = row.max_finite + np.array([0.5, 0.75, 1.0, 3.0]) * (2.0**row.max_exponent * row.eps)
    with np.errstate(over="ignore"):
        points = np.concatenate([points, beyond, -beyond]).astype(np.float32)
        up = np.nextafter(points, np.float32(np.inf))
        down = np.nextafter(points, np.float32(-np.inf))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45], np.float32)
    rng = np.random.default_rng(7)
    anything = rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32)
    near = (rng.standard_normal(1 << 16) * row.max_finite**0.5).astype(np.float32)
    return np.concatenate([points, up, down, special, anything, near])


@pytest.mark.parametrize("name", [n for n in ORACLES if not n.startswith("int")])
def test_nearest_equals_the_oracle_from_float32(name):
    row = get(name)
    values = neighbourhood(row)
    if row.specials == "none":  # ml_dtypes turns NaN into -0 here; ours is PTX's rule, below
        values = values[~np.isnan(values)]
    if name == "e8m0":  # ml_dtypes sends every float32 in (2^-127, 2^-126) to 2^-126; see below
        values = values[~((values > 2.0**-127) & (values < 2.0**-126))]
    with np.errstate(over="ignore", invalid="ignore"):
        want = values.astype(ORACLES[name])
    got = encode(row, values)
    want_codes = want.view(f"u{row.storage.itemsize}").astype(np.int64)
    number = ~np.isnan(decode(row, got))
    np.testing.assert_array_equal(number, ~np.isnan(want.astype(np.float64)))
    np.testing.assert_array_equal(code_of(row, got)[number], want_codes[number])


@pytest.mark.parametrize("row", FLOATS, ids=lambda r: r.name)
def test_midpoints_of_float64_neighbours(row):
    """One float64 ulp off a midpoint decides: fails for any rounding through float32."""
    codes = np.arange(row.max_code)
    low = decode(row, all_codes(row)[:-1][: row.max_code])
    high = decode(row, all_codes(row)[1 : row.max_code + 1])
    middle = (low + high) / 2
    even = codes + codes % 2
    for sign in (1.0, -1.0):
        for values, want in (
            (np.nextafter(middle, 0), codes),
            (middle, even),
            (np.nextafter(middle, np.inf), codes + 1),
        ):
            got = code_of(row, encode(row, sign * values)) & ((1 << (row.bits - 1)) - 1)
            np.testing.assert_array_equal(got, want)
            cut = code_of(row, encode(row, sign * values, "toward_zero"))
            np.testing.assert_array_equal(cut & ((1 << (row.bits - 1)) - 1), codes)


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("bf16", 1 + 2.0**-8 + 2.0**-30, 1.0078125),
        ("e4m3", 1 + 2.0**-4 + 2.0**-30, 1.125),
        ("bf16", 0.2691408770292272, 0.26953125),
        ("fp16", 1.0007, 1.0009765625),
        ("bf16", 1.0007, 1.0),
        ("bf16", 300000.0, 299008.0),
        ("fp16", 300000.0, np.inf),
        ("tf32", 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-10),
        ("fp32", 1 + 2.0**-24 + 2.0**-50, 1 + 2.0**-23),
    ],
)
def test_known_values_are_rounded_once(name, value, want):
    assert decode(name, encode(name, value)) == want
    assert decode(name, encode(name, -value)) == -want


def nearest_by_search(row, value):
    """Code nearest to a finite float64, by exact rational distances to every code."""
    magnitude = abs(Fraction(value))
    table = [Fraction(v) for v in decode(row, all_codes(row))[: row.max_code + 1]]
    best = min(range(len(table)), key=lambda c: (abs(table[c] - magnitude), c % 2))
    return best | (int(np.signbit(value)) << (row.bits - 1))


@given(
    st.sampled_from([row.name for row in FLOATS if row.bits <= 8]),
    st.floats(-8.0, 8.0, width=64),
)
@settings(max_examples=200, deadline=None)
def test_nearest_by_exact_search(name, value):
    row = get(name)
    if abs(value) > row.max_finite:
        return
    assert int(code_of(row, encode(row, value))) == nearest_by_search(row, value)


@given(st.floats(width=64, allow_nan=False))
@settings(max_examples=300, deadline=None)
def test_fp32_is_the_hardware_conversion(value):
    with np.errstate(over="ignore"):
        want = np.float64(value).astype(np.float32)
    assert encode("fp32", value).view(np.uint32) == want.view(np.uint32)


@pytest.mark.parametrize("row", PLAIN, ids=ids)
def test_overflow(row):
    big = np.array([row.max_finite * 1.5, 1e300, np.inf])
    if not row.is_integer and row.signed:
        big = np.concatenate([big, -big])
    want = np.sign(big) * (np.inf if row.has_inf else np.nan if row.has_nan else row.max_finite)
    np.testing.assert_array_equal(decode(row, encode(row, big)), want)
    limit = np.sign(big) * row.max_finite
    np.testing.assert_array_equal(decode(row, encode(row, big, saturate=True)), limit)
    finite = np.isfinite(big)
    cut = decode(row, encode(row, big, "toward_zero"))
    np.testing.assert_array_equal(cut[finite], limit[finite])
    np.testing.assert_array_equal(cut[~finite], want[~finite])
    both = decode(row, encode(row, big, "toward_zero", saturate=True))
    np.testing.assert_array_equal(both, limit)


def test_fp32_toward_zero_is_the_float32_next_to_zero():
    rng = np.random.default_rng(2)
    values = rng.standard_normal(10000) * 2.0 ** rng.integers(-160, 120, 10000)
    cut = encode("fp32", values, "toward_zero")
    assert (np.abs(cut.astype(np.float64)) <= np.abs(values)).all()
    away = np.nextafter(cut, np.copysign(np.float32(np.inf), values.astype(np.float32)))
    assert (np.abs(away.astype(np.float64)) > np.abs(values)).all()


def test_unsigned_integers():
    row = replace(get("int8"), name="uint8", mantissa_bits=8, specials="unsigned")
    assert (row.bits, row.storage) == (8, np.uint8)
    np.testing.assert_array_equal(encode(row, [-3, 2.5, 254.6, 1e9]), [0, 2, 255, 255])
    np.testing.assert_array_equal(decode(row, np.arange(256, dtype=np.uint8)), np.arange(256))


def test_e4m3_overflow_starts_past_464():
    assert decode("e4m3", encode("e4m3", 464.0)) == 448.0
    assert np.isnan(decode("e4m3", encode("e4m3", np.nextafter(464.0, 500.0))))
    assert decode("e4m3", encode("e4m3", 1000.0, saturate=True)) == 448.0


@pytest.mark.parametrize("row", PLAIN, ids=ids)
@pytest.mark.parametrize("saturate", [False, True])
def test_nan(row, saturate):
    got = decode(row, encode(row, [np.nan, -np.nan], saturate=saturate))
    if row.is_integer:
        np.testing.assert_array_equal(got, [0, 0])
    elif row.has_nan:
        assert np.isnan(got).all()
    else:
        np.testing.assert_array_equal(got, [row.max_finite] * 2)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_round_to_even_and_saturate(name):
    row = get(name)
    values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.999, 1e9, -1e9, np.inf, -np.inf]
    low, high = -(2 ** (row.bits - 1)), 2 ** (row.bits - 1) - 1
    want = [0, 2, 2, 0, -2, -2, 3, high, low, high, low]
    np.testing.assert_array_equal(decode(row, encode(row, values)), want)
    cut = [0, 1, 2, 0, -1, -2, 2, high, low, high, low]
    np.testing.assert_array_equal(decode(row, encode(row, values, "toward_zero")), cut)


def test_e8m0_has_no_zero_no_sign_and_ties_go_up():
    values = [1.5, 3.0, np.nextafter(1.5, 0), 2.0**-130, 0.0, -1.0, 2.0**127 * 1.4]
    want = [2.0, 4.0, 1.0, 2.0**-127, np.nan, np.nan, 2.0**127]
    np.testing.assert_array_equal(decode("e8m0", encode("e8m0", values)), want)
    assert decode("e8m0", encode("e8m0", 1.999, "toward_zero")) == 1.0
    near_bottom = np.array([1.0000002, 1.4999998, 1.5, 1.6]) * 2.0**-127
    np.testing.assert_array_equal(encode("e8m0", near_bottom), [0, 0, 1, 1])


def test_tf32_keeps_its_low_bits_clear_and_ignores_them():
    values = np.random.default_rng(0).standard_normal(1000)
    stored = encode("tf32", values)
    assert not (stored.view(np.uint32) & 0x1FFF).any()
    noisy = (stored.view(np.uint32) | 0x1FFF).view(np.float32)
    np.testing.assert_array_equal(decode("tf32", noisy), decode("tf32", stored))


def test_shapes_and_chunks():
    assert encode("bf16", 1.0).shape == ()
    assert encode("bf16", np.zeros((0, 3))).shape == (0, 3)
    values = np.random.default_rng(1).standard_normal((300, 701))
    values[::17, ::13] = np.nan
    values[5, 5] = 1e300
    whole = encode("e4m3", values)
    rows = np.stack([encode("e4m3", row) for row in values])
    np.testing.assert_array_equal(whole, rows)
    np.testing.assert_array_equal(encode("e4m3", values.T), whole.T)


def test_refusals():
    with pytest.raises(UsageError, match="unknown rounding"):
        encode("fp16", 1.0, rounding="up")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="block format"):
        encode("mxfp8", 1.0)
    with pytest.raises(UsageError, match="stored as uint16"):
        decode("bf16", np.zeros(3, np.float32))
