"""fp8-matmul: e4m3 codes decoded in software."""

from __future__ import annotations

from gpulab.exercises.base import Exercise
from gpulab.exercises.matmul_common import BASELINE, LONGEST, SUBMIT, TIMED, parameters, shapes
from gpulab.registry import Variant

_VARIANT = Variant("e4m3", "fp32", "fp32")

EXERCISE = Exercise(
    name="fp8-matmul",
    order=50,
    title="e4m3 codes decoded in software, float accumulator: a quarter of the bytes",
    op="matmul",
    variant=_VARIANT,
    params=parameters(_VARIANT),
    shapes=shapes(),
    timed=TIMED,
    longest=LONGEST,
    statement=(
        "A and B arrive as bytes, each the code of an e4m3 number: sign, 4 exponent bits with bias "
        "7, 3 mantissa bits. Exponent 0 is subnormal (mantissa times 2^-9), the codes 0x7f and "
        "0xff are NaN, there is no infinity. Decode them yourself and sum in float: "
        "C (m, n) = A (m, k) B (k, n), row-major, any m, n, k >= 1.\n\n"
        "Every e4m3 number is a float32 number, so decoding is exact; with 3 mantissa bits there "
        "are 256 codes to test it on."
    ),
    submit=SUBMIT,
    baseline=BASELINE,
    hints=(
        "Move the 7 magnitude bits to bit 20 of a float32: exponent and mantissa land in their "
        "fields, and only the bias is wrong, by a power of two.",
        "Multiplying by 2^120 corrects the bias for normal and subnormal numbers alike.",
        "Keep the tiles as bytes and decode at the moment of use, or decode once into float tiles: "
        "which moves fewer bytes, which decodes less?",
    ),
    cpp={"a": "unsigned char", "b": "unsigned char"},
)
