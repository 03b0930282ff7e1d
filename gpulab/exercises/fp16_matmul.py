"""fp16-matmul: a tiled float32 matmul, converted to half storage with a float accumulator."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.matmul_common import BASELINE, LONGEST, SUBMIT, TIMED, parameters, shapes
from gpulab.registry import Variant

_VARIANT = Variant("fp16", "fp32", "fp32")

EXERCISE = Exercise(
    name="fp16-matmul",
    order=20,
    title="half storage, float accumulator: a tiled matmul that reads half the bytes",
    op="matmul",
    variant=_VARIANT,
    params=parameters(_VARIANT),
    shapes=shapes(),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "You have a tiled float32 matmul. Convert it to half storage: A and B arrive as __half, "
        "C leaves as float, and the running sum stays in float.\n\n"
        "C (m, n) = A (m, k) B (k, n), all row-major, any m, n, k >= 1. The inputs were rounded to "
        "half before your kernel sees them; that rounding is not your error. What you do with them "
        "is: products and sums must be exact to float32's precision.\n\n"
        "The shared tiles may hold half or float. Half tiles need half the shared memory and half "
        "the traffic; convert at the moment of use."
    ),
    submit=SUBMIT,
    baseline=BASELINE,
    hints=(
        "The type of the pointers, the type of the tiles and the type of the sum are three "
        "separate decisions.",
        "__half2float(x) is exact: every half is a float. Convert each element before the "
        "multiplication, not the sum after it.",
        "Why not sum in half? Near 2048 neighbouring halves are 2 apart: adding 0.5 changes "
        "nothing. After a few hundred terms most of each new term is lost.",
        "Guard every load and the store separately: row < m && t + x < k for A, t + y < k && "
        "column < n for B, row < m && column < n for C. Load zeros elsewhere.",
        "for (int i = 0; i < 16; ++i) sum += __half2float(tile_a[y][i]) * "
        "__half2float(tile_b[i][x]); with a __syncthreads() before and one after the loop, both "
        "outside of any branch.",
    ),
)
