"""log-softmax: the logarithm without the probability."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.rows_common import LONGEST, SUBMIT, TIMED, shapes, unforeseen
from gpulab.kernels.logsoftmax.row import params
from gpulab.ops.rows_families import families_for
from gpulab.registry import Variant

_VARIANT = Variant("fp32", "fp32", "fp32")

EXERCISE = Exercise(
    name="log-softmax",
    order=110,
    title="log-softmax: logarithms of probabilities that underflow",
    op="logsoftmax",
    variant=_VARIANT,
    params=params(_VARIANT),
    shapes=shapes(("normal", "high", "low", "ascending"), families_for("fp32")),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "The logarithm of the softmax of every row of x (rows, cols), float32 in and out: "
        "y = (x - max) - log(sum(e^(x - max))). Any rows, cols >= 1.\n\n"
        "A probability of e^-200 is 0 in float32, its logarithm is -200: it has to be formed "
        "without the probability. An element that is -inf (a masked one) gives -inf; a NaN or +inf "
        "in a row, or nothing but -inf, makes all of it NaN."
    ),
    submit=SUBMIT,
    hints=(
        "log(a / b) = log(a) - log(b), and log(e^d) is d: no exponential is needed for the result.",
        "One logarithm a row, not one an element.",
        "Take the difference x - max first, then subtract the logarithm: the large parts cancel "
        "exactly.",
        "y[i] = (x[i] - largest) - logf(total);",
    ),
    entry="log_softmax",
    unforeseen=unforeseen,
)
