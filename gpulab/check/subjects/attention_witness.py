"""Which accumulators an attention kernel really used, read off its own results.

Sum of P V: three keys of equal weight whose values are 2^15, 2^(15 - p) and -2^15. A running sum
of w significand bits keeps the small one for every p < w; from p = w on it is lost where it is
added to a large one, which in any order of summation happens in one of the three ways to give the
values to the keys. What is left is the small value over three, or not.

Sum of the weights: two keys of weight 1 and 2^-p. Lost, the log-sum-exp is 0, not log(1 + 2^-p).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.check.subject import Arrays
from gpulab.formats import decode, encode
from gpulab.numerics.structure import POISONS
from gpulab.ops.base import Runner

FORMAT = "fp16"
KEYS, TOP = 3, 15
VALUE_BITS, WEIGHT_BITS = 24, 18
"""How far each is looked at: what half holds of the values, and float32 of the logarithm."""
HEAD_DIM = KEYS * VALUE_BITS
NEAR = 0.3
"""How far a result may be from the right one, relative to it, for the small term to be in it."""
FIRST = 0.02
"""The same of the first, largest small term, which every width holds."""
NEEDED = 16
"""Significand bits from which a sum is no half and no bf16, nor that of an fp8 tensor core."""
DIMS = {
    "batch": 1, "heads": 2, "kv_heads": 2, "seq_q": WEIGHT_BITS, "seq_k": KEYS,
    "head_dim": HEAD_DIM, "causal": 0, "window": 0, "bias_planes": 0, "mask_planes": 0,
}  # fmt: skip
_HIDDEN = 100.0
"""Component of query and key whose product leaves a key no weight at all."""


@dataclass(frozen=True)
class Widths:
    """Significand bits of the running sums; at least so many where all that was looked at held.

    Args:
        values: of the sum of P V.
        weights: of the sum of the weights.
    """

    values: int
    weights: int

    @property
    def text(self) -> str:
        """One sentence."""

        def told(bits: int, most: int) -> str:
            name = {11: " (half)", 8: " (bf16)"}.get(bits, "")
            return f"at least {bits}" if bits == most else f"{bits}{name}"

        return (
            f"the sum of P V holds {told(self.values, VALUE_BITS)} significand bits, the sum of "
            f"the weights {told(self.weights, WEIGHT_BITS)}"
        )


def inputs() -> tuple[Arrays, NDArray[np.float64], NDArray[np.float64]]:
    """Stored inputs, and what is left of the small terms: values (bits, ways), weights (bits)."""
    shape = (1, 2, KEYS, HEAD_DIM)
    q, k, v = np.zeros((1, 2, WEIGHT_BITS, HEAD_DIM)), np.zeros(shape), np.zeros(shape)
    small = 2.0 ** (TOP - 1 - np.arange(VALUE_BITS))
    terms = np.stack([np.full(VALUE_BITS, 2.0**TOP), small, np.full(VALUE_BITS, -(2.0**TOP))])
    for way in range(KEYS):
        v[0, 0, :, way::KEYS] = np.roll(terms, way, axis=0)
    steps = np.arange(1, WEIGHT_BITS + 1)
    q[0, 1, :, 0], k[0, 1, 1, 0] = -steps * math.log(2.0) * math.sqrt(HEAD_DIM), 1.0
    q[0, 1, :, 1], k[0, 1, 2, 1] = -_HIDDEN, _HIDDEN
    stored = {name: encode(FORMAT, array) for name, array in (("q", q), ("k", k), ("v", v))}
    scores = decode(FORMAT, stored["q"])[0, 1, :, 0] / math.sqrt(HEAD_DIM)
    return stored, np.repeat(small[:, None] / KEYS, KEYS, axis=1), np.log1p(np.exp(scores))


def look(run: Runner) -> Widths:
    """Run the kernel at ``DIMS`` and read the widths of its sums."""
    stored, values, weights = inputs()
    got = run(stored, poison=POISONS[0]).outputs
    out = decode(FORMAT, got["out"])[0, 0, 0].reshape(VALUE_BITS, KEYS)
    lse = got["lse"][0, 1].astype(np.float64)
    return Widths(_first_lost(out, values), _first_lost(lse, weights))


def _first_lost(got: NDArray[np.float64], want: NDArray[np.float64]) -> int:
    if not (np.abs(got[0] - want[0]) <= FIRST * want[0]).all():
        return 1  # no sum is so narrow: the scores are wrong
    near: NDArray[np.bool_] = np.asarray(np.abs(got - want) <= NEAR * want)
    held: NDArray[np.bool_] = np.asarray(near.reshape(len(want), -1).all(axis=1))
    return len(held) if held.all() else 1 + int(np.argmin(held))


def against(seen: Widths) -> Diagnosis | None:
    """What a sum that is narrower than float32 means; None where both are wide enough."""
    bits = min(seen.values, seen.weights)
    if bits >= NEEDED:
        return None
    slug = {11: "half-accumulator", 8: "bf16-accumulator"}.get(bits, "narrow-accumulator")
    return Diagnosis(
        slug,
        f"{seen.text}; the exercise asks for float sums",
        "declare the sums as float and convert each element before it is used",
    )
