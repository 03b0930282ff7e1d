"""What a verdict rests on: each family counts, NaN is no small error, signs are told apart."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gpulab.formats import encode, get
from gpulab.numerics import errors, gates, reference, simulate, structure, tensorcore
from gpulab.numerics.contract import Contract
from gpulab.numerics.simulate import Spread
from gpulab.numerics.verdict import FamilyResult, Judgement, Reason
from gpulab.ops.rows_contract import Answer

MMA = "mma.sync.m16n8k16.f32.f16.f16.f32"


def arr(*values):
    return np.array(values, np.float64)


def family(name="normal", **fields):
    plain = dict.fromkeys(
        ("max_abs_err", "max_rel_err", "max_abs_err_stored", "storage_err", "rtol", "atol",
         "contract_fraction", "interval_fraction", "rms"), 0.5,
    )  # fmt: skip
    return FamilyResult(**{"family": name, "seed": 0, "contract_text": "", "rms_limit": 1.0,
                           **plain, **fields})  # fmt: skip


def judgement(*families, rests_on="both", reasons=()):
    return Judgement(families, (), (), tuple(reasons), 1.0, "", "", 1, rests_on)


@pytest.mark.parametrize("bad", [0, 1])
def test_the_ceiling_holds_where_it_holds_on_every_family(bad):
    families = [family(str(i), contract_fraction=2.0 if i == bad else 0.5) for i in range(2)]
    assert not judgement(*families).contract_passed
    assert judgement(*families[:bad], *families[bad + 1 :]).contract_passed


def test_an_rms_that_is_no_number_uses_all_of_its_limit():
    lost = family(rms=math.nan)
    assert lost.rms_fraction == math.inf
    assert not judgement(lost).arithmetic_passed
    assert judgement(lost).caught_on == ("normal",)
    assert family(rms=0.0, rms_limit=0.0).rms_fraction == 0
    assert family(rms=1e-9, rms_limit=0.0).rms_fraction == math.inf


@pytest.mark.parametrize("code", ["shape", "unwritten", "nonfinite", "nondeterministic"])
def test_the_ceiling_alone_excuses_roundings_and_nothing_else(code):
    found = judgement(family(), rests_on="contract", reasons=[Reason(code, ""), Reason("rms", "")])
    assert [r.code for r in found.reasons] == [code]
    assert found.verdict == "FAIL"


def test_summaries_of_two_parts_are_those_of_the_whole():
    got, want = arr(1, 2.5, 3, 4), arr(1, 2, 3, 1)
    parts = [errors.elementwise(got[:2], want[:2]), errors.elementwise(got[2:], want[2:])]
    whole = errors.elementwise(got, want)
    for one, other in (parts, parts[::-1]):
        merged = one.merge(other)
        assert (merged.max_abs, merged.max_rel) == (whole.max_abs, whole.max_rel) == (3, 3)
        assert merged.index == (1,), "within the part it is in"


def test_allclose_of_two_parts_is_that_of_the_whole():
    for parts in ((1.5, 1.0), (1.0, 1.5)):
        close = {}
        for got in parts:
            errors.usual_allclose(close, arr(got), arr(1.0))
        assert not any(close.values())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_share_of_d_of_a_result_across_zero(sign):
    """What rounds to -1 in float16 reaches up to -1 + 2^-12 (the binade below has half the gap)."""
    fp16 = get("fp16")
    found = gates.interval(arr(-sign), arr(2 * sign), arr(6.0), fp16)
    assert found.ok.all()
    assert found.fraction == (3 - 2.0**-12) / 6
    assert not gates.interval(arr(-sign), arr(2 * sign), arr(2.9), fp16).ok.any()


def test_few_simulated_elements_bound_the_rms_loosely_however_many_are_judged():
    """Maurer and Pontil with a thirtieth of what 10^12 judged elements would allow."""
    x, n, cap = math.log(1e9), 30, 4.0**2
    spread = Spread(1.0, 3.0, 4.0, n)
    want = math.sqrt(1 + math.sqrt(2 * 3 * x / n) + 7 * cap * x / (3 * n))
    assert gates.rms_limit(spread, 10**12) == pytest.approx(want, rel=1e-4)
    assert gates.rms_limit(replace(spread, count=10**12), 10**12) == 2


def block(k):
    rng = np.random.default_rng(5)
    a = encode("fp16", np.sort(np.abs(rng.standard_normal((8, k)))))
    b = encode("fp16", np.sort(np.abs(rng.standard_normal((k, 8))), axis=0))
    return reference.block("fp16", a, b, seed=0)


def test_the_instructions_of_a_simulated_sum_come_in_both_directions():
    """Backwards is what the model gives on operands that are turned round."""
    one = block(96)
    contract = Contract("fp16", "fp32", "fp32", MMA, (9, 0))
    forward, backward = simulate.contract_values(contract, one, both_ways=True)
    zero = np.zeros(forward.shape, np.uint32)
    for step, found in ((1, forward), (-1, backward)):
        a, b = one.a_codes[:, ::step].copy(), one.b_codes[::step].copy()
        want = tensorcore.mma(a, b, zero, MMA, (9, 0)).view(np.float32)
        assert np.array_equal(found, want)
    assert (forward != backward).any()


def test_a_promotion_within_an_instruction_waits_for_its_end():
    one = block(96)
    whole, within = (
        simulate.contract_values(Contract("fp16", "fp32", "fp32", MMA, (9, 0), promotion=p), one)[0]
        for p in (16, 9)
    )
    assert np.array_equal(whole, within)


@pytest.mark.parametrize("k", [129, 256, 257])
def test_a_second_sum_is_allowed_its_rounding_from_the_first_promotion_on(k):
    promoted = Contract("e4m3", "fp32", "fp32", "wgmma.m64n8k32.f32.e4m3.e4m3", (9, 0),
                        promotion=128)  # fmt: skip
    more = promoted.allowance(k).relative - promoted.allowance(128).relative
    assert more == pytest.approx(4 * math.sqrt(k / 128) * 2.0**-24)


@pytest.mark.parametrize("r1", [np.inf, -np.inf, np.nan])
def test_no_share_of_d_excuses_another_kind(r1):
    values = arr(r1, r1, r1, 1.0)
    answer = Answer("y", values, values, arr(1, 1, 1, 1), arr(1, 1, 1, 1), lambda x, _: x,
                    get("fp32"))  # fmt: skip
    share = answer.share(arr(r1, 5.0, -r1, 1.5))
    same = bool(np.isnan(r1))  # -NaN is NaN
    assert share.tolist() == [0.0, np.inf, 0.0 if same else np.inf, 0.5]
    assert answer.right(arr(r1, 5.0, -r1, 1.5)).tolist() == [True, False, same, True]


@pytest.mark.parametrize("late", [0, 1])
def test_an_element_that_one_of_two_runs_leaves_out(late):
    """It follows one poison and not the other: not unwritten, but not the same in both runs."""
    runs = [np.full(3, 7, np.uint16) for _ in structure.POISONS]
    runs[late][1] = structure.POISONS[late] * 0x0101
    assert structure.check_written(*runs) is None
    found = structure.check_repeat(*runs)
    assert (found.code, found.index, found.count) == ("nondeterministic", (1,), 1)


def test_one_colour_tells_too_what_was_never_written():
    left = np.array([1, 0xA5A5, 3], np.uint16)
    found = structure.check_written(left, left.copy(), (0xA5, 0xA5))
    assert (found.code, found.index) == ("unwritten", (1,))
