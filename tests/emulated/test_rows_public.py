"""Failures of row kernels that others reported, each with the right answer its report states."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from row_runs import HONEST, case, judge, run

from gpulab.formats import decode, encode
from gpulab.registry import Case

F32 = np.float32


def honest(op, *formats):
    """The kernels of an operation; those that Numba compiles in `make test-whole`."""
    return [
        pytest.param(c, marks=[pytest.mark.whole] if c.spec.backend == "numba" else [])
        for c in HONEST
        if c.spec.op == op and c.variant.format in formats
    ]


def label(one):
    return one.label.replace(" ", "")


@pytest.mark.parametrize("one", honest("softmax", "fp32", "fp16", "bf16"), ids=label)
def test_softmax_of_two_large_equal_logits_is_not_nan(one):
    """A kernel without the maximum: NaN from layer 8 on (FasterTransformer#43)."""
    np.testing.assert_array_equal(run(one, x=[[1000.0, 1000.0]])["y"], [[0.5, 0.5]])


@pytest.mark.parametrize("one", honest("crossentropy", "fp32", "bf16"), ids=label)
@pytest.mark.parametrize("index", [0, 50000])
def test_cross_entropy_of_one_finite_logit_far_behind_is_zero(one, index):
    """-inf - -inf while the running maximum is -inf: NaN for index 50000, fine for index 0
    (flash-attention#1930)."""
    x = np.full((1, 100_000), -np.inf)
    x[0, index] = 10.0
    found = run(one, x=x, labels=[index])
    assert found["loss"] == 0.0
    assert found["lse"] == 10.0


@pytest.mark.parametrize("one", honest("softmax", "fp32") + honest("logsoftmax", "fp32"), ids=label)
def test_a_row_of_minus_infinity_but_for_one_element(one):
    x = np.full((2, 70), -np.inf)
    x[0, 69], x[1, 3] = -5.0, 7.0
    y = run(one, x=x)["y"]
    certain, hidden = (1.0, 0.0) if one.spec.op == "softmax" else (0.0, -np.inf)
    for row, at in ((0, 69), (1, 3)):
        assert y[row, at] == certain
        assert (np.delete(y[row], at) == hidden).all()


def affine_free(cols):
    return {"weight": np.ones(cols), "bias": np.zeros(cols)}


@pytest.mark.parametrize("one", honest("layernorm", "fp32"), ids=label)
class TestLayerNorm:
    """A variance taken as E[x^2] - E[x]^2."""

    def test_of_four_numbers_near_40000_is_not_nan(self, one):
        """Variance -128 instead of 1.25 (onnxruntime#28463)."""
        y = run(one, x=[[40000.0, 40001.0, 40002.0, 40003.0]], **affine_free(4))["y"]
        np.testing.assert_allclose(y, [[-1.3416, -0.4472, 0.4472, 1.3416]], atol=5e-5)

    def test_of_256_equal_numbers_is_zero(self, one):
        """Negative variance, NaN (onnxruntime#21935)."""
        y = run(one, x=np.full((1, 256), 1234.0), **affine_free(256))["y"]
        np.testing.assert_array_equal(y, np.zeros((1, 256)))

    def test_of_sixteen_numbers_a_thousandth_apart_keeps_its_ends(self, one):
        """Mean 100 gave -2.3716 (burn#5607); about 1449 gave NaN (mlx#2238)."""
        for mean in (100.0, 1449.0):
            x = (mean + 1e-3 * np.arange(16)).astype(F32).astype(np.float64)
            y = run(one, x=x[None], **affine_free(16))["y"][0]
            right = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
            np.testing.assert_allclose(y, right, rtol=1e-5)
            assert abs(y[0]) < 1.5

    def test_of_a_constant_row_at_1e30_is_zero(self, one):
        """Squares overflow, and times 2^-80 neither variance nor eps is left."""
        x = np.stack([np.full(300, v) for v in (1e30, -3e38, 2e19, 7.1e18)]).astype(F32)
        y = run(one, x=x, weight=np.ones(300), bias=np.full(300, 0.25))["y"]
        np.testing.assert_allclose(y, 0.25, atol=3e-4)

    def test_of_half_a_million_equal_numbers_is_not_nan(self, one):
        """Their mean is off by an ulp, and the variance about it may come out below 0."""
        cols = 500_009
        x = np.full((1, cols), F32(2.03096394e30))
        y = run(one, x=x, weight=np.ones(cols), bias=np.full(cols, 0.25))["y"]
        np.testing.assert_allclose(y, 0.25, atol=3e-4)

    def test_of_a_spread_row_up_to_1e30(self, one):
        x = (1e30 * np.linspace(-1, 1, 300)).astype(F32).astype(np.float64)
        y = run(one, x=x[None], **affine_free(300))["y"][0]
        np.testing.assert_allclose(y, (x - x.mean()) / x.std(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("one", honest("rmsnorm", "fp32", "bf16"), ids=label)
@pytest.mark.parametrize("size", [1e19, 1e25, 2e38])
def test_rms_norm_whose_squares_overflow_is_finite(one, size):
    """A sum that is infinite: the row is gone over again times 2^-80."""
    fmt = one.variant.format
    x = size * np.array([[1.0, -1.5, 0.25, 0.0, 1e-10] * 51])
    arrays = {"x": x, "weight": np.ones(255)}
    if one.spec.name != "row":
        arrays["residual"] = np.zeros((1, 255))
    y = run(one, **arrays)["y"][0]
    held = decode(fmt, encode(fmt, x))[0] / size
    right = held / np.sqrt(np.mean(held * held))
    np.testing.assert_allclose(y, right, rtol=1e-6 if fmt == "fp32" else 2.0**-8)


REGRESSIONS = [
    (fmt, tokens, hidden)
    for fmt in ("bf16", "fp16")
    for tokens in (8, 512)
    for hidden in (2048, 8192)
]


def contract_f32(fmt, x, residual, weight):
    """fp32-sum in float32 NumPy, from its definition: the sum as stored, and y."""
    kind = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}[fmt]
    total = x.astype(F32) + residual.astype(F32)
    mean = np.mean(total * total, axis=1, keepdims=True, dtype=F32)
    normal = (total * (F32(1) / np.sqrt(mean + F32(1e-6)))).astype(kind)
    return total.astype(kind).astype(np.float64), (normal * weight.astype(kind)).astype(np.float64)


@pytest.mark.parametrize(
    ("fmt", "tokens", "hidden"),
    [
        pytest.param(*r, marks=[pytest.mark.whole] if r[1:] == (512, 8192) else [])
        for r in REGRESSIONS
    ],
)
def test_fused_residual_rms_norm_keeps_the_float32_sum(fmt, tokens, hidden):
    """vLLM#52104: the sum rounded before the variance. The stored residual bit for bit, the
    normalised value within its bound and under 1 % of the elements off the contract in float32."""
    rng = np.random.default_rng(hidden + tokens)
    scale = np.exp(rng.uniform(-2, 2, (tokens, 1)))
    drawn = {
        "x": scale * rng.standard_normal((tokens, hidden)),
        "residual": scale * rng.standard_normal((tokens, hidden)),
        "weight": rng.uniform(0.5, 1.5, hidden),
    }
    held = {name: decode(fmt, encode(fmt, values)) for name, values in drawn.items()}
    stored, y = contract_f32(fmt, held["x"], held["residual"], held["weight"])
    kept, rounded = (case("rmsnorm", name, fmt) for name in ("residual", "residual_rounded"))
    found = run(kept, **held)
    np.testing.assert_array_equal(found["residual_out"], stored)
    assert np.mean(found["y"] != y) < 0.01
    early = run(rounded, **held)
    np.testing.assert_array_equal(early["residual_out"], stored)
    assert np.mean(early["y"] != y) > 0.1, "the other contract's kernel is told apart"


@pytest.mark.parametrize(
    ("fmt", "tokens", "hidden"),
    [
        pytest.param(*r, marks=[pytest.mark.whole] if r[2] == 8192 else [])
        for r in REGRESSIONS
        if r[1] == 8
    ],
)
def test_each_contract_fails_the_kernel_of_the_other(fmt, tokens, hidden):
    dims = {"rows": tokens, "cols": hidden}
    kept, rounded = (case("rmsnorm", name, fmt) for name in ("residual", "residual_rounded"))
    for one, other in ((kept, rounded), (rounded, kept)):
        own = judge(one, dims, families=["normal", "mixed"])
        assert own.arithmetic_passed, own.reason
        claims = replace(one.variant, contract=other.variant.contract)
        j = judge(Case(one.spec, claims), dims, families=["normal", "mixed"])
        assert j.verdict == "FAIL"
        assert j.reason.code == "interval"


def test_a_residual_below_half_an_ulp_reaches_the_normalised_value():
    """x = 1, residual 2^-9 in bf16: the stored sum is 1, the normalised one is not (vllm#52104)."""
    x = np.ones((1, 512))
    x[0, ::2] = decode("bf16", encode("bf16", np.random.default_rng(1).uniform(0.25, 2, 256)))
    residual = np.full((1, 512), 2.0**-9)
    weight = np.ones(512)
    kept = run(case("rmsnorm", "residual", "bf16"), x=x, residual=residual, weight=weight)
    early = run(case("rmsnorm", "residual_rounded", "bf16"), x=x, residual=residual, weight=weight)
    stored, y = contract_f32("bf16", x, residual, weight)
    np.testing.assert_array_equal(kept["residual_out"], stored)
    assert stored[0, 1] == 1.0, "the store rounds the residual away"
    np.testing.assert_array_equal(kept["y"], y)
    assert not np.array_equal(early["y"], y)


@pytest.mark.parametrize(
    "one", honest("softmax", "bf16") + honest("crossentropy", "fp16"), ids=label
)
@pytest.mark.parametrize("cols", [46, 129, 50257 % 1000])
def test_rows_that_start_at_odd_addresses(one, cols):
    """16-byte loads of a 2-byte aligned row: misaligned address (cutlass#49, vllm#41257)."""
    j = judge(one, {"rows": 5, "cols": cols}, families=["normal"])
    assert j.arithmetic_passed, j.reason


@pytest.mark.parametrize("one", honest("crossentropy", "fp32"), ids=label)
def test_the_loss_is_written_and_right(one):
    """It came back 0 where the input had no gradient (Liger#507)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 11)).astype(F32).astype(np.float64)
    labels = np.array([3, 0, -100, 10])
    found = run(one, x=x, labels=labels)
    lse = np.log(np.exp(x).sum(axis=1))
    right = lse - x[np.arange(4), np.maximum(labels, 0)]
    right[labels == -100] = 0.0
    np.testing.assert_allclose(found["loss"], right, rtol=1e-6)
    np.testing.assert_allclose(found["lse"], lse, rtol=1e-6)


@pytest.mark.parametrize("one", honest("crossentropy", "fp32"), ids=label)
def test_a_label_outside_the_columns_reads_nothing(one):
    """The emulated device would stop at the read; only that row's loss is NaN."""
    limits = np.iinfo(np.int32)
    labels = [5, limits.max, -1, limits.min, 2]
    loss = run(one, x=np.zeros((5, 5)), labels=labels)["loss"]
    np.testing.assert_array_equal(np.isnan(loss), [True, True, True, True, False])
    assert loss[4] == pytest.approx(np.log(5.0))
