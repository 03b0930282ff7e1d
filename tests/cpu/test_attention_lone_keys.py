"""Queries that see one key: nothing is added, so mistakes of adding cannot show; others must."""

import attention_kernels as kernels
import numpy as np
import pytest
from attention_kernels import Row, dims

from gpulab.numerics import gates
from gpulab.numerics.cache import Cache
from gpulab.ops.attention import ATTENTION
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_data import Data
from gpulab.ops.attention_families import get_family
from gpulab.ops.attention_formula import answer
from gpulab.ops.attention_mutants import STANDARD, stored
from gpulab.ops.attention_power import Evidence, certify

BF16 = Row("bf16", "mma.sync.m16n8k16.f32.bf16.bf16.f32")
FP16 = Row("fp16", "mma.sync.m16n8k16.f32.f16.f16.f32")
FP8 = Row("e4m3", "mma.sync.m16n8k32.f32.e4m3.e4m3.f32", output="bf16", contract="block-scaled")
ALONE = (
    dims(seq_q=127, seq_k=1, head_dim=64),
    dims(seq_q=70, seq_k=70, head_dim=64, window=1),
    dims(seq_q=129, seq_k=1, head_dim=80, mask_planes=1),
)
ADDS = {"fp16_sums", "bf16_sums", "bf16_exponentials"}


def judge(row, d, **options):
    return ATTENTION.judge(row, d, kernels.exactly(row, d), capability=(8, 9), **options)


@pytest.mark.parametrize("row", [BF16, FP16, FP8], ids=lambda r: r.format)
@pytest.mark.parametrize("d", ALONE, ids=lambda d: f"{d['seq_k']}-{d['window']}-{d['mask_planes']}")
def test_a_right_kernel_passes_where_every_query_sees_one_key(row, d):
    found = judge(row, d)
    assert found.verdict == "PASS", found.reason
    for one in found.power:
        if one.status == "not applicable" and one.mutant in ADDS:
            assert "no query sees two keys" in one.reason or "rounds P" in one.reason
    status = {c.mutant: c.status for c in found.power}
    assert status["zeros"] == status["sign_flip"] == "caught"
    # Half a step of bf16 is at least 2^-9, so that 0.999 of what bf16 holds rounds to itself.
    assert status["scaled_0.999"] == ("not applicable" if row is BF16 else "caught")
    assert "passes" not in status.values()


FEW_KEYS = tuple(dims(seq_q=40, seq_k=n, head_dim=64) for n in (2, 7, 20))


@pytest.mark.parametrize("row", [BF16, FP16, FP8], ids=lambda r: r.format)
@pytest.mark.parametrize("d", FEW_KEYS, ids=lambda d: str(d["seq_k"]))
def test_what_rounding_p_may_cost_as_well_is_no_hole(row, d):
    """x 0.999 costs 0.001 P |V|, half a step of a bf16 P 0.0039; seven half sums less than e4m3;
    of 20, the probe shows them."""
    found = judge(row, d)
    assert found.verdict == "PASS", found.reason
    excused = {c.mutant for c in found.power if "rounding P to" in c.reason}
    allowed = {"e4m3": {"scaled_0.999", "fp16_sums", "bf16_sums"}, "bf16": {"scaled_0.999"}}
    assert excused <= allowed.get(row.format, set())


def test_a_hole_leaves_it_inconclusive():
    """The sums of 32 keys in bf16 may cost more than rounding P to e4m3, and no part sees them."""
    found = judge(FP8, dims(seq_q=127, seq_k=32, head_dim=64))
    assert found.verdict == "INCONCLUSIVE"
    assert found.reason.text == "the gate passes the mutants: bf16_sums"


def test_the_cost_of_narrow_sums_is_bounded():
    """No stored result of theirs is further from the right one than their loss and D."""
    d = dims(seq_q=64, seq_k=40, head_dim=64, causal=1)
    contract = AttentionContract.of(FP16, (8, 9))
    data = Data(contract, d, 0, Cache())
    for head in data.block(data.family(get_family("normal"))):
        right = answer(contract, head)
        rest = right.d_out + contract.output_row.unit_roundoff * np.abs(right.out)
        for one in (m for m in STANDARD if m.loss is not None):
            made = one.compute(contract, head, d)
            off = np.abs(made[0] - right.out)
            assert (off <= one.loss(contract, head)[:, None] * right.s + 1.1 * rest).all(), one.name
            assert (off > rest).any(), "or the bound of the others would do"


@pytest.mark.parametrize(
    ("seen", "excused"), [("one", ADDS), ("one or two", set()), ("none or one", ADDS)]
)
def test_a_blind_gate_is_excused_only_for_sums_of_one_key(seen, excused):
    """A gate that fails nothing passes every mutant, but those that have nothing to add up."""
    d = dims(seq_q=64, seq_k=2, head_dim=64)
    contract = AttentionContract.of(FP16, (8, 9))
    data = Data(contract, d, 0, Cache())
    heads = data.block(data.family(get_family("normal")))
    for head in heads:
        head.seen[:, 1] = False
        if seen != "one":
            head.seen[3] = seen == "one or two"
    exact = [stored(contract, a.out, a.lse) for a in (answer(contract, h) for h in heads)]
    evidence = [Evidence("normal", heads, exact, lambda outputs: [])]
    found = {c.mutant: c for c in certify(contract, d, evidence, thorough=True)}
    for name in ADDS:
        assert found[name].status == ("not applicable" if name in excused else "passes")
    assert found["scaled_0.999"].status == "passes"
    assert {m.name for m in STANDARD if m.adds} == ADDS


def test_the_bound_of_a_lone_key_has_no_rounding_of_p():
    """P is 1: x 0.999 lies outside, where the rounding of an e4m3 P would hide it 60 times over."""
    d = dims(seq_q=64, seq_k=65, head_dim=64, causal=1)
    contract = AttentionContract.of(FP8, (8, 9))
    data = Data(contract, d, 0, Cache())
    (head, *_) = data.block(data.family(get_family("normal")))
    head.seen[0] = False
    head.seen[1] = np.arange(65) == 40
    head.seen[2] = np.arange(65) < 2
    right = answer(contract, head)
    assert list(head.alone[:3]) == [True, True, False]
    assert (right.d_out[0] == 0).all()
    assert (right.d_out[1] < 1e-4 * np.abs(right.out[1])).all()
    assert (right.d_out[2] > 1e-2 * right.s[2]).all()
    wrong = gates.interval(0.999 * right.out, right.out, right.d_out, contract.output_row)
    assert (~wrong.ok[1]).mean() > 0.25
    assert wrong.ok[2].all()


def test_a_key_behind_a_bias_of_minus_infinity_is_not_seen():
    d = dims(seq_q=3, seq_k=4, bias_planes=1)
    data = Data(AttentionContract.of(BF16, (8, 9)), d, 0, Cache())
    (head, *_) = data.block(data.family(get_family("normal")))
    head.bias[0, 1:], head.bias[1, 2:] = -np.inf, -np.inf
    assert list(head.alone) == [True, False, False]
