"""Every mistake fails: as a whole kernel, on every family, and in the power certificate."""

import gate_kernels as wrong
import numpy as np
import pytest
from gate_kernels import MMA, WGMMA_E4M3, Row, chained, runner

from gpulab.numerics import mutants, power
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Contract
from gpulab.numerics.inputs import families_for
from gpulab.ops.matmul import MATMUL
from gpulab.ops.matmul_data import Data

FORMATS = ("fp32", "fp16", "bf16", "e4m3", "e5m2")
DIMS = {"m": 21, "n": 18, "k": 65}
SQUARE = {"m": 18, "n": 18, "k": 65}
ANYWHERE = (
    wrong.zeros, wrong.constant_mean, wrong.dropped_term, wrong.off_by_one_term, wrong.scaled,
    wrong.one_sign, wrong.transposed, wrong.permuted_rows, wrong.zero_row, wrong.half_sum,
    wrong.bf16_sum, wrong.half_partials,
)  # fmt: skip


def failing_parts(row, kernel, dims, family, *, raw=False, capability=(8, 9), seed=0, cache=None):
    """Reason codes of the family itself; the probes' are left out."""
    j = MATMUL.judge(
        row, dims, runner(row, kernel, raw), capability=capability, families=[family], seed=seed,
        cache=cache,
    )  # fmt: skip
    assert j.verdict == "FAIL"
    return {r.code for r in j.families[0].reasons} & {"interval", "rms"}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kernel", ANYWHERE, ids=lambda f: f.__name__)
def test_fails_on_every_family(fmt, kernel):
    cache = Cache()
    dims = SQUARE if fmt in ("fp32", "e4m3") else DIMS
    for family in families_for(fmt):
        parts = failing_parts(Row(fmt), kernel, dims, family, cache=cache)
        assert parts, (fmt, kernel.__name__, family)


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3"])
def test_inputs_of_the_next_lower_format_fail(fmt):
    for family in families_for(fmt):
        assert failing_parts(Row(fmt), wrong.lower_inputs(fmt), DIMS, family), family


def test_tf32_under_an_fp32_contract_fails():
    for family in families_for("fp32"):
        assert failing_parts(Row("fp32"), wrong.cut_to_tf32, DIMS, family), family


def test_bf16_under_a_tf32_contract_fails():
    instruction = MMA["tf32"]
    row = Row("tf32", tensor_core=instruction)
    honest = chained(instruction, (8, 9))

    def kernel(a, b, a_codes, b_codes):
        cut = (codes.view(np.uint32) & np.uint32(0xFFFF0000) for codes in (a_codes, b_codes))
        return honest(a, b, *cut)

    for family in families_for("tf32"):
        assert failing_parts(row, kernel, DIMS, family, raw=True), family


def test_thirteen_bits_under_an_fp32_contract_fail():
    """The declared path keeps 23 bits (fp8 through fp16); the kernel runs the 13-bit one."""
    declared = Row("e4m3", tensor_core=MMA["e4m3"])
    j = MATMUL.judge(
        declared,
        {"m": 21, "n": 18, "k": 256},
        runner(declared, chained(WGMMA_E4M3, (9, 0)), raw=True),
        capability=(9, 0),
    )
    assert j.verdict == "FAIL"
    assert {r.code for f in j.families for r in f.reasons} >= {"interval", "rms"}
    assert not j.probes[0].passed


@pytest.mark.parametrize(
    "kernel",
    [k for k in ANYWHERE if "half" not in k.__name__ and k not in (wrong.bf16_sum, wrong.scaled)],
    ids=lambda f: f.__name__,
)
def test_int8(kernel):
    row = Row("int8", "int32", "int32")
    for family in families_for("int8"):

        def exact_kernel(a, b):
            return np.rint(kernel(a, b))

        assert failing_parts(row, exact_kernel, SQUARE, family) == {"interval"}


def contracts(fmt):
    if fmt == "int8":
        return [Contract("int8", "int32", "int32")]
    found = [] if fmt == "tf32" else [Contract(fmt, "fp32", "fp32")]
    if fmt in MMA:
        cards = ((8, 9), (9, 0))
        found += [Contract(fmt, "fp32", "fp32", MMA[fmt], card) for card in cards]
    return found


