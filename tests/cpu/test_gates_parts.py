"""The parts of the gates on hand-made numbers, and that each part is needed."""

import math
from fractions import Fraction

import gate_kernels as wrong
import ml_dtypes
import numpy as np
import pytest
from gate_kernels import Row, runner

from gpulab.formats import FORMATS, decode, get
from gpulab.numerics import errors, gates
from gpulab.numerics.contract import Contract
from gpulab.numerics.gates import RmsSum, contract_gate, contract_tolerance, interval, rms_limit
from gpulab.numerics.rounding import next_lower, through, to_significand
from gpulab.numerics.simulate import Spread
from gpulab.ops import matmul_measure
from gpulab.ops.matmul import MATMUL

NAN, INF = np.nan, np.inf


def arr(*values):
    return np.array(values, np.float64)


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3", "e5m2", "e2m3", "e2m1"])
def test_gaps_are_the_distances_between_neighbouring_codes(fmt):
    row = get(fmt)
    codes = np.arange(row.max_code + 1).astype(f"u{row.storage.itemsize}").view(row.storage)
    held = decode(row, codes)
    inner, outer = errors.gaps(row, held)
    assert np.array_equal(outer[:-1], np.diff(held))
    assert np.array_equal(inner[1:], np.diff(held))
    assert np.array_equal(errors.gaps(row, -held)[1], outer)


def test_gaps_of_float32_are_those_of_the_machine():
    held = np.float32([1, 1.5, 2, 3.7, 1e-40, 1e30, 0])
    up = np.nextafter(held, np.float32(np.inf)).astype(float) - held
    assert np.array_equal(errors.gaps("fp32", held)[1], up)


def test_elementwise_and_root_mean_square():
    e = errors.elementwise(arr(1, 2.5, 0), arr(1, 2, 0))
    assert (e.max_abs, e.max_rel, e.index) == (0.5, 0.25, (1,))
    assert np.array_equal(errors.ulp("fp16", arr(1 + 2**-12, 2)), [2**-10, 2**-9])
    assert errors.rms(arr(3, 4, 0, 0)) == 2.5


@pytest.mark.parametrize(
    ("got", "want"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (INF, -INF), (NAN, INF)]
)
def test_a_value_of_another_kind_is_infinitely_wrong(got, want):
    assert errors.elementwise(arr(got), arr(want)).max_abs == INF


@pytest.mark.parametrize("same", [INF, -INF, NAN, 2.0])
def test_the_same_kind_is_no_error(same):
    assert errors.elementwise(arr(same), arr(same)).max_abs == 0


def test_significand_rounding_against_other_types():
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    bf16 = x.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(to_significand(x, 8), bf16)
    cut = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    assert np.array_equal(to_significand(x, 11, toward_zero=True), cut)
    assert next_lower(get("fp32")).name == "tf32"
    assert next_lower(get("e4m3")).mantissa_bits == 2


def test_contract_tolerance_is_the_published_arithmetic():
    t = contract_tolerance("matmul", "fp16", "fp32", 2048)
    assert t.rtol == 4 * 2**-10 * math.sqrt(2048)
    assert t.text == "rtol = max(0.01, 4 * 2^-10 * sqrt(2048)) = 0.17678"
    assert contract_tolerance("matmul", "fp16", "fp32", 1).rtol == gates.TABLE["matmul"]["fp16"]
    assert contract_tolerance("matmul", "fp32", "fp32", 1).rtol == gates.TABLE["matmul"]["fp32"]
    assert contract_tolerance("matmul", "fp32", "bf16", 64).rtol == 4 * 2**-7 * 8
    assert contract_tolerance("matmul", "e4m3", "fp32", 64).rtol == 4 * 2**-3 * 8
    assert contract_tolerance("matmul", "int8", "int32", 64).rtol == 0


def test_a_bare_thousandth_is_out_of_reach_of_bf16_outputs():
    just_below_two = get("bf16").unit_roundoff / 2  # relative half ulp, smallest in a binade
    assert just_below_two == 2**-9 > gates.TABLE["softmax"]["*"]
    assert contract_tolerance("matmul", "bf16", "bf16", 1).rtol > 2 * just_below_two


