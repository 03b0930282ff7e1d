"""Published failures of attention kernels, each on its smallest input, with the right value."""

import math

import numpy as np
import pytest
from attention_runs import case, run

KERNELS = [
    pytest.param(case("mma", "fp16"), id="mma-fp16"),
    pytest.param(case("mma", "bf16"), id="mma-bf16"),
    pytest.param(case("simt", "fp32"), id="simt-fp32"),
    pytest.param(case("simt", "fp16", "numba"), id="numba-fp16", marks=pytest.mark.whole),
]
"""Numba's is compiled in `make test-whole`."""
everyone = pytest.mark.parametrize("kernel", KERNELS)
raw = pytest.mark.parametrize("kernel", KERNELS[:3])


def normals(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def exact(x):
    """Values that every format here holds."""
    return np.round(x * 8) / 8


@everyone
def test_a_query_whose_mask_is_all_false_gives_zeros_not_nan(kernel):
    """pytorch#103963, #103749."""
    q, k, v = normals(1, 1, 1, 16), normals(1, 1, 5, 16), normals(1, 1, 5, 16)
    out, lse = run(kernel, q, k, v, mask=np.zeros((1, 1, 5)))
    assert (out == 0).all()
    assert (lse == -np.inf).all()


@everyone
def test_a_padded_sliding_mask_with_one_empty_row_leaves_the_others_alone(kernel):
    """pytorch#196170: a 4 x 4 window, and the padding takes all that the first row sees."""
    q, k = exact(normals(1, 1, 4, 16)), exact(normals(1, 1, 4, 16, seed=1))
    v = exact(normals(1, 1, 4, 16, seed=2))
    seen = np.abs(np.subtract.outer(np.arange(4), np.arange(4))) < 1
    seen[0] = False
    out, lse = run(kernel, q, k, v, mask=seen[None])
    assert (out[0, 0, 0] == 0).all()
    assert lse[0, 0, 0] == -np.inf
    np.testing.assert_array_equal(out[0, 0, 1:], v[0, 0, 1:])
    np.testing.assert_allclose(lse[0, 0, 1:], (q * k).sum(-1)[0, 0, 1:] / 4, rtol=1e-5, atol=1e-6)


@everyone
def test_a_row_of_the_most_negative_finite_bias_is_uniform_not_nan_and_not_empty(kernel):
    """pytorch#110213: nothing is -inf, so the row is a mean."""
    v = np.array([[1.0, 2.0, 6.0]] * 16).T[None, None]
    bias = np.full((1, 3, 3), np.finfo(np.float32).min)
    out, _ = run(kernel, np.zeros((1, 1, 3, 16)), np.zeros((1, 1, 3, 16)), v, bias=bias)
    np.testing.assert_allclose(out, 3.0, rtol=2.0**-8)


@everyone
def test_all_but_one_score_minus_infinity_far_from_the_first_tile(kernel):
    """flash-attention#1930: the tiles before it have the maximum -inf."""
    v = exact(normals(1, 1, 300, 16))
    bias = np.full((1, 1, 300), -np.inf)
    bias[0, 0, 150] = 10.0
    out, lse = run(kernel, np.zeros((1, 1, 1, 16)), np.zeros((1, 1, 300, 16)), v, bias=bias)
    np.testing.assert_array_equal(out[0, 0, 0], v[0, 0, 150])
    assert lse[0, 0, 0] == pytest.approx(10.0, rel=1e-6)


@everyone
def test_causal_with_more_queries_than_keys_has_empty_rows(kernel):
    """flashinfer#4401: -inf minus -inf in the running maximum."""
    v = exact(normals(1, 1, 3, 16))
    out, lse = run(kernel, np.zeros((1, 1, 5, 16)), np.zeros((1, 1, 3, 16)), v, causal=1)
    assert (out[0, 0, :2] == 0).all()
    assert (lse[0, 0, :2] == -np.inf).all()
    np.testing.assert_array_equal(out[0, 0, 2], v[0, 0, 0])
    np.testing.assert_allclose(lse[0, 0, 2:], np.log([1, 2, 3]), atol=1e-6)


@everyone
def test_two_scores_of_1000_share_the_weight(kernel):
    """FasterTransformer#43: a softmax without its maximum overflows."""
    q = np.full((1, 1, 1, 16), 50.0)
    k = np.full((1, 1, 2, 16), 5.0)
    v = np.stack([np.full(16, 1.0), np.full(16, 2.0)])[None, None]
    out, lse = run(kernel, q, k, v)
    np.testing.assert_array_equal(out, 1.5)
    assert lse[0, 0, 0] == pytest.approx(1000 + math.log(2), rel=1e-6)


@raw
def test_a_product_of_65536_is_a_score_of_8192(kernel):
    """metal-flash-attention#8, ultralytics#24990, mistral#66: q = k = 32 in 64 columns."""
    q, k = np.full((1, 1, 1, 64), 32.0), np.full((1, 1, 3, 64), 32.0)
    v = np.array([[1.0, 2.0, 6.0]] * 64).T[None, None]
    out, lse = run(kernel, q, k, v)
    np.testing.assert_allclose(out, 3.0, rtol=1e-3)
    assert lse[0, 0, 0] == pytest.approx(8192 + math.log(3), rel=1e-6)


@raw
def test_products_far_beyond_the_largest_half_stay_finite(kernel):
    """llama.cpp#7805, #17558: q = k = 256 in 128 columns, a product of 8.4e6."""
    q, k = np.full((1, 1, 1, 128), 256.0), np.full((1, 1, 2, 128), 256.0)
    v = np.stack([np.full(128, 1.0), np.full(128, 2.0)])[None, None]
    out, lse = run(kernel, q, k, v)
    np.testing.assert_allclose(out, 1.5, rtol=1e-3)
    score = 256.0 * 256 * 128 / math.sqrt(128)
    bound = 4 * math.sqrt(128) * 2.0**-24  # of a float32 sum of 128 terms
    assert lse[0, 0, 0] == pytest.approx(score + math.log(2), rel=bound)


def test_that_product_in_half_is_nan():
    """The lesson of the two before: the same input, and the same kernel but for that."""
    q, k = np.full((1, 1, 1, 64), 32.0), np.full((1, 1, 3, 64), 32.0)
    out, _ = run(case("scale_after_half", "fp16"), q, k, np.ones((1, 1, 3, 64)))
    assert np.isnan(out).all()


# Properties.


@everyone
def test_heads_that_share_keys_equal_heads_with_copies_of_them(kernel):
    q, k, v = normals(2, 4, 9, 16), normals(2, 2, 20, 16, seed=1), normals(2, 2, 20, 16, seed=2)
    shared = run(kernel, q, k, v, causal=1)
    copied = run(kernel, q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), causal=1)
    for one, other in zip(shared, copied, strict=True):
        np.testing.assert_array_equal(one, other)


