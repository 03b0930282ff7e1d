"""The gates of attention: right kernels pass, each mistake fails, every part does its own."""

import math

import attention_kernels as kernels
import numpy as np
import pytest
from attention_kernels import Row, dims, sees

from gpulab.errors import UsageError
from gpulab.formats import decode
from gpulab.numerics.cache import Cache
from gpulab.ops.attention import ATTENTION
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_data import Data
from gpulab.ops.attention_families import families_for, get_family
from gpulab.ops.attention_formula import answer, visible
from gpulab.ops.attention_mutants import STANDARD
from gpulab.ops.attention_probes import UNIFORM

FP8_ADA = Row("e4m3", "mma.sync.m16n8k32.f32.e4m3.e4m3.f32", output="bf16", contract="block-scaled")
HIDING = dims(causal=1, mask_planes=1, bias_planes=2)


def judge(row, kernel, d, **options):
    options = {"capability": (8, 9), "effort": "full"} | options
    return ATTENTION.judge(row, d, kernel(row, d), **options)


ORDERS = [kernels.Kernel, kernels.Backwards, kernels.Online]
FORMATS = ["fp32", "fp16", "bf16"]


@pytest.mark.parametrize(
    ("fmt", "kernel"),
    [
        pytest.param(fmt, kernel, marks=[pytest.mark.whole] * ((at + number) % 3 == 2))
        for at, fmt in enumerate(FORMATS)
        for number, kernel in enumerate(ORDERS)
    ],
)
def test_right_kernels_pass_on_every_family(fmt, kernel):
    found = judge(Row(fmt), kernel, dims())
    assert found.verdict == "PASS", found.reasons
    assert {f.family for f in found.families} == set(families_for(fmt))
    assert {p.probe for p in found.probes} == {"uniform", "one_hot", "non_finite"}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.whole)])
@pytest.mark.parametrize(
    "d",
    [HIDING, dims(seq_q=1, seq_k=1, head_dim=1), dims(seq_q=9, seq_k=4, causal=1),
     dims(window=5, head_dim=17, heads=4, kv_heads=2, batch=2, mask_planes=2)],
)  # fmt: skip
def test_right_kernels_pass_with_masks_and_odd_sizes(d, seed):
    found = judge(Row("fp16"), kernels.Kernel, d, seed=seed)
    assert found.verdict == "PASS", found.reasons


WRONG = [
    (kernels.NoRescale, dims()),
    (kernels.MaskZero, HIDING),
    (kernels.OffByOne, dims(causal=1)),
    (kernels.TopLeft, dims(causal=1)),
    (kernels.Unscaled, dims()),
    (kernels.HalfScores, dims()),
    (kernels.NoMax, dims()),
    (kernels.WrongHead, dims(heads=4, kv_heads=2)),
    (kernels.EmptyRowsNaN, HIDING),
    (kernels.WrongLse, dims()),
    (kernels.SkipsLastQuery, dims()),
    (kernels.NoLse, dims()),
]


@pytest.mark.parametrize(
    ("kernel", "d", "fmt"),
    [
        pytest.param(
            *wrong,
            fmt,
            id=f"{wrong[0].__name__}-{fmt}",
            marks=[pytest.mark.whole] if (at + number) % 3 else [],
        )
        for at, wrong in enumerate(WRONG)
        for number, fmt in enumerate(FORMATS)
    ],
)
def test_every_mistake_fails(kernel, d, fmt):
    """Formats take turns with the mistakes; in `make test-whole` each has all."""
    found = judge(Row(fmt), kernel, d, effort="quick")
    assert found.verdict == "FAIL", (fmt, found.parts)


@pytest.mark.parametrize("kernel", [kernels.HalfProbabilities, kernels.RoughProbabilities])
def test_undeclared_rounding_of_p_fails(kernel):
    found = judge(Row("fp32"), kernel, dims(), effort="quick")
    assert {r.code for r in found.reasons} >= {"interval", "rms"}


def test_bf16_p_fails_under_a_float32_p_though_the_result_is_bf16():
    found = judge(
        Row("bf16"), kernels.RoughProbabilities, dims(seq_q=40, head_dim=40), effort="quick"
    )
    assert {"interval", "rms"} & {r.code for r in found.reasons}


def test_declared_rounding_of_p_passes():
    row = Row("bf16", "mma.sync.m16n8k16.f32.bf16.bf16.f32")
    found = judge(row, kernels.RoughProbabilities, dims())
    assert found.verdict == "PASS", found.reasons


@pytest.mark.parametrize("seed", [0, 8, 32])
def test_a_head_with_two_near_keys_among_heads_that_single_one_out_is_no_failure(seed):
    """Scores up to 1000 of five keys: most heads put P on one key and err little. The middle one,
    which no simulation saw, has two keys that share it, and its errors are those of its scores."""
    d = dims(heads=3, kv_heads=3, seq_q=12, seq_k=5, head_dim=64)
    found = judge(Row("fp32"), kernels.Kernel, d, families=["high"], seed=seed, effort="quick")
    assert not [r for r in found.reasons if r.code == "rms"]
    assert found.families[0].rms_fraction < 0.5
    wrong = judge(
        Row("fp32"), kernels.RoughProbabilities, d, families=["normal"], seed=seed, effort="quick"
    )
    assert "rms" in {r.code for r in wrong.reasons}


def test_inputs_must_be_kept():
    class Writes(kernels.Kernel):
        def __call__(self, inputs, *, poison):
            from dataclasses import replace

            return replace(super().__call__(inputs, poison=poison), inputs_unchanged=False)

    found = judge(Row("fp32"), Writes, dims(), effort="quick")
    assert "inputs-changed" in {r.code for r in found.reasons}


