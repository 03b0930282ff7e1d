"""The truncating fused dot-add over whole batches: one block of products and an addend.

For each output: E is the largest exponent among the live terms (products and addend), every term
is cut toward zero to F fraction bits below 2^E, the cut terms are summed as integers, and the sum
is rounded once. The cut and the sum make the order of the terms irrelevant.

Two carriers hold the terms. ``_narrow``: float32 products scaled by 2^(F-E) and cut by the
conversion to int32; it serves every case whose exponents fit, and is the fast one. ``_wide``:
float64 throughout; it serves the rest. Both are exact, so they agree to the last bit.

``_narrow`` may round a product below 2^-126 when it forms it. That product, and what it was
rounded to, are cut to zero where E > F - 124, and no output with a smaller E is left to it.

Arrays lie as (k, m, 1 or n, batch): the batch is the contiguous axis of every operation. Several
k are taken in one operation while the temporaries stay in the L2 cache (``PASS`` elements).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.numerics._operands import F32_BIAS, F32_MANTISSA, Operand
from gpulab.numerics._results import F16_LOWEST, F64_BIAS, F64_MANTISSA, Result, round_once

F32_NAN = np.uint32(0x7FFFFFFF)

_INT32_BITS = 31
_F32_LOWEST = 1 - F32_BIAS
_F32_EXPONENT_MASK = np.int32(0xFF)
NO_TERM = -600  # E where no term is live: below every exponent, and 2^-E is a float64
_FLOOR_BITS = 18  # with a float16 addend E stays above -14 - (F - 18); see docs/tensor-cores.md
_LOWEST_NARROW_SUM = -28  # the smallest sum of two live int8 exponents, that of float16
_DEAD_SUM = np.int8(-128)
PASS = 1 << 16


@dataclass(frozen=True)
class Rule:
    """What one block does: F and the rounding of its result."""

    fraction_bits: int
    result: Result

    @property
    def half(self) -> bool:
        """Whether C and D are float16."""
        return self.result.endswith("f16")


class Workspace:
    """Temporaries that live as long as one evaluation, by name; grown where too small."""

    def __init__(self) -> None:
        self._flat: dict[tuple[str, Any], NDArray[Any]] = {}

    def array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """An uninitialised array; the one given before under this name and type is dead."""
        size = math.prod(shape)
        flat = self._flat.get((name, dtype))
        if flat is None or flat.size < size:
            flat = self._flat[name, dtype] = np.empty(size, dtype=dtype)
        return flat[:size].reshape(shape)


def dot_add(
    a: Operand, b: Operand, c: NDArray[np.float32], rule: Rule, work: Workspace | None = None
) -> NDArray[np.float32]:
    """One block for every output.

    Args:
        a: operands (k, m, batch).
        b: operands (k, n, batch).
        c: float32 (m, n, batch); values that float16 holds, where ``rule.half``.
        rule: F and rounding.
        work: temporaries to use again.

    Returns:
        float32 (m, n, batch), as rounded; NaN results are the canonical ones.
    """
    special = a.raw is not None or b.raw is not None
    finite = np.isfinite(c)
    addend = c
    if not finite.all():
        special = True
        addend = np.where(finite, c, c.dtype.type(0))
    result = _narrow(a, b, addend, rule, work or Workspace())
    if result is None:
        result = _wide(a, b, addend, rule)
    if special:
        _put_specials(result, a, b, c)
    return result


def _narrow(
    a: Operand, b: Operand, c: NDArray[np.float32], rule: Rule, work: Workspace
) -> NDArray[np.float32] | None:
    """The float32/int32 carrier, or None where some exponent does not fit it."""
    fraction = rule.fraction_bits
    if not 1 <= fraction <= _INT32_BITS - 2:
        return None
    shape, depth = c.shape, a.values.shape[0]
    group = 1 << (_INT32_BITS - (fraction + 2))  # products whose cut sum fits an int32
    one = _largest_exponent(a, b, work)
    if not a.narrow and one.max() > F32_BIAS - 2:
        return None  # a product may overflow
    floor = np.int32(fraction + 2)  # smallest biased E: 2^(F-E) and 2^(E-F) are normal float32
    largest = work.array("largest", np.int32, shape)
    np.copyto(largest, one)
    largest += np.int32(F32_BIAS)
    np.maximum(largest, _biased_exponents(c, rule), out=largest)
    if largest.min() <= floor:
        live = (c != 0) | (one > (_DEAD_SUM if a.narrow else NO_TERM))
        if np.any(live & (largest <= floor)):
            return None
        np.maximum(largest, floor, out=largest)
    scale = work.array("scale", np.int32, shape)
    np.subtract(np.int32(2 * F32_BIAS + fraction), largest, out=scale)
    np.left_shift(scale, F32_MANTISSA, out=scale)
    up = scale.view(np.float32)  # 2^(F-E)
    total = work.array("total", np.float64, shape)
    cut = work.array("cut", np.int32, shape)
    moved = work.array("moved", np.float32, shape)
    np.multiply(c, up, out=moved)
    np.copyto(cut, moved, casting="unsafe")
    if depth < group:
        _cut_sum(a, b, up, cut, work)
        np.copyto(total, cut)
    else:
        np.copyto(total, cut)
        for start in range(0, depth, group):
            part = slice(start, start + group)
            cut[...] = 0
            _cut_sum(a.part(part), b.part(part), up, cut, work)
            total += cut
    np.subtract(largest, np.int32(fraction), out=largest)
    np.left_shift(largest, F32_MANTISSA, out=largest)
    down = largest.view(np.float32)  # 2^(E-F)
    return round_once(total, down, rule.result)


def _cut_sum(
    a: Operand, b: Operand, up: NDArray[np.float32], total: NDArray[np.int32], work: Workspace
) -> None:
    """Add the cut products to ``total``."""
    left, right = a.values[:, :, None], b.values[:, None]
    depth = len(left)
    step = min(depth, max(1, PASS // max(1, total.size)))
    product = work.array("product", np.float32, (step, *total.shape))
    cut = work.array("cut products", np.int32, (step, *total.shape))
    for start in range(0, depth, step):
        k = slice(start, start + step)
        size = min(step, depth - start)
        p, t = product[:size], cut[:size]
        np.multiply(left[k], right[k], out=p)
        np.multiply(p, up, out=p)
        np.copyto(t, p, casting="unsafe")
        for one in t:
            np.add(total, one, out=total)


def _largest_exponent(a: Operand, b: Operand, work: Workspace) -> NDArray[Any]:
    """Largest exponent among the live products; below every live one where there is none."""
    left, right = a.exponents[:, :, None], b.exponents[:, None]
    kind, depth = left.dtype, len(left)
    shape = (left.shape[1], *right.shape[2:])
    step = min(depth, max(1, PASS // max(1, math.prod(shape))))
    largest = work.array("exponent", kind, shape)
    sums = work.array("exponent sums", kind, (step, *shape))
    np.add(left[0], right[0], out=largest)
    for start in range(1, depth, step):
        k = slice(start, start + step)
        part = sums[: min(step, depth - start)]
        np.add(left[k], right[k], out=part)
        for one in part:
            np.maximum(largest, one, out=largest)
    if a.narrow:
        np.putmask(largest, largest < _LOWEST_NARROW_SUM, _DEAD_SUM)
    return largest


def _biased_exponents(c: NDArray[np.float32], rule: Rule) -> NDArray[np.int32]:
    """Exponent fields of the addend. A float16 subnormal has float16's smallest exponent, a
    float16 zero one that lies F - 18 below: it keeps E from going lower."""
    field = np.right_shift(c.view(np.int32), F32_MANTISSA)
    field &= _F32_EXPONENT_MASK
    if rule.half:
        np.maximum(field, np.int32(F32_BIAS + F16_LOWEST), out=field)
        np.putmask(field, c == 0, F32_BIAS + F16_LOWEST - (rule.fraction_bits - _FLOOR_BITS))
    return field


def _wide(a: Operand, b: Operand, c: NDArray[Any], rule: Rule) -> NDArray[np.float32]:
    """The float64 carrier: every product, scale and sum is exact."""
    largest = _largest_exponent(a, b, Workspace()).astype(np.int64)
    left, right = a.values[:, :, None], b.values[:, None]
    products = (x.astype(np.float64) * y for x, y in zip(left, right, strict=True))
    return fuse(products, largest, c, rule)


def fuse(
    terms: Iterable[NDArray[np.float64]],
    largest: NDArray[np.int64],
    c: NDArray[np.float32],
    rule: Rule,
) -> NDArray[np.float32]:
    """Align, cut, add and round terms that are float64 values.

    Args:
        terms: finite values (m, n, batch), each; may be overwritten.
        largest: the largest exponent among the live ones; below -126 where there is none.
        c: finite addend (m, n, batch).
        rule: F (at most 45: the sums stay exact) and rounding.
    """
    fraction = rule.fraction_bits
    addend = _biased_exponents(c, rule).astype(np.int64) - F32_BIAS
    np.maximum(addend, _F32_LOWEST, out=addend)
    if not rule.half:
        addend[c == 0] = NO_TERM
    exponent = np.maximum(largest, addend)
    np.maximum(exponent, NO_TERM, out=exponent)
    up = ((F64_BIAS + fraction - exponent) << F64_MANTISSA).view(np.float64)
    total = np.trunc(c.astype(np.float64) * up)
    for term in terms:
        term *= up
        total += np.trunc(term, out=term)
    down = ((F64_BIAS + exponent - fraction) << F64_MANTISSA).view(np.float64)
    return round_once(total, down, rule.result)


def _put_specials(
    result: NDArray[np.float32], a: Operand, b: Operand, c: NDArray[np.float32]
) -> None:
    """Overwrite outputs that a NaN or Inf reaches: IEEE addition of the terms says which."""
    a_raw = a.values if a.raw is None else a.raw
    b_raw = b.values if b.raw is None else b.raw
    touched = ~np.isfinite(a_raw).all(axis=(0, 1))
    touched |= ~np.isfinite(b_raw).all(axis=(0, 1))
    touched |= ~np.isfinite(c).all(axis=(0, 1))
    (batch,) = np.nonzero(touched)
    with np.errstate(invalid="ignore"):
        total = c[:, :, batch].astype(np.float64)
        for k in range(a_raw.shape[0]):
            total += (
                a_raw[k][:, batch].astype(np.float64)[:, None]
                * b_raw[k][:, batch].astype(np.float64)[None]
            )
    part = result[:, :, batch]
    infinite = np.isinf(total)
    part[infinite] = total[infinite]
    part.view(np.uint32)[np.isnan(total)] = F32_NAN
    result[:, :, batch] = part