def test_contract_gate_limits_and_nan():
    t = gates.ContractTolerance(0.25, "")
    r0 = arr(4, -2, 0)
    at_limit = contract_gate(r0 + arr(2, -1.5, 1), r0, 4.0, t)
    assert at_limit.ok.all()
    assert at_limit.fraction == 1.0
    beyond = contract_gate(r0 + arr(0, 0, np.nextafter(1, 2)), r0, 4.0, t)
    assert beyond.ok.tolist() == [True, True, False]
    assert beyond.fraction > 1
    for value in (NAN, INF):
        bad = contract_gate(arr(value, -2, 0), r0, 4.0, t)
        assert bad.ok.tolist() == [False, True, True]
        assert bad.fraction == INF


@pytest.mark.parametrize("kind", [INF, -INF, NAN])
def test_contract_gate_wants_the_kind_of_the_reference(kind):
    t = gates.ContractTolerance(0.25, "")
    found = contract_gate(arr(kind, 0.0, -kind), arr(kind, kind, kind), 1.0, t)
    assert found.ok.tolist() == [True, False, bool(np.isnan(kind))]
    assert found.fraction == INF


def test_interval_counts_a_tie_that_rounds_the_other_way_as_outside():
    """1 + D is half way to the next half number and goes to the even 1.0: D is not enough."""
    fp16 = get("fp16")
    d = fp16.unit_roundoff
    found = interval(arr(1 + fp16.eps), arr(1.0), arr(d), fp16)
    assert not found.ok.any()
    assert found.fraction > 1
    assert interval(arr(1 + fp16.eps), arr(1.0), arr(d * (1 + 2**-40)), fp16).ok.all()


@pytest.mark.parametrize("output", ["fp32", "fp16", "bf16", "e4m3"])
def test_interval_is_where_rounding_the_bounds_says(output):
    """Against exact rational arithmetic on every neighbour of the right answer."""
    row, rng = get(output), np.random.default_rng(1)
    r1 = rng.standard_normal(300) * np.exp2(rng.integers(-8, 8, 300))
    d = np.abs(r1) * np.exp2(rng.integers(-12, 0, 300)) * row.eps * 16
    right = through(row, r1)
    for ulps in range(-3, 4):
        got = through(row, right + ulps * errors.ulp(row, right))
        found = interval(got, r1, d, row)
        low, high = through(row, r1 - d), through(row, r1 + d)
        assert np.array_equal(found.ok, (got >= low) & (got <= high))
        assert (found.fraction <= 1) == bool(found.ok.all())
        one = [
            interval(got[i : i + 1], r1[i : i + 1], d[i : i + 1], row).fraction for i in range(60)
        ]
        if found.ok.all():
            rest = interval(got[60:], r1[60:], d[60:], row).fraction
            assert found.fraction == max(*one, rest), "the largest share, wherever it is"
        for i, share in enumerate(one):
            want = exact_share(row, got[i], r1[i], d[i])
            assert share == pytest.approx(float(want), rel=2**-40) or not found.ok[i]
            assert (share <= 1) == bool(found.ok[i])


def exact_share(row, got, r1, d):
    """Distance from R1 to the reals that round to ``got``, over D, in rational arithmetic."""
    inner, outer = (Fraction(float(g[0])) for g in errors.gaps(row, arr(got)))
    g, r = abs(Fraction(got)), Fraction(r1) * (1 if got >= 0 else -1)
    return max(g - inner / 2 - r, r - g - outer / 2, Fraction(0)) / Fraction(d)