@everyone
def test_values_of_one_give_one(kernel):
    """Probabilities sum to 1, but for the rounding of P where it is declared."""
    q, k = normals(1, 2, 9, 16), normals(1, 2, 50, 16, seed=1)
    out, _ = run(kernel, q, k, np.ones((1, 2, 50, 16)))
    rounding = {"fp32": 2.0**-21, "fp16": 2.0**-10, "bf16": 2.0**-7}[kernel.variant.format]
    np.testing.assert_allclose(out, 1.0, rtol=rounding)


@everyone
def test_the_order_of_keys_does_not_matter(kernel):
    q, k, v = normals(1, 1, 9, 16), normals(1, 1, 70, 16, seed=1), normals(1, 1, 70, 16, seed=2)
    order = np.random.default_rng(3).permutation(70)
    out, lse = run(kernel, q, k, v)
    again, lse_again = run(kernel, q, k[:, :, order], v[:, :, order])
    rounding = {"fp32": 2.0**-20, "fp16": 2.0**-9, "bf16": 2.0**-6}[kernel.variant.format]
    np.testing.assert_allclose(out, again, atol=rounding)
    np.testing.assert_allclose(lse, lse_again, rtol=1e-6, atol=1e-6)


@everyone
def test_a_window_of_one_sees_its_own_position_only(kernel):
    v = exact(normals(1, 1, 40, 16))
    q, k = normals(1, 1, 37, 16), normals(1, 1, 40, 16, seed=1)
    out, _ = run(kernel, q, k, v, window=1)
    np.testing.assert_array_equal(out[0, 0], v[0, 0, 3:])
