"""bf16-matmul: bfloat16 storage with a float accumulator."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.matmul_common import BASELINE, LONGEST, SUBMIT, TIMED, parameters, shapes
from gpulab.registry import Variant

_VARIANT = Variant("bf16", "fp32", "fp32")

EXERCISE = Exercise(
    name="bf16-matmul",
    order=30,
    title="bfloat16 storage, float accumulator: float32's range in half the bytes",
    op="matmul",
    variant=_VARIANT,
    params=parameters(_VARIANT),
    shapes=shapes(),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "As fp16-matmul, with __nv_bfloat16 inputs: 8 significand bits and the exponent range of "
        "float32. C (m, n) = A (m, k) B (k, n), row-major, any m, n, k >= 1.\n\n"
        "The published tolerance for bf16 is so wide that it lets a matrix of zeros pass at "
        "K = 256. The checker's own bound does not: it rests on the float accumulator you declare. "
        "In Numba the inputs arrive as uint16 codes, which are the upper halves of float32 numbers."
    ),
    submit=SUBMIT,
    baseline=BASELINE,
    hints=(
        "__bfloat162float(x) is exact, and free of surprises: it appends 16 zero bits.",
        "In Numba: libdevice.int_as_float(int32(code) << int32(16)).",
        "A bf16 sum is stuck at 256: 256 + 1 rounds to 256. Keep the sum in float.",
    ),
)
