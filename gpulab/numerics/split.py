"""float32 products by three of tf32: the parts of a value, what their product loses, its sums.

x = hi + lo: hi is x rounded to the nearest tf32 value (of two the one further from zero), lo the
rest, of which a tensor core reads the leading 11 bits. In ulps of x, hi is a multiple of 2^13, so
that the rest is an integer of magnitude 2^12 at most, 2^-11 |x|: to 11 bits it is cut by one ulp,
2^-23 |x|, if it is odd and above 2^11, and else held. A value of 23 significand bits is held whole.
Of a b = (hi + lo)(hi + lo) the product lo lo is left out. Together

    2^-23 |a b| + 2^-23 |a b| + 2^-22 |a b| = 2^-21 |a b|.

lo is kept times 2^13: the last bit of float32, 2^-149, is then tf32's, 2^-136, so that all of this
holds down to 2^-126; of a subnormal the one ulp may be more than 2^-23 |x|.

Sums: hi hi of the terms of an instruction or of a few from zero, each added to a float32 sum;
lo hi + hi lo in a sum of the tensor core's own, of 2 K terms which are 2^-10 of S at most; the last
addition rounds.

Source: H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while
surpassing the FP32 theoretical peak performance", IJHPCA 36(4), 2022.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import get
from gpulab.numerics import tensorcore
from gpulab.numerics.tensorcore import DotModel

TF32_SPLIT = "3xtf32"
"""Name of the rounding contract of a row whose products are made so."""
PRODUCTS = 3
"""Of tf32, that stand for one of float32."""

_DROPPED = get("fp32").mantissa_bits - get("tf32").mantissa_bits
"""Bits that tf32 has not: 13."""
LOW_SCALE = 2.0**_DROPPED
"""What lo is kept times."""
HELD_BITS = 2 * (get("tf32").mantissa_bits + 1) + 1
"""Significand bits of a value that both parts hold, the sign of lo being one: 23."""
LOW_SHARE = 2.0 ** -(get("tf32").mantissa_bits + 1)
"""The largest |lo| / |x|."""
PRODUCT_LOSS = LOW_SHARE**2 + 2 * 2.0 ** -get("fp32").mantissa_bits
"""The largest relative error of one product: 2^-21."""

_CHUNK = 1 << 18
"""Results of instructions in memory at a time."""

Bits = NDArray[np.uint32]


def split(values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The parts hi and lo of float32 values; lo times ``LOW_SCALE``, as an instruction reads it."""
    whole = np.ascontiguousarray(values, np.float32)
    half, kept = np.uint32(1 << (_DROPPED - 1)), np.uint32(~((1 << _DROPPED) - 1) & 0xFFFFFFFF)
    with np.errstate(invalid="ignore", over="ignore"):
        high = ((whole.view(np.uint32) + half) & kept).view(np.float32)
        low = (whole - high) * np.float32(LOW_SCALE)
    return high, (low.view(np.uint32) & kept).view(np.float32)


def sums(
    rules: DotModel, a: NDArray[Any], b: NDArray[Any], promotion: int | None = None
) -> NDArray[np.float64]:
    """The product of float32 matrices as the declared kernel sums it.

    Args:
        rules: the tf32 instruction.
        a: (r, k), k a multiple of the instruction's.
        b: (k, c).
        promotion: terms of hi hi that are summed from zero, a multiple of the instruction's; None:
            those of one.

    Returns:
        float32 results (r, c) in float64.
    """
    (high_a, low_a), (high_b, low_b) = split(a), split(b)
    (r, k), c, depth = a.shape, b.shape[1], rules.k
    zero = np.zeros((r, c), np.uint32)
    left = np.stack((_steps(low_a.T, depth), _steps(high_a.T, depth)), 1)
    right = np.stack((_steps(high_b, depth), _steps(low_b, depth)), 1)
    cross = tensorcore.evaluate(
        rules, np.ascontiguousarray(left.reshape(2 * k, r).T), right.reshape(2 * k, c), zero
    ).view(np.float32)
    total = np.zeros((r, c), np.float32)
    chain = promotion or depth
    beyond = ((0, -k % chain), (0, 0))  # terms of zero, which change nothing
    parts_a = _steps(np.pad(high_a.T, beyond), chain).transpose(0, 2, 1)
    parts_b = _steps(np.pad(high_b, beyond), chain)
    step = max(1, _CHUNK // (r * c))
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(parts_b), step):
            some = slice(first, first + step)
            found = tensorcore.evaluate(rules, parts_a[some], parts_b[some], zero)
            for part in found.view(np.float32):
                total += part
        exact = total.astype(np.float64) + cross.astype(np.float64) / LOW_SCALE
        return exact.astype(np.float32).astype(np.float64)


def _steps(along: NDArray[np.float32], depth: int) -> Bits:
    """(k, other) as (k / depth, depth, other), raw bits."""
    bits = np.ascontiguousarray(along).view(np.uint32)
    return bits.reshape(-1, depth, along.shape[1])
