"""residual-rmsnorm: the fused residual addition, with a contract about what is normalised."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.rows_common import LONGEST, SUBMIT, TIMED, shapes, unforeseen
from gpulab.kernels.rmsnorm.row import residual_params
from gpulab.ops.rmsnorm import FP32_SUM
from gpulab.ops.rows_families import families_for
from gpulab.registry import Variant

_VARIANT = Variant("fp16", "fp32", "fp16", contract=FP32_SUM)

EXERCISE = Exercise(
    name="residual-rmsnorm",
    order=70,
    title="residual addition fused into RMSNorm: which sum is normalised?",
    op="rmsnorm",
    variant=_VARIANT,
    params=residual_params(_VARIANT),
    shapes=shapes(("normal", "mixed", "small", "large"), families_for("fp16")),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "Add a residual to every row of x (rows, cols), store the sum, and normalise it as rmsnorm "
        "does: s = x + residual, residual_out = cast(s), y = cast(s rstd) weight with "
        "rstd = 1 / sqrt(mean(s^2) + eps). All arrays are half, any rows, cols >= 1.\n\n"
        "The contract is called fp32-sum: the variance and the normalisation see s as float32 "
        "holds it. Only what is stored is rounded. Normalising the rounded sum is another "
        "contract (rounded-sum); the two differ in the last place of one result in five, and the "
        "checker tells them apart. x and residual are read only."
    ),
    submit=SUBMIT,
    hints=(
        "Two arrays are read and two are written: one pass for the sum of squares, one to write. "
        "What may be stored in the first?",
        "The float32 sum of two halves is needed twice. Adding them again is exact; reading "
        "residual_out back is not.",
        "If the row fits, keep the float sums in registers or in shared memory and read x and "
        "residual once.",
        "float s = __half2float(x[i]) + __half2float(residual[i]); residual_out[i] = "
        "__float2half(s); squares += s * s; and later y[i] = cast(s * rstd) * weight.",
    ),
    entry="residual_rmsnorm",
    unforeseen=unforeseen,
)
