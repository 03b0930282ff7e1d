"""What the matmul exercises share: parameters, shapes, and the words about submitting."""

from __future__ import annotations

from dataclasses import replace

from gpulab.exercises.base import Shape
from gpulab.kernels.matmul.simt import params
from gpulab.numerics.inputs import DEFAULT
from gpulab.registry import Param, Variant

BASELINE = "tiled-matmul"
TIMED = {"m": 2048, "n": 2048, "k": 2048}
LONGEST = Shape(
    {"m": 2, "n": 3, "k": 4621}, "sums more than twice as long as those timed", ("normal",)
)


def parameters(variant: Variant) -> tuple[Param, ...]:
    """(a, b, c, m, n, k) in the variant's formats."""
    return params(variant)


ONCE = (
    (64, 128, 192, "whole tiles where m, n and k differ"),
    (32, 48, 21, "whole tiles but for k: a path that asks too little"),
    (32, 21, 48, "whole tiles but for n: a path that asks too little"),
    (9, 48, 32, "whole tiles but for m: a path that asks too little"),
    (100, 300, 5, "several large tiles each way, with tails"),
    (3, 5, 300, "more terms than most tiles, fewer than the long sum"),
    (2100, 2, 1, "more rows than are timed"),
    (2, 2100, 1, "more columns than are timed"),
)
"""m, n, k of which one launch is looked at."""


def shapes(long_k: int = 1032) -> tuple[Shape, ...]:
    """Where a product is judged.

    Args:
        long_k: terms of the long sum, where a narrow accumulator shows most.
    """

    def shape(m: int, n: int, k: int, why: str) -> Shape:
        return Shape({"m": m, "n": n, "k": k}, why, DEFAULT[:2])

    return (
        shape(1, 1, 1, "one element"),
        replace(
            shape(33, 65, 47, "tails on every side, m != n != k"), families=DEFAULT, effort="full"
        ),
        shape(1, 9, 20, "one row"),
        shape(7, 1, 12, "one column"),
        shape(6, 10, 1, "one term"),
        shape(5, 6, 10, "n and k are multiples of 2 only: a vector path that asks too little"),
        shape(48, 20, 132, "n and k are multiples of 4, not of 8; fewer columns than rows"),
        replace(shape(64, 64, 64, "whole tiles: the path without guards"), counted=True),
        *(replace(shape(m, n, k, why), once=True) for m, n, k, why in ONCE),
        shape(
            13,
            24,
            long_k,
            "a long sum: what the accumulator rounds away; n and k are whole vectors, no tiles",
        ),
    )


SUBMIT = (
    "Submit one file: the kernel, and as claims in its header your error and gate fraction beside "
    "the float32 kernel's, both times at 2048, and one sentence where the speedup came from:\n"
    "// gpulab: claim max_abs_err=... gate_fraction=... time_ms=... baseline_ms=... "
    'speedup_from="..."'
)