def test_interval_at_the_edges():
    fp16 = get("fp16")
    top, beyond = fp16.max_finite, fp16.max_finite + 16  # the middle between 65504 and 65536
    assert interval(arr(INF), arr(beyond), arr(1.0), fp16).ok.all()
    assert interval(arr(top), arr(beyond), arr(1.0), fp16).ok.all()
    assert not interval(arr(INF), arr(top), arr(1.0), fp16).ok.any()
    assert not interval(arr(-INF), arr(70000), arr(1.0), fp16).ok.any()
    for kind in (INF, -INF, NAN):
        assert interval(arr(kind), arr(kind), arr(INF), fp16).ok.all()
        assert not interval(arr(0.0), arr(kind), arr(INF), fp16).ok.any()
        assert not interval(arr(NAN), arr(1.0), arr(1.0), fp16).ok.any()
    assert interval(arr(0.0), arr(0.0), arr(0.0), fp16).fraction == 0
    assert interval(arr(2.0**-24), arr(0.0), arr(0.0), fp16).fraction > 1


def test_int32_is_exact_modulo_two_to_the_32():
    r1 = arr(5, 2**31, -(2**31) - 1)
    assert interval(arr(5, -(2**31), 2**31 - 1), r1, 0 * r1, None).ok.all()
    assert not interval(arr(6, 0, 0), r1, 0 * r1, None).ok.any()


def test_rms_counts_every_element_and_never_accepts_nan():
    total = RmsSum()
    r1 = np.ones((2, 3))
    total.add(r1 + np.array([[3, 0, 0], [0, 4, 0]]), r1, np.full((2, 3), 2.0))
    assert total.rms == pytest.approx(math.sqrt((1.5**2 + 2**2) / 6))
    total.add(np.full((1, 1), NAN), np.ones((1, 1)), np.ones((1, 1)))
    assert not total.rms <= INF


def gaussian(sigma, count):
    return Spread(sigma**2, 3 * sigma**4, 4 * sigma, count)


def test_rms_limit_is_twice_the_simulated_rms_for_many_elements():
    for count in (1 << 10, 1 << 20):
        assert rms_limit(gaussian(0.5, 1 << 10), count) == 2 * 0.5
    assert rms_limit(Spread(0.0, 0.0, 0.0, 1024), 1) == 0, "exact contracts allow nothing"


def test_rms_limit_for_few_elements_is_rarely_exceeded_by_chance():
    rng = np.random.default_rng(3)
    for count in (1, 4, 16, 64):
        limit = rms_limit(gaussian(1.0, 1024), count)
        assert limit > 2
        rms = np.sqrt(np.mean(rng.standard_normal((20000, count)) ** 2, axis=1))
        assert (rms <= limit).all()


def test_allowances_are_the_published_formulas():
    k = 2048
    u = Fraction(1, 1 << 24)
    assert Contract("fp32", "fp32", "fp32").allowance(k).relative == 4 * math.sqrt(k) * float(u)
    assert Contract("fp32", "fp32", "fp32").allowance(k).absolute == k * 2.0**-149
    for capability, n, b in (((8, 0), 8, Fraction(11)), ((9, 0), 16, Fraction(21, 2))):
        found = Contract("fp16", "fp32", "fp32", wrong.MMA["fp16"], capability).allowance(k)
        want = (Fraction(2, 5) * k / n + 1) * b * u
        assert found.relative == pytest.approx(float(want), rel=2**-50)
    ada = Contract("e4m3", "fp32", "fp32", wrong.MMA["e4m3"], (8, 9))
    assert ada.allowance(k).relative == pytest.approx(
        float((Fraction(2, 5) * k / 16 + 1) * 36 / 2**14)
    )
    hopper = Contract("e4m3", "fp32", "fp32", wrong.WGMMA_E4M3, (9, 0))
    assert hopper.allowance(k).relative == pytest.approx(
        float((Fraction(2, 5) * k / 32 + 1) * 68 / 2**14)
    )
    promoted = Contract("e4m3", "fp32", "fp32", wrong.WGMMA_E4M3, (9, 0), promotion=128)
    in_blocks = float((Fraction(2, 5) * 128 / 32 + 1) * 68 / 2**14)
    assert promoted.allowance(k).relative == pytest.approx(
        in_blocks + 4 * math.sqrt(k / 128) * float(u)
    )
    assert promoted.allowance(64).relative == pytest.approx(
        float((Fraction(2, 5) * 64 / 32 + 1) * 68 / 2**14)
    )
    through = Contract("e4m3", "fp32", "fp32", wrong.MMA["e4m3"], (9, 0))  # two half blocks, RN add
    restarted = float((Fraction(2, 5) * 32 / 16 + 1) * Fraction(21, 2) * u)
    assert through.allowance(k).relative == pytest.approx(
        restarted + 4 * math.sqrt(k / 32) * float(u)
    )
    half = Contract("fp16", "fp16", "fp16").allowance(k).relative
    assert half == pytest.approx(float((1 + Fraction(1, 1 << 11)) ** (k + 1) - 1))
    assert Contract("int8", "int32", "int32").allowance(k).relative == 0


