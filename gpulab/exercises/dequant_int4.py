"""dequant-int4: weights of half a byte, unpacked and scaled where they are used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpulab.exercises.base import Exercise, Shape
from gpulab.exercises.matmul_common import BASELINE
from gpulab.numerics.inputs import DEFAULT
from gpulab.registry import Param, Variant


def _dims(m: int, n: int, k: int, group: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k, "group": group}


def _unforeseen(rng: np.random.Generator) -> Mapping[str, int]:
    """Dims of the case that nobody can know beforehand."""
    m, n, k = (int(rng.integers(1, top)) for top in (12, 50, 90))
    return _dims(m, n, k, 8 * int(rng.integers(1, 5)))


EXERCISE = Exercise(
    name="dequant-int4",
    order=55,
    title="int4 weights with a scale for each group: an eighth of the bytes",
    op="int4_matmul",
    variant=Variant("int4", "fp32", "fp32"),
    params=(
        Param("a", "in", "fp16", ("m", "k")),
        Param("w", "in", "int4", ("pairs", "n")),
        Param("scales", "in", "fp16", ("groups", "n")),
        Param("c", "out", "fp32", ("m", "n")),
        *(Param(name, "dim", "int32") for name in ("m", "n", "k", "group")),
    ),
    shapes=(
        Shape(_dims(1, 1, 1, 8), "one element", DEFAULT[:2]),
        Shape(_dims(9, 13, 43, 8), "an odd k, and a last group that is not whole", DEFAULT, "full"),
        Shape(_dims(1, 40, 24, 8), "one row; whole vectors of 8, no whole tiles", DEFAULT[:1]),
        Shape(_dims(4, 1, 20, 8), "one column", DEFAULT[:1]),
        Shape(_dims(3, 5, 1, 8), "one term", DEFAULT[:1]),
        Shape(_dims(3, 38, 70, 24), "few rows, a group that is no power of two", DEFAULT[:2]),
        Shape(
            _dims(16, 32, 64, 32),
            "whole tiles: the path without guards",
            DEFAULT[:2],
            counted=True,
        ),
        Shape(_dims(40, 5, 24, 8), "more rows than are timed", DEFAULT[:1], once=True),
        # Of the other families some scale is subnormal, which is asked for apart.
        Shape(_dims(1, 4100, 1, 8), "more columns than are timed", ("periodic",), once=True),
        Shape(_dims(5, 12, 512, 64), "a long sum; n is a multiple of 4, not of 8", DEFAULT[:2]),
    ),
    timed=_dims(16, 4096, 4096, 128),
    longest=Shape(
        _dims(1, 3, 9227, 128), "sums more than twice as long as those timed", DEFAULT[:1]
    ),
    statement=(
        "C (m, n) = A (m, k) W (k, n), where W is stored as inference engines keep it: 4-bit "
        "integers that share a half scale by groups of rows. A is half, C float, row-major.\n\n"
        "w has (k + 1) / 2 rows of n bytes. Byte [p, j] holds the code of W[2 p, j] in its low and "
        "that of W[2 p + 1, j] in its high half, each in two's complement: 0 .. 7 are themselves, "
        "8 .. 15 stand for -8 .. -1. Where k is odd, the last high halves belong to nobody. "
        "scales has (k + group - 1) / group rows of n: the weight at row t and column j is "
        "code * scales[t / group, j]. group is a multiple of 8; the last group may be shorter; any "
        "m, n, k >= 1.\n\n"
        "Sum in float, either a * (q * scale) weight by weight or scale * (sum of a * q) group by "
        "group; q * scale is a float32 number without rounding, and is not to be rounded to half. "
        "Subtract no zero point from the sum: the sum over a (q + 8) is several times larger than "
        "the result, and so are its errors."
    ),
    baseline=BASELINE,
    submit=(
        "Submit one file: the kernel, and as claims in its header your error and gate fraction "
        "beside the float32 kernel's, the time at 16 x 4096 x 4096, and one sentence where its "
        "speed came from:\n"
        "// gpulab: claim max_abs_err=... gate_fraction=... time_ms=... baseline_ms=... "
        'speedup_from="..."'
    ),
    hints=(
        "Neighbouring threads take neighbouring columns: they read neighbouring bytes of w and "
        "neighbouring scales.",
        "The low half sign-extended: (int)((unsigned)byte << 28) >> 28. The high half: "
        "(signed char)byte >> 4. The shift right of a negative int keeps its sign.",
        "A byte never straddles groups: they begin at multiples of 8 rows.",
        "Keep a float for the sum of the present group and one for all groups: one multiplication "
        "by a scale for each group instead of one for each weight.",
        "On tensor cores -8 .. 7 are exact in half: multiply them by A, and apply the scales to "
        "the float accumulators at the end of each group.",
    ),
    entry="matmul_int4",
    unforeseen=_unforeseen,
    cpp={"w": "unsigned char"},
)
