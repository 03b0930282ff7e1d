"""The approximate instructions outside their recorded sweeps: rules, forms, errors, statuses."""

import numpy as np
import pytest

from gpulab.errors import UsageError
from gpulab.numerics.approx import evaluate, evaluate2, modelled, status


def random_bits(seed, n=20_000):
    return np.random.default_rng(seed).integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32)


def as_float(bits):
    return bits.view(np.float32).astype(np.float64)


# PTX ISA: largest relative or absolute errors of the instructions over the full range.
BOUNDS = {
    "rcp.approx.ftz.f32": (lambda x: 1 / x, "ulp", 1),
    "rcp.approx.f32": (lambda x: 1 / x, "ulp", 1),
    "rsqrt.approx.ftz.f32": (lambda x: 1 / np.sqrt(x), "relative", 2.0**-22.9),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), "relative", 2.0**-22.9),
    "sqrt.approx.ftz.f32": (np.sqrt, "relative", 2.0**-23),
    "sqrt.approx.f32": (np.sqrt, "relative", 2.0**-23),
    "ex2.approx.ftz.f32": (np.exp2, "ulp", 2),
    "ex2.approx.f32": (np.exp2, "ulp", 2),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_any_argument_stays_within_the_documented_error(name):
    exact, kind, bound = BOUNDS[name]
    x = random_bits(3)
    if name.startswith("ex2"):
        spread = np.random.default_rng(4).uniform(-150, 128, len(x)).astype(np.float32)
        x = spread.view(np.uint32)
    with np.errstate(all="ignore"):
        want = exact(as_float(x))
        finite = np.isfinite(want) & (np.abs(want) < 2.0**128) & (np.abs(as_float(x)) < 2.0**127)
        tiny = np.abs(want) < 2.0**-126
        if ".ftz" in name:
            finite &= ~tiny & (np.abs(as_float(x)) >= 2.0**-126)
        got = as_float(evaluate(name, x))
        error = np.abs(got - want)
        unit = np.maximum(np.spacing(np.abs(want).astype(np.float32)), 2.0**-149)
        scaled = error / (unit if kind == "ulp" else np.where(tiny, unit, np.abs(want)))
    assert finite.sum() > len(x) // 4
    limit = np.where(tiny & (kind != "ulp"), 1.5, bound * (1 + 2.0**-20) + (kind == "ulp") * 0.5)
    assert (scaled <= limit)[finite].all()


def test_lg2_is_monotone_enough_and_close_everywhere():
    x = np.sort(np.abs(random_bits(5).view(np.float32)))
    x = x[np.isfinite(x) & (x > 0)]
    got = as_float(evaluate("lg2.approx.f32", x.view(np.uint32)))
    want = np.log2(x.astype(np.float64))
    assert (np.abs(got - want) <= 2.0**-22 + 2.0**-23 * np.abs(want)).all()


def test_reciprocals_scale_exactly_with_the_exponent():
    x = random_bits(6).view(np.float32)
    x = x[(np.abs(x) > 2.0**-60) & (np.abs(x) < 2.0**60)]
    name = "rcp.approx.ftz.f32"
    base = evaluate(name, x.view(np.uint32)).view(np.float32)
    for shift in (-40, 17):
        moved = evaluate(name, (x * np.float32(2.0**shift)).view(np.uint32)).view(np.float32)
        assert (moved == base * np.float32(2.0**-shift)).all()
    negated = evaluate(name, (-x).view(np.uint32)).view(np.float32)
    assert (negated == -base).all()


def test_flushing_forms_see_and_give_no_subnormals():
    subnormal = np.array([0x1, 0x80000001, 0x7FFFFF, 0x807FFFFF], np.uint32)
    zeros = subnormal & np.uint32(1 << 31)
    for name in ("rcp", "rsqrt", "sqrt", "lg2", "ex2"):
        flush = f"{name}.approx.ftz.f32"
        assert (evaluate(flush, subnormal) == evaluate(flush, zeros)).all()
    big = np.float32([2.0**127, -(2.0**127), 1.5 * 2.0**126]).view(np.uint32)
    assert (evaluate("rcp.approx.ftz.f32", big) == (big & np.uint32(1 << 31))).all()
    kept = evaluate("rcp.approx.f32", big).view(np.float32)
    assert (kept[:2] == np.float32([2.0**-127, -(2.0**-127)])).all()
    deep = np.float32([-126.5, -149.0, -149.5, -151.0]).view(np.uint32)
    assert (evaluate("ex2.approx.ftz.f32", deep) == 0).all()
    assert list(evaluate("ex2.approx.f32", deep) > 0) == [True, True, True, False]


