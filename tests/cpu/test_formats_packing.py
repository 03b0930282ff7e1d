"""Packing both ways; block scales by each named rule, from published discriminating inputs."""

import math
from fractions import Fraction

import numpy as np
import pytest

from gpulab.errors import UsageError
from gpulab.formats import FORMATS, decode, encode, get
from gpulab.formats.packing import (
    SCALE_RULES,
    from_containers,
    pack,
    quantise,
    to_containers,
    unpack,
)

NARROW = [row.name for row in FORMATS.values() if row.block is None and row.bits <= 8]
MX = [row.name for row in FORMATS.values() if row.block is not None and row.name != "nvfp4"]


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 64])
def test_pack_and_back(name, count):
    bits = get(name).bits
    codes = np.random.default_rng(count).integers(0, 1 << bits, (3, count)).astype(np.uint8)
    packed = pack(name, codes)
    assert packed.shape == (3, math.ceil(count * bits / 8))
    np.testing.assert_array_equal(unpack(name, packed, count), codes)


def test_packing_order():
    assert pack("e2m1", [0x1, 0x2, 0x3]).tolist() == [0x21, 0x03]
    word = 0x01 | 0x02 << 6 | 0x03 << 12 | 0x3F << 18
    assert pack("e2m3", [1, 2, 3, 0x3F]).tolist() == list(word.to_bytes(3, "little"))
    assert pack("int8", np.array([-1, 2], np.int8)).tolist() == [0xFF, 2]


def test_tensor_core_containers():
    assert to_containers("e2m1", [0xF]).tolist() == [0b00111100]
    assert to_containers("e3m2", [0x3F]).tolist() == [0x3F]
    assert to_containers("e4m3", [0xFF]).tolist() == [0xFF]
    assert from_containers("e2m1", [0b11111111]).tolist() == [0xF]
    codes = np.arange(64, dtype=np.uint8)
    np.testing.assert_array_equal(from_containers("e2m3", to_containers("e2m3", codes)), codes)


def test_packing_refusals():
    with pytest.raises(UsageError, match="16 bits"):
        pack("bf16", [1])
    with pytest.raises(UsageError, match="need 3 bytes"):
        unpack("e2m3", np.zeros(2, np.uint8), 4)


@pytest.mark.parametrize(
    ("fmt", "amax", "scales"),
    [
        # (floor, ceil, rceil, even) exponents; the inputs on which the rules part.
        ("mxfp8", 500.0, (0, 1, 1, 1)),
        ("mxfp8", 150.0, (-1, 0, -1, -1)),
        ("mxfp8", 448.0, (0, 1, 0, 0)),
        ("mxfp8", np.nextafter(448.0, 500.0), (0, 1, 1, 0)),
        ("mxfp8", 256.0, (0, 0, 0, 0)),
        ("mxfp4", 7.0, (0, 1, 1, 1)),
        ("mxfp4", 6.0, (0, 1, 0, 0)),
        ("mxfp4", 6.9, (0, 1, 1, 0)),
        ("mxfp6", 7.75, (0, 1, 1, 1)),
    ],
)
def test_scale_rules(fmt, amax, scales):
    got = {}
    for rule in SCALE_RULES:
        codes = quantise(fmt, [0.0, -amax, amax / 3], rule).scales
        got[rule] = int(codes[0]) - 127
    assert got == dict(zip(("floor", "ceil", "rceil", "even"), scales, strict=True))


def test_floor_saturates_the_largest_element_and_rceil_does_not():
    assert quantise("mxfp8", [500.0], "floor").dequantise()[0] == 448.0
    assert quantise("mxfp4", [7.0], "floor").dequantise()[0] == 6.0
    assert quantise("mxfp8", [500.0], "rceil").dequantise()[0] == 512.0
    block = np.full(32, 127.99999)
    assert quantise("mxfp8", block, "floor", element="e5m2").dequantise()[0] == 112.0
    assert quantise("mxfp8", block, "rceil", element="e5m2").dequantise()[0] == 128.0