def reasons(row, kernel, dims, families):
    j = MATMUL.judge(row, dims, runner(row, kernel), capability=(8, 9), families=families)
    return j, {r.code for r in j.reasons}


def test_the_rms_part_is_needed():
    """TF32 under an fp32 contract, K = 16384, periodic: inside the interval, plain in the rms."""
    row, dims = Row("fp32"), {"m": 24, "n": 24, "k": 16384}
    j, codes = reasons(row, wrong.cut_to_tf32, dims, ["periodic"])
    assert "interval" not in codes
    assert "rms" in codes
    assert j.families[0].rms_fraction > 1 > j.families[0].interval_fraction


def test_the_interval_part_is_needed(monkeypatch):
    """One element two ulps off among 1600 whose errors are the output's own roundings."""
    row, dims = Row("bf16", output="bf16"), {"m": 40, "n": 40, "k": 64}

    def slip(a, b):
        c = wrong.sequential(a, b)
        c[7, 9] *= 1 + 2.0**-6
        return c.astype(np.float32).astype(np.float64)

    _, codes = reasons(row, slip, dims, ["normal"])
    assert "interval" in codes
    assert "rms" not in codes
    monkeypatch.setattr(
        matmul_measure.gates,
        "interval",
        lambda got, *_: gates.IntervalResult(got == got, 0.0, (0, 0)),
    )
    j, codes = reasons(row, slip, dims, ["normal"])
    assert codes == {"exact-probe"}, "without it only the probe is left"
    assert j.verdict == "FAIL"


def test_fractions_are_the_largest_over_elements_and_families():
    row, dims = Row("fp32"), {"m": 300, "n": 1000, "k": 8}  # more than one piece
    j, codes = reasons(row, wrong.sequential, dims, None)
    assert codes == set()
    by_family = [f.interval_fraction for f in j.families]
    assert j.parts["interval"] == max(by_family)
    assert min(by_family) > 0
    assert j.arithmetic_fraction == max(j.parts.values()) <= 1
    for family in ("normal", "uniform"):
        alone, _ = reasons(row, wrong.sequential, dims, [family])
        a, b = MATMUL.make_inputs(dims, family, "fp32", 0).values()
        r1 = a.astype(float) @ b.astype(float)
        s = np.abs(a).astype(float) @ np.abs(b)
        allowed = Contract("fp32", "fp32", "fp32").allowance(8)
        got = wrong.sequential(a.astype(float), b.astype(float))
        whole = interval(got, r1, allowed.relative * s + allowed.absolute, get("fp32"))
        assert alone.families[0].interval_fraction == pytest.approx(whole.fraction, rel=2**-20)
        z = (got - r1) / s
        assert alone.families[0].rms == pytest.approx(errors.rms(z), rel=2**-20, abs=0)


def test_the_probes_are_needed():
    """Two half partial sums under a half output: no family tells them from an honest rounding."""
    row, dims = Row("fp16", output="fp16"), {"m": 12, "n": 12, "k": 16384}
    j, codes = reasons(row, wrong.half_partials, dims, ["normal"])
    assert codes == {"exact-probe"}
    assert j.families[0].arithmetic_fraction <= 1
    assert j.probes[0].wrong > j.probes[0].checked / 4


def test_formats_without_a_lower_one_are_refused():
    from gpulab.errors import UsageError

    lowest = min(
        (f for f in FORMATS.values() if f.signed and not f.is_integer),
        key=lambda f: f.mantissa_bits,
    )
    with pytest.raises(UsageError, match="no format below"):
        next_lower(lowest)
