"""Block-scaled products of RTX Blackwell, from the published model; no hardware has confirmed it.

``kind::mxf8f6f4`` adds the exponents of the two scales to those of every product. ``kind::mxf4``
and ``kind::mxf4nvf4`` add 16 products exactly, multiply that sum by the significands of the two
scales, and align it by the sum of the scales' exponents. A NaN scale makes the output NaN; the
sign bit of a ue4m3 scale is not read.

Source: P. Xie et al., "MMA-Sim" (arXiv 2511.10909).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import FORMATS
from gpulab.numerics._fdpa import F32_NAN, NO_TERM, Rule, fuse
from gpulab.numerics._forms import DotModel
from gpulab.numerics._operands import DEAD_NARROW, Operand

_E8M0_NAN = 0xFF
_MAGNITUDE = 0x7F


class _Scale:
    """Scales as significand and exponent (float64, int64), NaN flagged."""

    def __init__(self, codes: NDArray[np.uint8], ptx: str) -> None:
        if ptx == "ue8m0":
            self.nan = codes == _E8M0_NAN
            self.exponent = codes.astype(np.int64) - FORMATS["e8m0"].bias
            self.significand: NDArray[Any] = np.ones(codes.shape)
            return
        row = FORMATS["e4m3"]
        magnitude = (codes & _MAGNITUDE).astype(np.int64)
        field = magnitude >> row.mantissa_bits
        fraction = (magnitude & ((1 << row.mantissa_bits) - 1)) * row.eps
        self.nan = magnitude > row.max_code
        self.exponent = np.maximum(field, 1) - row.bias
        self.significand = fraction + (field > 0)


def scaled_block(
    rules: DotModel,
    a: Operand,
    b: Operand,
    c: NDArray[np.float32],
    scale_a: NDArray[np.uint8],
    scale_b: NDArray[np.uint8],
) -> NDArray[np.float32]:
    """One instruction.

    Args:
        rules: its model.
        a: operands (k, m, batch).
        b: operands (k, n, batch).
        c: (m, n, batch).
        scale_a: codes (k / scale_block, m, batch).
        scale_b: codes (k / scale_block, n, batch).
    """
    left, right = _Scale(scale_a, str(rules.scale_type)), _Scale(scale_b, str(rules.scale_type))
    step = rules.exact_group
    largest = np.full(c.shape, 2 * NO_TERM, dtype=np.int64)
    terms = []
    with np.errstate(invalid="ignore"):
        total = c.astype(np.float64)  # which terms are Inf or NaN
        for value, exponent, bare in _terms(a, b, left, right, rules, step):
            total += bare
            value[~np.isfinite(value)] = 0
            np.maximum(largest, np.where(value == 0, 2 * NO_TERM, exponent), out=largest)
            terms.append(value)
    total[(left.nan.any(0)[:, None] | right.nan.any(0)[None])] = np.nan
    finite = np.isfinite(total)
    rule = Rule(rules.fraction_bits, rules.result)
    out = fuse(terms, largest, np.where(np.isfinite(c), c, np.float32(0)), rule)
    np.copyto(out, total, where=~finite, casting="unsafe")
    out.view(np.uint32)[np.isnan(total)] = F32_NAN
    return out


def _terms(
    a: Operand, b: Operand, left: _Scale, right: _Scale, rules: DotModel, step: int
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[Any]]]:
    """(scaled value, exponent, unscaled value with Inf and NaN) of each term to align."""
    a_values, b_values = (_raw(x) for x in (a, b))
    for k in range(0, len(a_values), step):
        bare = np.zeros((a_values.shape[1], *b_values.shape[1:]))
        for i in range(k, k + step):
            bare += a_values[i][:, None] * b_values[i][None]
        block = k // rules.scale_block
        exponent = left.exponent[block][:, None] + right.exponent[block][None]
        significand = left.significand[block][:, None] * right.significand[block][None]
        value = np.ldexp(bare * significand, exponent)
        if step == 1:
            exponent = exponent + _wide_exponents(a)[k][:, None] + _wide_exponents(b)[k][None]
        yield value, exponent, bare


def _raw(operand: Operand) -> NDArray[np.float64]:
    return (operand.values if operand.raw is None else operand.raw).astype(np.float64)


def _wide_exponents(operand: Operand) -> NDArray[np.int64]:
    """Exponents of fp8 and narrower operands; a zero's is never used."""
    exponents = operand.exponents.astype(np.int64)
    exponents[exponents == DEAD_NARROW] = 0
    return exponents
