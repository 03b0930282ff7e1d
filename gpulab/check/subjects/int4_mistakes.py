"""Mistakes with int4 weights: codes, packing, scales; the product's own are ``matmul_mistakes``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import Evidence, Hypothesis, Suspect
from gpulab.check.subjects import matmul_mistakes
from gpulab.formats import decode, get
from gpulab.numerics.rounding import through
from gpulab.ops import int4_weights as int4
from gpulab.ops.int4_contract import ACTIVATIONS
from gpulab.ops.int4_mutants import CODES, neighbours, offset, swapped, unsigned

Floats = NDArray[np.float64]
HALF = get("fp16")

NIBBLES = "byte [p, j] holds row 2 p in its low half and row 2 p + 1 in its high half"
SIGN = (
    "codes are two's complement: (int)(byte << 28) >> 28 for the low half, (signed char)byte >> 4"
)
SCALE = "the weight at row t is q * scales[(t / group) * n + column]"
ROUND = "keep weights, group sums and sums in float: only the inputs are half"
_ALIKE = 0.9
"""Correlation with the errors of a rounding from which a result is said to have it."""


@dataclass(frozen=True)
class Parts:
    """The inputs of a case as numbers.

    Args:
        a: (m, k).
        q: (k, n).
        scales: (groups, n).
        group: rows that share a scale.
    """

    a: Floats
    q: Floats
    scales: Floats
    group: int

    @classmethod
    def of(cls, inputs: Mapping[str, NDArray[Any]], dims: Mapping[str, int]) -> Parts:
        """From stored inputs."""
        a, scales = (decode(ACTIVATIONS, inputs[name]) for name in ("a", "scales"))
        return cls(a, int4.integers(inputs["w"], a.shape[1]), scales, int(dims["group"]))

    def product(self, q: Floats | None = None, scales: Floats | None = None) -> Floats:
        """A times the weights, with other integers or scales."""
        s = int4.per_row(self.scales if scales is None else scales, len(self.q), self.group)
        return self.a @ ((self.q if q is None else q) * s)

    def by_row(self, index: NDArray[np.int64]) -> Floats:
        """The product where row t has the scale of group ``index[t]``."""
        picked = self.scales[np.clip(index, 0, len(self.scales) - 1)]
        return self.a @ (self.q * picked)


def _half_unsigned(parts: Parts, first: int) -> Floats:
    """Every second row is not sign-extended."""
    q = parts.q.copy()
    q[first::2] = unsigned(q[first::2])
    return parts.product(q)


def _wrapped(q: Floats, bits: int) -> Floats:
    """Codes whose negative ones came about in an unsigned integer."""
    return np.where(q < 0, q + 2.0**bits, q).astype(np.float32).astype(np.float64)


def _rounded_sums(parts: Parts) -> Floats:
    total = np.zeros((len(parts.a), parts.q.shape[1]))
    for number, scale in enumerate(parts.scales):
        rows = slice(number * parts.group, (number + 1) * parts.group)
        total += through(HALF, parts.a[:, rows] @ parts.q[rows]) * scale
    return total


def _scale_after_all(parts: Parts) -> Floats:
    """All groups are summed before the last group's scale is applied."""
    total: Floats = (parts.a @ parts.q) * parts.scales[-1]
    return total


