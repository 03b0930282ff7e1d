"""Every attention kernel passes its gates on the emulated device; every lesson fails them."""

import attention_runs as runs
import numpy as np
import pytest
from attention_runs import HONEST, LESSONS, case, dims

from gpulab.kernels.attention.lessons import LESSONS as TABLE
from gpulab.lab import scaling
from gpulab.lab.runner import KernelRunner
from gpulab.ops.attention import ATTENTION
from gpulab.runtime.emulated import EmulatedDevice

SHAPES = [
    dims(seq_q=1, seq_k=1, head_dim=16),
    dims(seq_q=7, seq_k=127, head_dim=80, causal=1),
    dims(seq_q=129, seq_k=65, head_dim=32, causal=1, heads=1),
    dims(seq_q=33, seq_k=129, head_dim=96, window=17, heads=3, kv_heads=3),
    dims(
        batch=2, heads=4, kv_heads=2, seq_q=9, seq_k=40, head_dim=48, bias_planes=4, mask_planes=2
    ),
    dims(heads=1, seq_q=17, seq_k=70, head_dim=128, causal=1, window=40, mask_planes=1),
    dims(seq_q=5, seq_k=64, head_dim=192, bias_planes=1),
    dims(heads=6, kv_heads=2, seq_q=2, seq_k=3, head_dim=64, causal=1),
    dims(batch=3, seq_q=20, seq_k=31, head_dim=64, mask_planes=3, causal=1),
    dims(seq_q=50, seq_k=50, head_dim=64, window=1),
]
"""One for each kernel, and its seed: the kernels are ten."""
PASSES = [
    pytest.param(
        one,
        (3 * number) % 10,
        id=one.label.replace(" ", ""),
        marks=[pytest.mark.whole]
        if (one.spec.backend, one.variant.format) in (("numba", "fp16"), ("numba", "bf16"))
        else [],
    )
    for number, one in enumerate(HONEST)
]
"""Of Numba's, `make test` compiles one format."""


@pytest.mark.parametrize(("one", "seed"), PASSES)
def test_honest_kernels_pass(one, seed):
    found = runs.judge(one, SHAPES[seed], seed=seed)
    assert found.verdict == "PASS", found.reasons
    assert found.coverage == 1.0


@pytest.mark.parametrize(
    "one",
    [
        case("simt", "fp32"),
        pytest.param(case("simt", "bf16", "numba"), marks=pytest.mark.whole),
        case("mma", "fp16"),
    ],
    ids=lambda one: one.label,
)
def test_on_every_family_and_probe(one):
    found = runs.judge(one, dims(seq_q=19, seq_k=45, head_dim=40, causal=1), effort="full", seed=9)
    assert found.verdict == "PASS", found.reasons


@pytest.mark.parametrize("capability", [(7, 5), (9, 0), (12, 0)])
def test_on_other_capabilities(capability):
    for one in (case("mma", "fp16"), case("fp8", "e4m3", contract="block-scaled")):
        d = dims(seq_q=20, seq_k=70, head_dim=64, causal=1)
        if one.refusal(capability, "emulated", d) is None:
            found = runs.judge(one, d, capability, families=["normal", "ascending"])
            assert found.verdict == "PASS", found.reasons


@pytest.mark.parametrize(
    ("name", "head_dim"),
    [
        ("mma", 17),
        ("mma", 72),
        ("mma", 256),
        ("simt", 17),
        pytest.param("simt", 72, marks=pytest.mark.whole),
        ("simt", 256),
    ],
)
def test_any_head_dim(name, head_dim):
    d = dims(seq_q=9, seq_k=20, head_dim=head_dim, heads=1, mask_planes=1)
    assert runs.judge(case(name, "bf16"), d, families=["normal", "low"]).verdict == "PASS"


SHOWING = dims(seq_q=37, seq_k=77, head_dim=40, causal=1, mask_planes=1)


@pytest.mark.parametrize("one", LESSONS, ids=lambda one: one.spec.name)
def test_every_lesson_fails_where_it_says(one):
    found = runs.judge(one, SHOWING)
    assert found.verdict == "FAIL"
    assert {r.code for r in found.reasons} <= {"exact-probe", "interval", "rms", "contract"}
    lesson = next(x for x in TABLE if x.name == one.spec.name)
    assert set(lesson.caught_on) <= set(found.caught_on)


