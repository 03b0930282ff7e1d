"""rmsnorm: the smallest fused normalisation."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.rows_common import LONGEST, SUBMIT, TIMED, shapes, unforeseen
from gpulab.kernels.rmsnorm.row import params
from gpulab.ops.rows_families import families_for
from gpulab.registry import Variant

_VARIANT = Variant("fp16", "fp32", "fp16")

EXERCISE = Exercise(
    name="rmsnorm",
    order=60,
    title="RMSNorm of half rows: one sum a row, kept in float",
    op="rmsnorm",
    variant=_VARIANT,
    params=params(_VARIANT),
    shapes=shapes(("normal", "mixed", "small", "large"), families_for("fp16")),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "Normalise every row of x (rows, cols) by its root mean square and multiply by a weight a "
        "column: y = cast(x rstd) weight with rstd = 1 / sqrt(mean(x^2) + eps). x, weight and y "
        "are half, eps is a float, any rows, cols >= 1.\n\n"
        "Squares, their sum and rstd are float. The normalised value x rstd is rounded to half "
        "before it is multiplied by the weight, and the product is rounded to half again: that is "
        "what models with half weights do, and the checker holds you to it. A NaN or an infinity "
        "stays in its row."
    ),
    submit=SUBMIT,
    hints=(
        "A block (or a warp) for each row: its threads read the row together, so that neighbouring "
        "threads read neighbouring elements.",
        "Each thread sums the squares of columns threadIdx.x, threadIdx.x + blockDim.x, ... in "
        "float; then the partial sums of all threads must meet, and every thread needs the total.",
        "Within a warp, value += __shfl_xor_sync(0xffffffff, value, step) for step 16, 8, 4, 2, 1 "
        "leaves the sum in every lane. Between warps use a __shared__ array and two barriers.",
        "Why not square in half? 300 * 300 is 90000, and the largest half is 65504.",
        "y[i] = __float2half(__half2float(__float2half(__half2float(x[i]) * rstd)) * "
        "__half2float(weight[column])), rstd = rsqrtf(total / cols + eps).",
    ),
    entry="rmsnorm",
    unforeseen=unforeseen,
)