def suspects(parts: Parts) -> Iterator[Suspect]:
    """Mistakes in codes and scales, the likeliest first."""
    k, n = parts.q.shape
    row = np.arange(k)
    yield Suspect("nibbles-swapped", "the two halves of every byte change places", NIBBLES,
                  partial(parts.product, swapped(parts.q)))  # fmt: skip
    yield Suspect("no-sign-extension", f"codes from {CODES // 2} on count as positive: they are "
                  "not sign-extended", SIGN,
                  partial(parts.product, unsigned(parts.q)))  # fmt: skip
    for first, half in ((0, "low"), (1, "high")):
        yield Suspect("no-sign-extension", f"the {half} halves are not sign-extended", SIGN,
                      partial(_half_unsigned, parts, first))  # fmt: skip
    yield Suspect("zero-point", "codes are taken as 0 .. 15 with a zero point of 8", SIGN,
                  partial(parts.product, offset(parts.q)))  # fmt: skip
    for away in (-1.0, 1.0):
        yield Suspect("zero-point", f"every weight is {abs(away):g} step too "
                      f"{'large' if away > 0 else 'small'}", SIGN,
                      partial(parts.product, parts.q + away))  # fmt: skip
    for bits in (32, 16, 8):
        yield Suspect("int-overflow", f"negative codes are {2.0**bits:.0f} too large: a difference "
                      f"below 0 wraps around in an unsigned integer of {bits} bits", SIGN,
                      partial(parts.product, _wrapped(parts.q, bits)))  # fmt: skip
    groups: tuple[tuple[str, Callable[[], Floats]], ...] = (
        ("every group has the scale of the next", partial(parts.by_row, row // parts.group + 1)),
        ("every group has the scale of the one before",
         partial(parts.by_row, row // parts.group - 1)),
        ("every group has the scale of the next, the last that of the first",
         partial(parts.product, None, neighbours(parts.scales))),
        ("every group has the scale of the first", partial(parts.by_row, 0 * row)),
        ("groups are counted in bytes, not in rows",
         partial(parts.by_row, row // 2 // parts.group)),
        ("the last, incomplete group has the scale of the one before",
         partial(parts.by_row, np.minimum(row // parts.group, max(1, k // parts.group) - 1))),
        ("every column has the scale of the next",
         partial(parts.product, None, np.roll(parts.scales, -1, axis=1))),
        ("scales are taken as (n, groups)",
         partial(parts.product, None, parts.scales.reshape(n, -1).T)),
        ("the scale of the last group is applied to the sum of all",
         partial(_scale_after_all, parts)),
    )  # fmt: skip
    for text, values in groups:
        yield Suspect("wrong-scale", text, SCALE, values)
    yield Suspect("missing-scale", "the weights are not scaled", SCALE,
                  lambda: parts.a @ parts.q)  # fmt: skip


def known(e: Evidence) -> Diagnosis | None:
    """The first mistake with codes or scales whose values the result has."""
    found = (s.explains(e) for s in suspects(Parts.of(e.inputs, e.setting.dims)))
    return next((d for d in found if d is not None), None)


def rounded(e: Evidence) -> Diagnosis | None:
    """Weights, or sums of groups, that pass through half: the errors are those of that rounding."""
    parts = Parts.of(e.inputs, e.setting.dims)
    weights = parts.q * int4.per_row(parts.scales, len(parts.q), parts.group)
    with np.errstate(all="ignore"):
        for slug, text, values in (
            ("rounded-weights", "weights are rounded to half before they are multiplied: q times "
             "the scale has up to 15 bits", parts.a @ through(HALF, weights)),
            ("rounded-group-sum", "the sum of a group is rounded to half before its scale is "
             "applied", _rounded_sums(parts)),
        ):  # fmt: skip
            if _correlation(e.got - e.right, values - e.right) > _ALIKE:
                return Diagnosis(slug, text, ROUND)
    return None


def _correlation(one: Floats, other: Floats) -> float:
    """Of two sets of errors, over the elements where both are finite; 0 where one has none."""
    use = np.isfinite(one) & np.isfinite(other)
    one, other = one[use], other[use]
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / size if size > 0 else 0.0


def as_product(hypothesis: Hypothesis) -> Hypothesis:
    """A hypothesis about a product, over A and the float32 weights."""

    def told(e: Evidence) -> Diagnosis | None:
        a = decode(ACTIVATIONS, e.inputs["a"])
        weights = int4.weights(e.inputs, a.shape[1], int(e.setting.dims["group"]))
        inputs = {"a": a.astype(np.float32), "b": weights.astype(np.float32)}
        variant = replace(e.setting.variant, format="fp32")
        return hypothesis(replace(e, inputs=inputs, setting=replace(e.setting, variant=variant)))

    return told


misread = as_product(matmul_mistakes.misread)
partial_sum = as_product(matmul_mistakes.partial_sum)
narrow = as_product(matmul_mistakes.narrow)
