"""Widths of an attention kernel's sums, over kernels written in NumPy."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from gpulab.check.subjects import attention_witness as witness
from gpulab.ops.base import RunResult

TYPES = {"float32": np.float32, "half": np.float16, "bf16": ml_dtypes.bfloat16}


def kernel(values, weights, order=(0, 1, 2), normalised=False):
    """Sums in these types, keys in this order."""

    def run(inputs, *, poison):
        q, k, v = (inputs[name].view(np.float16)[0].astype(np.float64) for name in "qkv")
        out = np.zeros((2, *q.shape[1:]), np.float32)
        lse = np.zeros((2, q.shape[1]), np.float32)
        for head in range(2):
            score = (q[head] @ k[head].T) / np.sqrt(q.shape[2])
            top = score.max(axis=1, keepdims=True)
            p = np.exp(score - top).astype(np.float32)
            total = np.zeros(len(p), weights)
            for key in order:
                total = (total.astype(np.float32) + p[:, key]).astype(weights)
            if normalised:
                p = p / total.astype(np.float32)[:, None]
            part = np.zeros_like(out[head], values)
            for key in order:
                term = p[:, key, None] * v[head, key].astype(np.float32)
                part = (part.astype(np.float32) + term).astype(values)
            out[head] = part.astype(np.float32)
            if not normalised:
                out[head] /= total.astype(np.float32)[:, None]
            lse[head] = top[:, 0] + np.log(total.astype(np.float32))
        return RunResult({"out": out.astype(np.float16)[None], "lse": lse[None]}, True)

    return run


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize(
    ("values", "weights", "bits"),
    [
        ("float32", "float32", (24, 18)),
        ("half", "float32", (11, 18)),
        ("float32", "half", (24, 11)),
        ("half", "half", (11, 11)),
        ("bf16", "bf16", (8, 8)),
    ],
)
def test_the_widths_are_read_in_any_order(values, weights, bits, order):
    seen = witness.look(kernel(TYPES[values], TYPES[weights], order))
    assert (seen.values, seen.weights) == bits
    found = witness.against(seen)
    if min(bits) > 16:
        assert found is None
    else:
        named = {11: "half-accumulator", 8: "bf16-accumulator"}[min(bits)]
        assert found.slug == named
        assert "float" in found.text


def test_a_kernel_that_normalises_first_is_as_wide():
    seen = witness.look(kernel(np.float32, np.float32, normalised=True))
    assert seen.values >= 22
    assert witness.against(seen) is None
    assert "at least 18" in seen.text


def test_a_result_without_the_small_term_at_all_tells_nothing():
    def zeros(inputs, *, poison):
        shape = (1, 2, witness.WEIGHT_BITS, witness.HEAD_DIM)
        return RunResult({"out": np.zeros(shape, np.float16),
                          "lse": np.zeros(shape[:3], np.float32)}, True)  # fmt: skip

    assert witness.look(zeros) == witness.Widths(1, 1)


def test_scores_with_another_scale_tell_nothing():
    _, values, weights = witness.inputs()

    def other(inputs, *, poison):
        shape = (1, 2, witness.WEIGHT_BITS)
        out, lse = np.zeros((*shape, witness.HEAD_DIM), np.float16), np.zeros(shape, np.float32)
        out[0, 0] = values.ravel()
        lse[0, 1] = np.log1p(np.expm1(weights) ** 1.06)  # sqrt(72 / 64)
        return RunResult({"out": out, "lse": lse}, True)

    assert witness.look(other) == witness.Widths(witness.VALUE_BITS, 1)
