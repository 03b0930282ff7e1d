"""tiled-matmul: float32 through tiles in shared memory."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.matmul_common import LONGEST, SUBMIT, TIMED, parameters, shapes
from gpulab.registry import Variant

_VARIANT = Variant("fp32", "fp32", "fp32")

EXERCISE = Exercise(
    name="tiled-matmul",
    order=10,
    title="float32 through tiles in shared memory: read each element once a tile",
    op="matmul",
    variant=_VARIANT,
    params=parameters(_VARIANT),
    shapes=shapes(),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "Multiply two float32 matrices, C (m, n) = A (m, k) B (k, n), all row-major, any "
        "m, n, k >= 1, with tiles in shared memory: a block brings a tile of A and a tile of B "
        "in, everybody waits, each thread sums its row times its column, everybody waits again.\n\n"
        "A kernel that reads global memory for every product gives the same numbers; the exercise "
        "asks for the tiles. Products and sums are float32: tf32 is not."
    ),
    submit=SUBMIT,
    hints=(
        "Let threadIdx.x run along columns: neighbouring threads then read neighbouring elements.",
        "Two barriers a step: one after filling the tiles, one before they are filled again.",
        "Elements beyond the matrix are zeros in the tile; they add nothing.",
        "No thread may return before the last barrier, not even one beyond the matrix.",
    ),
    shared_tiles=True,
)