def certificates(contract, dims, seed, families, with_probes):
    data = Data(MATMUL, contract, dict(zip("mnk", dims, strict=True)), seed, Cache())
    evidence = [power.family_evidence(f, contract, data.block(f), data.spread(f)) for f in families]
    if with_probes:
        probe = data.probes("quick")[0]
        evidence.append(power.probe_evidence("exact", contract, probe.block))
    return {c.mutant: c for c in power.certify(contract, evidence)}


NARROW = {"fp16_accumulator", "bf16_accumulator", "split_k_half", "scaled_0.999"}


@pytest.mark.parametrize("fmt", [*FORMATS, "tf32", "int8"])
@pytest.mark.parametrize("dims", [(1, 1, 1), (15, 15, 15), (17, 9, 64), (20, 17, 257)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.whole)])
def test_the_standard_mutants_are_caught_or_refused_for_a_reason(fmt, dims, seed):
    for contract in contracts(fmt):
        found = certificates(contract, dims, seed, families_for(fmt), True)
        for name, one in found.items():
            assert one.status != "passes", (contract, dims, seed, name)
            if one.status == "not applicable":
                assert expected_refusal(contract, dims, name), (contract, dims, one)
        assert set(found) == {m.name for m in mutants.STANDARD} | {
            "row_unwritten", "column_unwritten",
        }  # fmt: skip


def expected_refusal(contract, dims, name):
    """Derived apart from the mutants' own declarations."""
    m, n, k = dims
    if name == "transposed":
        return m == 1 or n == 1
    if name == "constant_mean":
        return m == n == 1
    if name == "tf32_inputs":
        return contract.format != "fp32"
    if name in ("fp16_accumulator", "bf16_accumulator", "split_k_half") and contract.exact:
        return True
    if name == "split_k_half" and k == 1:
        return True
    if k == 1 and name.endswith("_accumulator"):
        # One product of two significands is exact in the accumulator: nothing is rounded.
        held = {"fp16_accumulator": 11, "bf16_accumulator": 8}[name]
        return 2 * (contract.input_row.mantissa_bits + 1) <= held
    # The 13-bit accumulator of Ada's fp8 may lose more than two roundings to half cost.
    return name in NARROW and contract.sum_bits == 14


@pytest.mark.parametrize("fmt", FORMATS)
def test_each_family_alone_catches_them_on_cuda_cores(fmt):
    contract = Contract(fmt, "fp32", "fp32")
    for dims in ((16, 16, 16), (24, 20, 257)):
        found = certificates(contract, dims, 0, families_for(fmt), False)
        assert {n for n, c in found.items() if c.missed_on} == set()
        assert {n for n, c in found.items() if c.status != "caught"} <= {"tf32_inputs"}


def test_a_mutant_within_the_contract_is_named_so():
    contract = Contract("e4m3", "fp32", "fp32", MMA["e4m3"], (8, 9))
    found = certificates(contract, (24, 24, 128), 0, ["normal"], False)["split_k_half"]
    assert found.status in ("caught", "not applicable")
    half_loss = mutants.STANDARD[8].loss(contract, 128)
    assert mutants.STANDARD[8].name == "split_k_half"
    assert half_loss == 2.0**-11 <= contract.allowance(128).relative


def test_certificate_stops_at_the_first_catch_unless_thorough():
    contract = Contract("fp16", "fp32", "fp32")
    data = Data(MATMUL, contract, {"m": 9, "n": 9, "k": 32}, 0, Cache())
    evidence = [
        power.family_evidence(f, contract, data.block(f), data.spread(f))
        for f in ("normal", "uniform")
    ]
    whole = {c.mutant: c for c in power.certify(contract, evidence, thorough=True)}
    short = {c.mutant: c for c in power.certify(contract, evidence, thorough=False)}
    assert any(by.startswith("uniform/") for by in whole["zeros"].caught_by)
    assert all(by.startswith("normal/") for by in short["zeros"].caught_by)


def test_a_lesson_declares_its_mistake_and_is_judged_by_the_operation():
    row = Row("fp16", accumulator="fp16", lesson=True)
    assert Contract.declared(row, (8, 9)).accumulator == "fp16"
    assert Contract.of(row, (8, 9)).accumulator == "fp32"
