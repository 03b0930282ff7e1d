"""cross-entropy: log-softmax at one column, and nothing else written."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.rows_common import LONGEST, SUBMIT, TIMED, shapes, unforeseen
from gpulab.kernels.crossentropy.row import params
from gpulab.ops.rows_families import families_for
from gpulab.registry import Variant

_VARIANT = Variant("fp16", "fp32", "fp32")

EXERCISE = Exercise(
    name="cross-entropy",
    order=120,
    title="cross entropy of half logits: the loss without writing a softmax",
    op="crossentropy",
    variant=_VARIANT,
    params=params(_VARIANT),
    shapes=shapes(("normal", "high", "low", "ascending"), families_for("fp16")),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "For every row of logits x (rows, cols) and its label: lse = log(sum(e^x)) and "
        "loss = lse - x[label]. x is half, labels are int32, loss and lse are float32 and have one "
        "element a row; any rows, cols >= 1.\n\n"
        "A row whose label is ignore_index has loss 0 (and its lse). Any other label that names no "
        "column, negative or too large, has loss NaN, and nothing is read for it. A row of nothing "
        "but -inf has lse -inf; a NaN or +inf in a row makes its lse NaN.\n\n"
        "Do not subtract x[label] from lse in float32: where logits are large, lse is rounded and "
        "lacks digits that the loss needs. Subtract x[label] from the maximum of the row first, "
        "then add the logarithm of sum(e^(x - max)).\n\n"
        "Float32 throughout, held to absolute bounds. The fast __logf keeps them: near 1 it is off "
        "by up to 2^-23, however small the logarithm, and a float32 sum there is rounded too."
    ),
    submit=SUBMIT,
    hints=(
        "lse = max + log(sum(e^(x - max))): neither the exponentials nor the sum overflow.",
        "loss = (max - x[label]) + log(sum): large logits cancel exactly before the small "
        "logarithm is added. lse - x[label] loses digits.",
        "One thread a row writes; it must look at the label before it reads x[label].",
        "A row of -inf: start the maximum at -FLT_MAX, and x - max is -inf instead of NaN.",
        "if (label == ignore_index) loss = 0; else if (label < 0 || label >= cols) loss = NAN; "
        "else loss = (largest - x[label]) + logf(total);",
    ),
    entry="cross_entropy",
    unforeseen=unforeseen,
)