def test_division_multiplies_by_the_reciprocal():
    rng = np.random.default_rng(7)
    a = (rng.standard_normal(5000) * 2.0 ** rng.integers(-30, 30, 5000)).astype(np.float32)
    b = (rng.standard_normal(5000) * 2.0 ** rng.integers(-30, 30, 5000)).astype(np.float32)
    reciprocal = evaluate("rcp.approx.ftz.f32", b.view(np.uint32)).view(np.float32)
    for name in ("div.approx.f32", "div.approx.ftz.f32"):
        got = evaluate2(name, a.view(np.uint32), b.view(np.uint32))
        assert (got.view(np.float32) == a * reciprocal).all()
        assert evaluate2(name, np.float32(0), np.float32(0)) == 0x7FFFFFFF
        assert evaluate2(name, np.float32(1), np.float32(0)) == 0x7F800000
    # a subnormal result; a subnormal dividend; a subnormal divisor
    cases = np.float32([2e-38, 8]), np.float32([1e-39, 1e-6]), np.float32([1e-3, 1e-40])
    for (a, b), flushed, kept in zip(cases, (0, 0, np.inf), (2.5e-39, 1e-33, 1e37), strict=True):
        for form in ("approx", "full"):
            got = [evaluate2(f"div.{form}{f}.f32", a, b).view(np.float32) for f in (".ftz", "")]
            assert got[0] == flushed
            assert np.isclose(got[1], kept, rtol=1e-5, atol=0)


def test_full_division_holds_where_the_reciprocal_underflows():
    """PTX ISA: div.full has 2 ulp over the full range; div.approx gives 0 above 2^126."""
    rng = np.random.default_rng(8)
    exponents = rng.integers(-149, 128, (2, 20_000))
    a, b = (rng.uniform(1, 2, exponents.shape) * 2.0**exponents).astype(np.float32)
    b[:4000] = rng.uniform(2.0**126, 2.0**128 * 0.999, 4000)
    b[4000:8000] = rng.uniform(2.0**-149, 2.0**-126, 4000)
    exact = a.astype(np.float64) / b.astype(np.float64)
    got = as_float(evaluate2("div.full.f32", a, b))
    normal = (np.abs(exact) > 2.0**-126) & (np.abs(exact) < 2.0**128) & (np.abs(a) > 2.0**-120)
    assert normal.sum() > 5000
    unit = np.spacing(exact[normal].astype(np.float32)).astype(np.float64)
    assert (np.abs(got - exact)[normal] <= 2 * unit).all()
    large = b > 2.0**126
    assert normal[large].any()
    assert (evaluate2("div.approx.f32", a[large], b[large]) == 0).all()
    ratio = evaluate2("div.full.f32", np.float32(np.inf), np.float32(2.0**127))
    assert ratio == 0x7F800000
    # Flushing: the quarter of a small dividend is subnormal, so zero.
    got = [
        evaluate2(f"div.full{f}.f32", np.float32(2.0**-126), np.float32(2.0**127))
        for f in ("", ".ftz")
    ]
    assert list(map(int, got)) == [0, 0]


def test_packed_forms_and_shapes():
    halves = np.arange(0x3C00, 0x3C40, dtype=np.uint16).reshape(4, 4, 4)
    packed = evaluate("ex2.approx.f16x2", halves)
    assert packed.shape == (4, 4, 4)
    assert (packed == evaluate("ex2.approx.f16", halves.view(np.float16))).all()
    assert (evaluate("tanh.approx.bf16x2", halves) == evaluate("tanh.approx.bf16", halves)).all()
    x = np.ones((70_000, 2), np.float32)[:, ::2]
    assert evaluate("rcp.approx.ftz.f32", x).shape == (70_000, 1)
    assert evaluate("rcp.approx.f32", np.float32(4)).view(np.float32) == 0.25
    assert evaluate("lg2.approx.f32", np.zeros((0, 3), np.uint32)).shape == (0, 3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tanh.approx.f32", "not recorded"),
        ("sin.approx.f32", "not recorded"),
        ("cos.approx.ftz.f32", "not recorded"),
        ("ex3.approx.f32", "no such"),
        ("rcp.rn.f32", "no such"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(name, says):
    with pytest.raises(UsageError, match=says) as error:
        evaluate(name, np.zeros(1, np.uint32))
    assert name in error.value.message
    assert "rcp.approx.ftz.f32" in error.value.fix


def test_wrong_widths_and_division_forms_are_refused():
    with pytest.raises(UsageError, match="32-bit"):
        evaluate("rcp.approx.f32", np.zeros(1, np.float64))
    with pytest.raises(UsageError, match="16-bit"):
        evaluate("tanh.approx.f16", np.zeros(1, np.float32))
    with pytest.raises(UsageError, match="no such"):
        evaluate2("div.rn.f32", np.float32(1), np.float32(1))


def test_status_tells_recorded_from_assumed():
    assert status("ex2.approx.ftz.f32", (9, 0))[0] == "recorded"
    assert status("ex2.approx.ftz.f32", (8, 9))[0] == "assumed"
    assert status("rcp.approx.f32", (9, 0))[0] == "recorded"
    assert status("ex2.approx.f16x2", (9, 0))[0] == "recorded"
    for name in modelled():
        assert status(name, (12, 0))[0] == "assumed"
    with pytest.raises(UsageError):
        status("tanh.approx.f32", (9, 0))
