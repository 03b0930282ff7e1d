"""Input families: seeded, the same for all formats, in range, and rounding in every format."""

import numpy as np
import pytest

from gpulab.errors import UsageError
from gpulab.formats import decode, encode, get
from gpulab.numerics import inputs, probes
from gpulab.numerics.contract import Contract
from gpulab.numerics.inputs import (
    DEFAULT,
    FAMILIES,
    MIN_ROUNDING_SHARE,
    draw,
    families_for,
    rounding_share,
)

FORMATS = ("fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "int8")
SHAPE = (130, 190)


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_family_makes_every_format_round(fmt):
    for name in families_for(fmt):
        for operand in (0, 1):
            share = rounding_share(fmt, draw(name, operand, SHAPE, fmt, 3))
            assert share > 0.9, (name, operand, share)


@pytest.mark.parametrize("fmt", FORMATS)
def test_no_family_overflows(fmt):
    row = get(fmt)
    for name in families_for(fmt):
        for operand in (0, 1):
            values = draw(name, operand, (1000, 1000), fmt, 0)
            assert values.dtype == np.float32
            assert np.isfinite(values).all()
            if row.is_integer:  # integers saturate by declaration; few may
                assert np.mean(np.abs(values) > row.max_finite + 0.5) < 0.02, name
            else:
                assert np.isfinite(decode(row, encode(row, values))).all(), name


def test_sums_of_many_products_stay_in_half_range():
    k = 1 << 16
    for name in families_for("fp16"):
        a, b = draw(name, 0, (4, k), "fp16", 0), draw(name, 1, (k, 4), "fp16", 0)
        assert np.abs(a.astype(float) @ b).max() < get("fp16").max_finite / 1.5, name


@pytest.mark.parametrize("name", FAMILIES)
def test_seeds_operands_and_formats(name):
    first = draw(name, 0, SHAPE, "fp16", 1)
    assert np.array_equal(first, draw(name, 0, SHAPE, "fp16", 1))
    assert not np.array_equal(first, draw(name, 0, SHAPE, "fp16", 2))
    assert not np.array_equal(first, draw(name, 1, SHAPE, "fp16", 1))
    if name != "subnormal":  # which starts at the format's own smallest normal number
        for fmt in ("fp32", "tf32", "bf16", "e4m3", "e5m2"):
            assert np.array_equal(first, draw(name, 0, SHAPE, fmt, 1)), fmt


def test_scales_are_powers_of_two():
    for family in FAMILIES.values():
        for fmt in FORMATS:
            if fmt != "int8":
                assert np.log2(family.factor(get(fmt))).is_integer()


def test_the_families_are_what_they_say():
    def of(name, fmt="fp32", operand=0):
        return draw(name, operand, (400, 500), fmt, 0).astype(np.float64)

    assert abs(of("normal").mean()) < 5 / np.sqrt(200000)
    assert 0 < of("uniform").min() < of("uniform").max() < 1
    logs = np.log(np.abs(of("lognormal")))
    assert logs.std() == pytest.approx(inputs.LOGNORMAL_SIGMA, rel=0.02)
    assert (of("lognormal") > 0).mean() == pytest.approx(0.5, abs=0.01)
    for operand, (period, scale) in enumerate(((97, 0.013), (89, 0.017))):
        levels = np.unique(np.rint(of("periodic", operand=operand) / scale))
        assert np.array_equal(levels, np.arange(period) - period // 2)
        assert of("periodic_positive", operand=operand).min() > 0
    assert (np.diff(of("sorted"), axis=1) >= 0).all()
    assert (np.diff(of("sorted", operand=1), axis=0) >= 0).all()
    largest = np.sort(np.abs(of("spiked")), axis=1)
    assert np.median(largest[:, -1] / largest[:, -2]) > 4
    for fmt in ("fp32", "fp16", "e4m3"):
        values = np.abs(draw("subnormal", 0, SHAPE, fmt, 0).astype(np.float64))
        assert values.min() > 0
        assert values.max() <= get(fmt).min_normal


def test_cancelling_takes_back_most_of_the_sum():
    a, b = draw("cancelling", 0, (9, 400), "fp32", 0), draw("cancelling", 1, (400, 9), "fp32", 0)
    half = a[:, :200].astype(float) @ b[:200]
    assert np.allclose(a.astype(float) @ b, half / 4, rtol=2**-20, atol=np.abs(half).max() * 2**-20)


def test_storing_values_that_a_format_holds_changes_none_of_them():
    integers = np.random.default_rng(0).integers(-8, 9, (50, 50)).astype(np.float32)
    for fmt in ("fp32", "fp16", "bf16", "e4m3", "int8"):
        assert rounding_share(fmt, integers) == 0
    halves = draw("normal", 0, SHAPE, "fp32", 0).astype(np.float16).astype(np.float32)
    assert rounding_share("fp32", halves) == 0  # nothing that tf32 would cut
    assert rounding_share("e4m3", halves) > MIN_ROUNDING_SHARE


def test_unknown_names():
    with pytest.raises(UsageError, match="unknown input family"):
        draw("gauss", 0, SHAPE, "fp16", 0)
    with pytest.raises(UsageError, match="not made for"):
        draw("subnormal", 0, SHAPE, "int8", 0)
    assert set(DEFAULT) <= set(FAMILIES)
    assert "subnormal" not in families_for("int8")


@pytest.mark.parametrize("fmt", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("k", [100, 3000, 1 << 18, (1 << 24) + 9])
def test_an_exact_probe_leaves_terms_out_only_where_ones_alone_would_round(fmt, k):
    contract = Contract(fmt, "fp16" if fmt == "fp16" else "fp32", "fp32")
    chosen = probes.choose(contract, k)
    limit = 1 << contract.sum_bits
    assert -(-k // chosen.stride) * chosen.product <= limit
    if chosen.stride > 1:
        assert chosen.narrow == 1
        if fmt != "fp32":
            assert chosen.wide == 1
    elif fmt != "fp32" and chosen.wide < get(fmt).mantissa_bits + 1:
        assert k * ((2 << chosen.wide) - 1) ** 2 > limit, "a bit more would round"


def test_every_term_is_in_some_row_of_a_probe_and_the_last_one_in_the_first():
    """A loop that ends a term early shows however sparse the rows are."""
    contract, k = Contract("fp16", "fp16", "fp32"), 9000
    probe = probes.exact(contract, 8, 3, k, seed=1)
    stride = probes.choose(contract, k).stride
    assert stride == 5  # 9000 ones are more than 2^11
    used = decode("fp16", probe.inputs["a"]) != 0
    assert used[0, k - 1]
    assert (used.sum(axis=1) == k // stride).all()
    assert used.any(axis=0).all()
    assert (decode("fp16", probe.inputs["b"]) != 0).all()