def test_the_usual_comparison_passes_lessons_that_the_gates_fail():
    """K's tail, and scores kept in half: right to 1e-3 on some inputs, and wrong all the same."""
    tail = runs.judge(case("tail_unmasked", "fp16"), dims(seq_q=8, seq_k=45), families=["high"])
    assert tail.to_record()["allclose_passes_on"] == {"0.01": ["high"], "0.001": ["high"]}
    assert tail.verdict == "FAIL"
    assert "uniform" in tail.caught_on
    half = runs.judge(case("scale_after_half", "fp16"), dims(seq_q=8), families=["normal"])
    assert half.to_record()["allclose_passes_on"]["0.001"] == ["normal"]
    assert half.verdict == "FAIL"


@pytest.mark.parametrize(
    ("name", "d"),
    [
        ("mask_zero", dims()),
        ("minus_1e9_half", dims(causal=1)),
        ("causal_off_by_one", dims()),
        ("no_rescale", dims(seq_k=32)),
        ("tail_unmasked", dims(seq_k=64)),
    ],
)
def test_a_lesson_that_cannot_show_says_so(name, d):
    assert case(name, "fp16").refusal((8, 9), "emulated", d)


def test_a_lesson_shows_as_soon_as_it_can():
    """One query or one key further than where it is refused."""
    for name, d in (
        ("mask_zero", dims(heads=1, seq_q=1, seq_k=128, head_dim=16, window=1)),
        ("no_rescale", dims(heads=1, seq_q=1, seq_k=129, head_dim=16, window=2)),
        ("minus_1e9_half", dims(heads=1, seq_q=16, seq_k=1, head_dim=16, causal=1)),
    ):
        found = runs.judge(case(name, "fp16"), d)
        assert found.verdict == "FAIL", name
        assert not found.structure, name


def test_lessons_that_cannot_show_are_right_there():
    """The refusals are not a way out: where a mistake is said not to show, the kernel is right."""
    alone = dims(heads=1, seq_q=1, seq_k=129, head_dim=16, window=1)
    for name, d in (
        ("mask_zero", dims(seq_q=5)),
        ("tail_unmasked", dims(seq_q=5, seq_k=64)),
        ("mask_zero", alone),  # its only tile holds the one key that it sees
        ("no_rescale", alone),
        ("minus_1e9_half", dims(heads=1, seq_q=17, seq_k=1, causal=1)),  # 16 visit no tile
    ):
        assert case(name, "fp16").refusal((8, 9), "emulated", d)
        honest, wrong = case("simt", "fp16"), case(name, "fp16")
        inputs = ATTENTION.stored_inputs(honest.variant, d, "normal", 0)
        right = KernelRunner(honest, runs.device((8, 9)), d)(inputs).outputs
        device = runs.device((8, 9))
        params = wrong.spec.params(wrong.variant)
        function = device.build(wrong.spec.build(wrong.variant, (8, 9), d), params)
        sent = {n: device.upload(x, n) for n, x in inputs.items()}
        sent |= {n: device.empty(x.shape, x.dtype) for n, x in right.items()}
        args = [sent[p.name] if p.role in ("in", "out") else d[p.name] for p in params]
        device.launch(function, wrong.spec.plan(wrong.variant, (8, 9), d), args)
        for n, x in right.items():
            np.testing.assert_array_equal(device.download(sent[n]), x)


def test_no_race_and_no_bank_conflict_on_the_tensor_cores():
    watched = EmulatedDevice((8, 9), sanitize=True, counters=True)
    for one, head_dim in (
        (case("mma", "bf16"), 64),
        (case("fp8", "e4m3", contract="block-scaled"), 128),
    ):
        d = dims(seq_q=40, seq_k=70, head_dim=head_dim, causal=1)
        run = KernelRunner(one, watched, d)
        run(ATTENTION.stored_inputs(one.variant, d, "normal", 0))
        found = run.last_report.counters
        assert found["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"] == 0
        assert found["async_copy_bank_conflicts"] == 0


def test_scales_along_the_sequence_confine_an_outlier_and_rotation_spreads_one():
    d = dims(heads=1, seq_q=192, seq_k=192, head_dim=64, causal=1)
    rows = scaling.scaling(runs.device((8, 9)), d, 0, ("outlier", "outlier_row"))
    found = {(r["contract"], r["rotated"], r["inputs"]["family"]): r["rms_relative"] for r in rows}
    assert len(found) == 2 * 2 * 2
    tensor, block = (found[c, False, "outlier_row"] for c in ("tensor-scaled", "block-scaled"))
    assert block < 0.9 * tensor
    for contract in ("tensor-scaled", "block-scaled"):
        plain, rotated = (found[contract, r, "outlier"] for r in (False, True))
        assert rotated < plain
