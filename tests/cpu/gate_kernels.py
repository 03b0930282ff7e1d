"""Kernels in plain NumPy for the tests of the gates: honest ones, and wrong ones.

They are written from the definition of what they do, without the lab's simulations, so that a
gate is never tested against its own yardstick. A kernel maps stored inputs to float64 results;
``runner`` stores them as the row declares.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from gpulab.formats import decode, storage_dtype
from gpulab.numerics import tensorcore
from gpulab.ops.base import RunResult

ML = {
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
MMA = {
    "fp16": "mma.sync.m16n8k16.f32.f16.f16.f32",
    "bf16": "mma.sync.m16n8k16.f32.bf16.bf16.f32",
    "tf32": "mma.sync.m16n8k8.f32.tf32.tf32.f32",
    "e4m3": "mma.sync.m16n8k32.f32.e4m3.e4m3.f32",
    "e5m2": "mma.sync.m16n8k32.f32.e5m2.e5m2.f32",
}
WGMMA_E4M3 = "wgmma.m64n8k32.f32.e4m3.e4m3"
BELOW = {
    "fp16": ml_dtypes.bfloat16,
    "tf32": ml_dtypes.bfloat16,
    "bf16": ml_dtypes.float8_e4m3fn,
    "e4m3": ml_dtypes.float8_e5m2,
}


@dataclass(frozen=True)
class Row:
    """A row of the ladder, without the registry."""

    format: str
    accumulator: str = "fp32"
    output: str = "fp32"
    lesson: bool = False
    tensor_core: str | None = None
    contract: str = ""
    promotion: int | None = None

    def instruction(self, capability):
        return self.tensor_core


def store(output, values):
    """float64 -> the output's storage, through types of other libraries."""
    if output == "int32":
        return values.astype(np.int64).astype(np.int32)
    single = values.astype(np.float32)  # exact for float32 sums; one rounding otherwise
    if output == "fp32":
        return single
    if output == "fp16":
        return values.astype(np.float16)
    assert np.array_equal(single, values, equal_nan=True)  # ml_dtypes rounds from float32
    return single.astype(ML[output]).view(storage_dtype(output))


def runner(row, kernel, raw=False):
    """The kernel as the gates call it; ``raw`` kernels get the stored codes too."""

    def run(inputs, *, poison):
        a, b = (decode(row.format, inputs[name]) for name in ("a", "b"))
        with np.errstate(all="ignore"):
            values = kernel(a, b, inputs["a"], inputs["b"]) if raw else kernel(a, b)
            return RunResult({"c": store(row.output, values)}, True)

    return run


def change(edit, row, kernel):
    """A kernel whose stored result ``edit(c, poison)`` changes before it is returned."""
    honest = runner(row, kernel)

    def run(inputs, *, poison):
        c = honest(inputs, poison=poison).outputs["c"]
        edit(c, poison)
        return RunResult({"c": c}, True)

    return run


# Honest orders of a float32 sum.


def sequential(a, b):
    a, b = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k]
    return total.astype(np.float64)


def backwards(a, b):
    return sequential(a[:, ::-1], b[::-1])


def fused(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = (total.astype(np.float64) + a[:, k : k + 1] * b[k]).astype(np.float32)
    return total.astype(np.float64)


def pairwise(a, b):
    terms = (a.astype(np.float32)[:, :, None] * b.astype(np.float32)[None]).transpose(1, 0, 2)
    while len(terms) > 1:
        if len(terms) % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[:1])])
        terms = terms[0::2] + terms[1::2]
    return terms[0].astype(np.float64)


def split_k(a, b, parts=8):
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(min(parts, a.shape[1])):
        total = total + sequential(a[:, first::parts], b[first::parts]).astype(np.float32)
    return total.astype(np.float64)


def blas(a, b):
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)


ORDERS = {f.__name__: f for f in (sequential, backwards, fused, pairwise, split_k, blas)}


def chained(instruction, capability):
    """Tensor-core instructions chained over K, padded with zero codes."""
    step = tensorcore.model(instruction, capability).k

    def kernel(a, b, a_codes, b_codes):
        missing = -a.shape[1] % step
        left = np.pad(a_codes, ((0, 0), (0, missing)))
        right = np.pad(b_codes, ((0, missing), (0, 0)))
        zero = np.zeros((a.shape[0], b.shape[1]), np.uint32)
        bits = tensorcore.mma(left, right, zero, instruction, capability)
        return bits.view(np.float32).astype(np.float64)

    return kernel


def exact(a, b):
    return a @ b


# Mistakes.


def zeros(a, b):
    return np.zeros((a.shape[0], b.shape[1]))


def constant_mean(a, b):
    return np.full((a.shape[0], b.shape[1]), np.rint((a @ b).mean() * 2**10) / 2**10)


def dropped_term(a, b):
    return sequential(a[:, :-1], b[:-1])


def off_by_one_term(a, b):
    """Reads B one row too far down; the last row twice."""
    shifted = np.concatenate([b[1:], b[-1:]])
    return sequential(a, shifted)


def scaled(a, b):
    return sequential(a, b) * np.float64(np.float32(0.999))


def one_sign(a, b):
    c = sequential(a, b)
    i, j = c.shape[0] // 2, c.shape[1] // 2
    c[i, j] = -c[i, j]
    return c


def transposed(a, b):
    c = sequential(a, b)
    return np.ascontiguousarray(c.T).reshape(c.shape)


def permuted_rows(a, b):
    return np.roll(sequential(a, b), 1, axis=0)


def zero_row(a, b):
    c = sequential(a, b)
    c[c.shape[0] // 2] = 0
    return c


def half_sum(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        exact_sum = total.astype(np.float64) + a[:, k : k + 1] * b[k]
        total = exact_sum.astype(np.float16)
    return total.astype(np.float64)


def bf16_sum(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = total + (a[:, k : k + 1] * b[k]).astype(np.float32)
        total = total.astype(ml_dtypes.bfloat16).astype(np.float32)
    return total.astype(np.float64)


def half_partials(a, b):
    middle = (a.shape[1] + 1) // 2
    first = sequential(a[:, :middle], b[:middle]).astype(np.float16)
    second = sequential(a[:, middle:], b[middle:]).astype(np.float16)
    return first.astype(np.float64) + second.astype(np.float64)


def cut_to_tf32(a, b):
    def cut(x):
        bits = x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
        return bits.view(np.float32).astype(np.float64)

    return sequential(cut(a), cut(b))


def lower_inputs(fmt):
    def through(x):
        return x.astype(np.float32).astype(BELOW[fmt]).astype(np.float64)

    return lambda a, b: sequential(through(a), through(b))