def test_every_standard_mutant_is_caught_where_it_applies():
    for fmt in ("fp32", "fp16", "bf16"):
        d = dims(causal=1, mask_planes=1, seq_q=35, seq_k=42, head_dim=32)
        found = judge(Row(fmt), kernels.exactly, d)
        status = {c.mutant: c.status for c in found.power}
        assert set(status) == {m.name for m in STANDARD} | {"row_unwritten", "column_unwritten"}
        assert set(status.values()) == {"caught"}, (fmt, status)
        assert found.verdict == "PASS"


def test_visible_keys_by_the_definition():
    mask = np.ones((0, 1, 1))
    for causal in (0, 1):
        for window in (0, 1, 3):
            for seq_q, seq_k in ((4, 7), (7, 4), (5, 5), (1, 6)):
                d = dims(seq_q=seq_q, seq_k=seq_k, causal=causal, window=window)
                got = visible(d, np.arange(seq_q))
                want = [[sees(d, 0, i, j, mask) for j in range(seq_k)] for i in range(seq_q)]
                assert got.tolist() == want
                pairs = ATTENTION.seen_pairs(d)
                assert pairs == int(np.sum(want))
                assert ATTENTION.flops(d) == 4 * 24 * 2 * pairs


def test_the_reference_by_loops_over_python_floats():
    d = dims(seq_q=5, seq_k=6, head_dim=3, causal=1, bias_planes=1, mask_planes=1)
    data = Data(AttentionContract.of(Row("fp16"), (8, 9)), d, 3, Cache())
    inputs = data.family(get_family("normal"))
    q, k, v = (decode("fp16", inputs.stored[n]) for n in "qkv")
    for piece in data.pieces(inputs):
        h = piece.head
        for r, i in enumerate(piece.queries):
            x = {}
            for j in range(6):
                if sees(d, 0, i, j, inputs.stored["mask"]):
                    dot = math.fsum(
                        float(a) * float(b) for a, b in zip(q[0, h, i], k[0, 0, j], strict=True)
                    )
                    x[j] = dot / math.sqrt(3) + float(inputs.stored["bias"][0, i, j])
            if not x:
                assert piece.answer.lse[r] == -math.inf
                assert not piece.answer.out[r].any()
                continue
            total = math.fsum(math.exp(value) for value in x.values())
            assert piece.answer.lse[r] == pytest.approx(math.log(total), abs=1e-14)
            for c in range(3):
                want = math.fsum(math.exp(x[j]) / total * float(v[0, 0, j, c]) for j in x)
                assert piece.answer.out[r, c] == pytest.approx(want, abs=1e-14)
    assert not inputs.stored["mask"][0, 3].any()  # a query without a key is among them


def test_large_results_are_sampled_over_all_keys():
    d = dims(heads=4, kv_heads=2, seq_q=1 << 14, seq_k=1 << 14, head_dim=64)
    data = Data(AttentionContract.of(Row("fp16"), (8, 9)), d, 0, Cache())
    wanted, text, share = data.sample
    assert 2 <= wanted < d["seq_q"]
    assert share < 1
    assert "over all keys" in text
    assert wanted * d["seq_k"] * d["head_dim"] * 4 <= 1 << 31


def test_the_bound_covers_a_half_ulp_of_p_and_no_more_than_it_needs():
    """D of a bf16 P is at least half an ulp of one weight, and far below the value."""
    row = Row("bf16", "mma.sync.m16n8k16.f32.bf16.bf16.f32")
    d = dims(seq_q=8, seq_k=64)
    data = Data(AttentionContract.of(row, (8, 9)), d, 0, Cache())
    inputs = data.family(get_family("normal"))
    for head in data.block(inputs):
        right = answer(data.contract, head)
        assert (right.d_out > 2.0**-10 * right.s / 64).all()
        assert (right.d_out < 2.0**-8 * right.s + 1e-4).all()


@pytest.mark.parametrize("keys", [7, 129, 300])
def test_the_uniform_probe_sums_exactly_in_any_order_and_in_no_narrower_accumulator(keys):
    """Odd integers, half of them times a power of two that leaves no bit of the declared sums."""
    for row, unit, bits in ((Row("fp16"), 8, 24), (Row("bf16"), 8, 24), (FP8_ADA, 4, 14)):
        contract = AttentionContract.of(row, (8, 9))
        arrays = UNIFORM.make(Data(contract, dims(seq_k=keys), 0, Cache()))
        v = np.abs(decode(row.format, arrays["v"])) * 2.0**unit
        if keys < 300:
            assert v.min() % 2 == 1
        assert (v == np.rint(v)).all()
        assert v.sum(axis=2).max() <= 2**bits
        assert keys * v.max() > 2 ** (bits - 2), "a sum needs all bits but one or two"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head_dim": 300}, "head_dim = 300 is outside 1 .. 256"),
        ({"heads": 8, "kv_heads": 3}, "kv_heads = 3 does not divide heads = 8"),
        ({"seq_q": 0}, "seq_q = 0"),
        ({"window": -1}, "window = -1"),
        ({"causal": 2}, "causal = 2"),
        ({"bias_planes": 3}, "bias_planes = 3"),
        ({"seq_k": 1.5}, "whole number"),
        ({"batch": 1 << 20, "seq_q": 1 << 20}, "2\\^40"),
    ],
)
def test_impossible_dims_are_refused(change, words):
    with pytest.raises(UsageError, match=words):
        ATTENTION.check_dims(dims(**change))


def test_fp8_names_its_scaling():
    class Fp8(Row):
        contract = ""

        def __init__(self):
            super().__init__("e4m3", "mma.sync.m16n8k32.f32.e4m3.e4m3.f32")

    with pytest.raises(UsageError, match="no contract ''"):
        ATTENTION.contract(Fp8(), (8, 9))
