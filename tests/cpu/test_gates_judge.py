"""What a verdict says and why: inconclusive evidence, limits of the gates, the record."""

import json
from dataclasses import replace

import gate_kernels as wrong
import numpy as np
import pytest
from gate_kernels import MMA, Row, chained, change, runner, sequential

from gpulab.errors import UsageError
from gpulab.numerics import reference, simulate
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Contract
from gpulab.numerics.inputs import DEFAULT, Family, get_family
from gpulab.ops.matmul import MATMUL
from gpulab.ops.matmul_data import Data

DIMS = {"m": 20, "n": 24, "k": 33}
FP16 = Row("fp16")


def judge(row, run, dims=None, **options):
    options.setdefault("capability", (8, 9))
    return MATMUL.judge(row, DIMS if dims is None else dims, run, **options)


def test_one_wrong_element_in_a_million():
    """One element off by ten times what the accumulation may lose, in 1000 x 1000."""
    dims = {"m": 1000, "n": 1000, "k": 16}
    typical_s = dims["k"] * 2 / np.pi  # E|a| E|b| = 2/pi for normal inputs
    lost = Contract("fp16", "fp32", "fp32").allowance(dims["k"]).relative * typical_s

    def edit(c, poison):
        c[617, 381] += np.float32(10 * lost)

    j = judge(FP16, change(edit, FP16, wrong.blas), dims, families=["normal"])
    assert j.verdict == "FAIL"
    family = j.families[0]
    assert [r.index for r in family.reasons if r.code == "interval"] == [(617, 381)]
    assert not any(r.code == "rms" for r in family.reasons), "the rms alone would not see it"
    assert j.contract_passed, "nor would the published tolerance"
    assert judge(FP16, runner(FP16, wrong.blas), dims, families=["normal"]).verdict == "PASS"


def test_integers_are_refused_as_evidence():
    whole = Family(
        "whole", "small integers", lambda rng, shape, *_: rng.integers(-4, 5, shape) + 0.0
    )
    j = judge(FP16, runner(FP16, sequential), families=["normal", whole])
    assert (j.verdict, j.reason.code) == ("INCONCLUSIVE", "exact-inputs")
    assert j.reason.where == "whole"
    assert judge(FP16, runner(FP16, wrong.zeros), families=["normal", whole]).verdict == "FAIL"


def test_a_tolerance_that_storage_alone_exceeds_is_not_the_kernels_fault():
    tiny = Family(
        "tiny", "deep in the subnormals of fp16",
        lambda rng, shape, *_: 2.0**-24 * (1.3 + 0.1 * rng.random(shape)),
    )  # fmt: skip
    j = judge(FP16, runner(FP16, sequential), families=["normal", tiny])
    assert (j.verdict, j.reason.code) == ("INCONCLUSIVE", "contract-unmeetable")


def test_the_contract_gate_alone_is_inconclusive_where_zeros_pass_it():
    """bf16, K = 256: rtol = 4 * 2^-7 * 16 = 1/2, so atol + rtol |R0| >= |R0| everywhere."""
    row = Row("bf16")
    for k, status in ((256, "passes"), (16, "caught")):
        dims = {"m": 20, "n": 24, "k": k}
        j = judge(row, runner(row, sequential), dims, rests_on="contract")
        power = {c.mutant: c.status for c in j.power}
        assert power["zeros"] == status
        assert j.verdict == "INCONCLUSIVE"
        assert j.reason.code == "power"
        assert "scaled_0.999" in j.reason.text
        assert j.runs == len(DEFAULT) + 1
        full = judge(row, runner(row, wrong.zeros), dims)
        assert full.contract_passed == (k == 256)
        assert full.verdict == "FAIL"
        assert not full.arithmetic_passed


def test_resting_on_the_contract_gate_leaves_the_arithmetic_aside():
    lesson = Row("fp16", "fp16", "fp16", lesson=True)
    j = judge(lesson, runner(lesson, wrong.half_sum), rests_on="contract")
    assert (j.verdict, j.reason.code) == ("INCONCLUSIVE", "power")
    assert j.contract_passed
    assert not j.arithmetic_passed
    zeros = judge(FP16, runner(FP16, wrong.zeros), rests_on="contract")
    assert (zeros.verdict, zeros.reason.code) == ("FAIL", "contract")


