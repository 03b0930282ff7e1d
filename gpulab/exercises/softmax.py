"""softmax: a maximum, a sum of exponentials, a division."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.rows_common import LONGEST, SUBMIT, TIMED, shapes, unforeseen
from gpulab.kernels.softmax.row import params
from gpulab.ops.rows_families import families_for
from gpulab.registry import Variant

_VARIANT = Variant("fp16", "fp32", "fp16")

EXERCISE = Exercise(
    name="softmax",
    order=90,
    title="softmax of half rows: subtract the maximum, sum in float",
    op="softmax",
    variant=_VARIANT,
    params=params(_VARIANT),
    shapes=shapes(("normal", "high", "low", "ascending"), families_for("fp16")),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "Turn every row of x (rows, cols) into probabilities: y = e^(x - max) / sum(e^(x - max)), "
        "max and sum over the columns of the row. x and y are half, any rows, cols >= 1.\n\n"
        "Logits may be anything that half holds: e^x alone overflows from 89 on in float and from "
        "11.1 on in half, and is 0 for all of a row of large negative numbers. Exponentials and "
        "their sum are float, the result is rounded once. An element that is -inf (a masked one) "
        "has the probability 0; a NaN or +inf in a row, or nothing but -inf, makes all of it NaN."
    ),
    submit=SUBMIT,
    hints=(
        "Three passes over the row: its maximum, the sum of e^(x - max), the division. Later "
        "passes find the row in the cache.",
        "Both the maximum and the sum must reach every thread of the block; a reduction that "
        "leaves its result in thread 0 needs one more step.",
        "Start the maximum at -INFINITY, not at 0: a row of negative numbers has a negative one.",
        "fmaxf(a, NaN) is a. That does no harm: the NaN comes back in the sum.",
        "y[i] = __float2half(expf(__half2float(x[i]) - largest) / total);",
    ),
    entry="softmax",
    unforeseen=unforeseen,
)
