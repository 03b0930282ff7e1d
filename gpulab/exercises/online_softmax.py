"""online-softmax: maximum and sum in one pass."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.rows_common import LONGEST, SUBMIT, TIMED, shapes, unforeseen
from gpulab.kernels.softmax.row import params
from gpulab.ops.rows_families import families_for
from gpulab.registry import Variant

_VARIANT = Variant("fp32", "fp32", "fp32")

EXERCISE = Exercise(
    name="online-softmax",
    order=100,
    title="softmax that reads a row twice, not three times: maximum and sum in one pass",
    op="softmax",
    variant=_VARIANT,
    params=params(_VARIANT),
    shapes=shapes(("normal", "ascending", "high", "low"), families_for("fp32")),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "The softmax of every row of x (rows, cols), float32 in and out, but each element of x may "
        "be read from global memory at most twice: once for maximum and sum together, once for the "
        "result. A row may be longer than a block or shared memory; any rows, cols >= 1.\n\n"
        "Keep the largest element seen so far and the sum of the exponentials relative to it. When "
        "a larger one comes, the sum so far is too large by a known factor. Two such pairs merge "
        "in the same way, across lanes, warps and tiles: this is what attention is built from.\n\n"
        "An element that is -inf (a masked one) has the probability 0, also when it comes first; a "
        "NaN or +inf in a row, or nothing but -inf, makes all of it NaN."
    ),
    submit=SUBMIT,
    hints=(
        "A pair (m, s) stands for s e^m. Merging (m1, s1) and (m2, s2): m = max(m1, m2), "
        "s = s1 e^(m1 - m) + s2 e^(m2 - m).",
        "A new element x is the pair (x, 1).",
        "(-inf) - (-inf) is NaN. Start m at -FLT_MAX, which no masked element exceeds.",
        "Lanes merge with __shfl_xor_sync of both numbers; both partners compute the same pair if "
        "the formula is symmetric.",
        "float larger = fmaxf(m, x); s = s * expf(m - larger) + expf(x - larger); m = larger;",
    ),
    most_reads=2,
    entry="online_softmax",
    unforeseen=unforeseen,
)