@pytest.mark.parametrize("fmt", MX)
@pytest.mark.parametrize("rule", list(SCALE_RULES))
def test_elements_are_the_values_over_the_scale_rounded_once(fmt, rule):
    row = get(fmt)
    rng = np.random.default_rng(3)
    values = rng.standard_normal((4, 5 * 32 + 7)) * 2.0 ** rng.integers(-40, 40, (4, 1))
    made = quantise(fmt, values, rule)
    assert made.codes.shape == values.shape
    assert made.scales.shape == (4, 6)
    for i in range(4):
        for block in range(6):
            part = slice(32 * block, 32 * block + 32)
            scale = 2.0 ** (int(made.scales[i, block]) - 127)
            want = encode(row.block.elements[0], values[i, part] / scale, saturate=True)
            np.testing.assert_array_equal(made.codes[i, part], want)
            largest = np.abs(values[i, part]).max() / scale
            if rule in ("ceil", "rceil"):
                assert largest <= row.max_finite
            if rule == "rceil":
                assert largest > row.max_finite / 2
    error = np.abs(made.dequantise() - values)
    amax = np.abs(values).max()
    assert error.max() <= amax * (row.eps if rule != "floor" else 0.5)


def test_nvfp4():
    values = np.random.default_rng(0).standard_normal((3, 40)) * 100
    made = quantise("nvfp4", values)
    assert made.rule == "amax"
    assert made.scales.shape == (3, 3)
    assert np.float32(made.tensor_scale) == made.tensor_scale
    wanted = np.abs(values).max() / (6 * 448)
    assert abs(made.tensor_scale - wanted) <= wanted * 2.0**-24
    amax = np.abs(values[1, 16:32]).max()
    scale = decode("e4m3", encode("e4m3", amax / (6 * made.tensor_scale)))
    assert decode("e4m3", made.scales[1, 1]) == scale
    # Exact rational quotients: nothing is rounded twice.
    step = Fraction(float(scale)) * Fraction(made.tensor_scale)
    table = [Fraction(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    for value, code in zip(values[1, 16:32], made.codes[1, 16:32], strict=True):
        quotient = abs(Fraction(value)) / step
        best = min(range(8), key=lambda c: (abs(table[c] - quotient), c % 2))
        assert int(code) == best | (8 if value < 0 else 0)


@pytest.mark.parametrize("fmt", [*MX, "nvfp4"])
def test_zeros_non_finite_and_empty(fmt):
    np.testing.assert_array_equal(quantise(fmt, np.zeros(40)).dequantise(), np.zeros(40))
    values = np.ones(64)
    values[3] = np.nan
    back = quantise(fmt, values).dequantise()
    length = get(fmt).block.length
    assert np.isnan(back[:length]).all()
    tolerance = 2.0**-24 if fmt == "nvfp4" else 0.0  # the tensor scale 1 / 2688 is rounded
    np.testing.assert_allclose(back[length:], np.ones(64 - length), rtol=tolerance)
    values[3] = -np.inf
    assert np.isnan(quantise(fmt, values).dequantise()[:length]).all()
    assert quantise(fmt, np.zeros((2, 0))).dequantise().shape == (2, 0)


@pytest.mark.parametrize("fmt", MX)
def test_scales_stay_in_their_format(fmt):
    tiny = quantise(fmt, [2.0**-300])
    assert tiny.scales[0] == 0
    huge = quantise(fmt, [1e300])
    assert huge.dequantise()[0] == get(fmt).max_finite * 2.0**127


def test_quantise_refusals():
    with pytest.raises(UsageError, match="not a block format"):
        quantise("fp16", [1.0])
    with pytest.raises(UsageError, match="no scale rule 'round'"):
        quantise("mxfp8", [1.0], "round")
    with pytest.raises(UsageError, match="no scale rule 'floor'"):
        quantise("nvfp4", [1.0], "floor")
    with pytest.raises(UsageError, match="no e2m1 elements"):
        quantise("mxfp8", [1.0], element="fp4")