def test_a_single_element_is_measured_against_many_of_its_kind():
    contract = Contract("fp16", "fp32", "fp32")
    spread = Data(MATMUL, contract, {"m": 1, "n": 1, "k": 15}, 0, Cache()).spread("normal")
    assert spread.count >= 256
    assert spread.mean_square > 0


def test_both_directions_are_simulated_where_the_order_matters():
    contract = Contract("fp32", "fp32", "fp32")
    data = Data(MATMUL, contract, {"m": 32, "n": 32, "k": 200}, 0, Cache())
    for family in ("sorted", "spiked", "cancelling", "periodic"):
        assert not get_family(family).same_along_k
        block = data.block(family)
        backward = replace(block, a=block.a[:, ::-1], b=block.b[::-1])
        one_way = [simulate.spread(contract, b).mean_square for b in (block, backward)]
        # The float64 references of both directions differ in their last bits.
        assert data.spread(family).mean_square == pytest.approx(max(one_way), rel=2**-20, abs=0)
        assert one_way[0] != pytest.approx(one_way[1], rel=2**-20, abs=0)


def test_one_positive_family_alone_has_no_power_at_thirteen_bits():
    """A truncating 13-bit sum of positive terms errs by more than one of 1024 terms weighs."""
    row = Row("e4m3", tensor_core=MMA["e4m3"])
    kernel = runner(row, chained(MMA["e4m3"], (8, 9)), raw=True)
    dims = {"m": 20, "n": 24, "k": 1024}
    judgement = judge(row, kernel, dims, families=["uniform"])
    missed = {c.mutant: c for c in judgement.power}["dropped_term"]
    assert missed.caught_by == ("exact/bits",)
    assert missed.missed_on == ("uniform",)
    assert judge(row, kernel, dims).verdict == "PASS"


def test_half_accumulator_is_a_lesson():
    """It passes the published gate and fails the arithmetic one, at every size where it rounds."""
    lesson = Row("fp16", "fp16", "fp16", lesson=True)
    for k in (16, 256, 2048):
        j = judge(lesson, runner(lesson, wrong.half_sum), {"m": 20, "n": 24, "k": k})
        assert j.verdict == "FAIL"
        assert j.contract_passed
        assert not j.arithmetic_passed
        assert j.shows("fp16_accumulator")
        assert any("fp16_accumulator" in note for note in j.notes)
        honest = Row("fp16", "fp32", "fp16")
        assert (
            judge(honest, runner(honest, sequential), {"m": 20, "n": 24, "k": k}).verdict == "PASS"
        )
    alone = judge(lesson, runner(lesson, wrong.half_sum), {"m": 3, "n": 3, "k": 1})
    assert alone.verdict == "PASS"
    assert not alone.shows("fp16_accumulator"), "one product is rounded once either way"


def test_a_lesson_on_tensor_cores_is_judged_by_float32_accumulation():
    half = "mma.sync.m16n8k16.f16.f16.f16.f16"
    lesson = Row("fp16", "fp16", "fp16", lesson=True, tensor_core=half)
    contract = Contract.of(lesson, (9, 0))
    assert contract.instruction == "mma.sync.m16n8k16.f32.f16.f16.f32"
    assert contract.accumulator == "fp32"
    own = Contract.of(Row("fp16", "fp16", "fp16", tensor_core=half), (9, 0))
    assert own.instruction == half
    three = Contract("fp16", "fp16", "fp16", "wgmma.m64n8k16.f16.f16.f16", (9, 0)).of_operation()
    assert three.instruction == "wgmma.m64n8k16.f32.f16.f16"


