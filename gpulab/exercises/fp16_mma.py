"""fp16-mma: half matrices on tensor cores."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.matmul_common import BASELINE, LONGEST, SUBMIT, TIMED, parameters, shapes
from gpulab.registry import Variant

_VARIANT = Variant("fp16", "fp32", "fp32")

EXERCISE = Exercise(
    name="fp16-mma",
    order=40,
    title="half matrices on tensor cores: mma.sync with a float accumulator",
    op="matmul",
    variant=_VARIANT,
    params=parameters(_VARIANT),
    shapes=shapes(),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "Multiply half matrices with the warp instruction mma.sync.m16n8k16 and float sums: "
        "C (m, n) = A (m, k) B (k, n), row-major, any m, n, k >= 1.\n\n"
        "Each lane holds 8 elements of A, 4 of B and 4 of C. With group = lane / 4 and "
        "pair = lane % 4 * 2: A holds rows group and group + 8, columns pair, pair + 1, pair + 8, "
        "pair + 9; B rows pair, pair + 1, pair + 8, pair + 9 of column group; C rows group and "
        "group + 8, columns pair and pair + 1 (PTX ISA, matrix fragments of m16n8k16).\n\n"
        "Tensor cores truncate where they add, so that the error grows with K/16; the bound "
        "follows the instruction you use. wmma is not emulated: without a card use mma.sync."
    ),
    submit=SUBMIT,
    baseline=BASELINE,
    hints=(
        "Load zeros beyond the matrix: they add exactly nothing.",
        "The order of the registers of A is: row, row + 8, then the same rows 8 columns on.",
        "Register pairs: the element with the lower column (A) or row (B) is the lower half.",
        "The variant with .f16 accumulators is twice as fast on some cards, and wrong here.",
    ),
    tensor_cores="required",
    min_capability=(8, 0),
)