def test_sampled_rows_and_columns_see_a_wrong_tile(monkeypatch):
    monkeypatch.setattr(reference, "FULL_PRODUCTS", 1 << 16)
    dims = {"m": 400, "n": 300, "k": 12}
    right = judge(FP16, runner(FP16, wrong.blas), dims)
    assert right.verdict == "PASS"
    assert 0 < right.coverage < 1
    assert "rows" in right.to_record()["coverage"]["text"]

    def tile(c, poison):
        c[208:224, 112:128] *= np.float32(1.01)

    assert judge(FP16, change(tile, FP16, wrong.blas), dims).reason.code in (
        "interval",
        "exact-probe",
    )

    def stray(c, poison):
        c[211, 119] = np.nan

    assert judge(FP16, change(stray, FP16, wrong.blas), dims).reason.code == "nonfinite"


def test_a_cache_is_filled_once_and_shared():
    cache = Cache()
    first = judge(FP16, runner(FP16, sequential), cache=cache)
    misses = cache.misses
    assert misses > 0
    again = judge(FP16, runner(FP16, wrong.backwards), cache=cache)
    assert cache.misses == misses
    assert again.verdict == first.verdict == "PASS"
    judge(Row("fp16", output="fp16"), runner(Row("fp16", output="fp16"), sequential), cache=cache)
    shared = cache.misses - misses  # spreads, power: not inputs, references, blocks, probe
    assert shared == len(DEFAULT) + 1


def test_results_do_not_depend_on_the_cache():
    small, none = Cache(limit_bytes=0), None
    records = [
        judge(FP16, runner(FP16, sequential), cache=c).to_record() for c in (small, none, Cache())
    ]
    assert records[0] == records[1] == records[2]
    assert small.used_bytes == 0


@pytest.mark.parametrize("kernel", [sequential, wrong.zeros, lambda a, b: a @ b * np.nan])
def test_record_is_strict_json_and_complete(kernel):
    j = judge(FP16, runner(FP16, kernel), effort="full", seed=7)
    record = json.loads(json.dumps(j.to_record(), allow_nan=False))
    assert set(record) >= {
        "inputs", "max_abs_err", "max_rel_err", "storage_err", "contract_gate", "arithmetic_gate",
        "verdict", "reason", "first_bad_index",
    }  # fmt: skip
    assert set(record["contract_gate"]) >= {"rtol", "atol", "fraction", "passed", "text"}
    assert record["inputs"]["seed"] == 7
    assert record["arithmetic_gate"]["passed"] == (j.verdict == "PASS")
    assert [f["family"] for f in record["families"]] == list(DEFAULT)


@pytest.mark.parametrize(
    "bad",
    [
        {"m": 0, "n": 1, "k": 1}, {"m": -3, "n": 1, "k": 1}, {"m": 1, "n": 1},
        {"m": 1, "n": 1, "k": 1, "q": 1}, {"m": 1.5, "n": 1, "k": 1}, {"m": True, "n": 1, "k": 1},
        {"m": 10**9, "n": 10**9, "k": 10**9},
    ],
)  # fmt: skip
def test_bad_dims(bad):
    with pytest.raises(UsageError):
        judge(FP16, runner(FP16, sequential), bad)


def test_bad_options():
    with pytest.raises(UsageError, match="unknown input family"):
        judge(FP16, runner(FP16, sequential), families=["nrmal"])
    with pytest.raises(UsageError, match="unknown effort"):
        judge(FP16, runner(FP16, sequential), effort="some")
    with pytest.raises(UsageError, match="at least one"):
        judge(FP16, runner(FP16, sequential), families=[])
    with pytest.raises(UsageError, match="not made for"):
        judge(Row("int8", "int32", "int32"), runner(FP16, sequential), families=["subnormal"])


def test_costs_of_an_operation():
    dims = {"m": 3, "n": 5, "k": 7}
    assert MATMUL.flops(dims) == 2 * 3 * 5 * 7
    assert MATMUL.terms(dims) == 7
    assert MATMUL.bytes_moved(Row("fp16", output="fp32"), dims) == 2 * (3 * 7 + 7 * 5) + 4 * 3 * 5
    assert MATMUL.bytes_moved(Row("e4m3"), dims) == (3 * 7 + 7 * 5) + 4 * 3 * 5
