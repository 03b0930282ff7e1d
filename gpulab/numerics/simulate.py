"""Accumulations simulated on a block: what a contract allows, and what it forbids.

``contract_values`` is the yardstick of the rms part of the arithmetic gate: the error a kernel
that keeps the contract in the plainest way (one term after the other, or one instruction after the
other) makes on these very inputs. Other honest orders err less or alike; where the order of the
terms matters (sorted or spiked inputs) both directions are simulated and the larger error counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import Format, get
from gpulab.numerics import split, tensorcore
from gpulab.numerics._results import F64_MANTISSA
from gpulab.numerics.contract import Contract
from gpulab.numerics.reference import Block
from gpulab.numerics.tensorcore import DotModel

Floats = NDArray[np.float64]

_CHUNK_VALUES = 1 << 17
"""Products computed at a time: the chunk stays in the L2 cache."""


def contract_values(contract: Contract, block: Block, both_ways: bool = False) -> list[Floats]:
    """Results of the declared contract on a block, as stored and decoded.

    Args:
        contract: what to simulate.
        block: inputs.
        both_ways: also with the order of the terms reversed.

    Returns:
        One array (r, c), or two.
    """
    found = []
    for step in (1, -1) if both_ways else (1,):
        if contract.model is not None:
            sums = tensor_core(contract, contract.model, block, step)
        else:
            sums = sequential(block.a[:, ::step], block.b[::step], get(contract.accumulator))
        found.append(to_output(contract, sums))
    return found


def to_output(contract: Contract, sums: Floats) -> Floats:
    """Values as the output format stores them; int32 wraps."""
    return contract.values(contract.store(sums))


def sequential(a: Floats, b: Floats, accumulator: Format, every: int = 1) -> Floats:
    """Sums in ascending order of the terms, rounded to the accumulator after ``every`` of them.

    float32 rounds the product and then the sum, as a kernel without fused operations does (for
    inputs of up to 12 significand bits the product is exact, so that it makes no difference);
    narrower accumulators round once, as a fused operation does.

    Args:
        a: (r, k).
        b: (k, c).
        accumulator: fp32, fp16 or bf16.
        every: terms added exactly between two roundings.

    Returns:
        (r, c) in float64.
    """
    if accumulator.name == "fp32" and every == 1:
        return _sequential_f32(a, b)
    round_to = rounder(accumulator)
    total = np.zeros((a.shape[0], b.shape[1]))
    with np.errstate(all="ignore"):
        for products in _products(a, b, every):
            for step in range(0, products.shape[0], every):
                if every == 1:
                    total += products[step]
                else:
                    total += products[step : step + every].sum(axis=0)
                total = round_to(total)
    return total


def _sequential_f32(a: Floats, b: Floats) -> Floats:
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for products in _products(a, b, 1):
            for product in products.astype(np.float32):
                total += product
    return total.astype(np.float64)


def _products(a: Floats, b: Floats, multiple: int) -> Iterator[Floats]:
    """Exact products (terms, r, c) in chunks of a multiple of ``multiple`` terms."""
    outputs = a.shape[0] * b.shape[1]
    step = max(1, _CHUNK_VALUES // outputs // multiple) * multiple
    for first in range(0, a.shape[1], step):
        left = a[:, first : first + step].T[:, :, None]
        yield left * b[first : first + step, None, :]


def rounder(fmt: Format) -> Callable[[Floats], Floats]:
    """A fast round-to-nearest into a format, for inner loops.

    bf16 is rounded to its significand without limit of range (T. Dekker, Numer. Math. 18, 1971);
    its range is that of float32, which the lab's families do not reach.
    """
    if fmt.name == "fp16":

        def half(values: Floats) -> Floats:
            return values.astype(np.float16).astype(np.float64)

        return half
    if fmt.name == "fp32":

        def single(values: Floats) -> Floats:
            return values.astype(np.float32).astype(np.float64)

        return single
    split = float(2 ** (F64_MANTISSA - fmt.mantissa_bits) + 1)

    def cut(values: Floats) -> Floats:
        scaled = split * values
        return scaled - (scaled - values)

    return cut


def tensor_core(contract: Contract, model: DotModel, block: Block, step: int = 1) -> Floats:
    """Instructions chained over K, zero codes beyond its end, float32 promotion where declared.

    Args:
        contract: gives the promotion length.
        model: the instruction's arithmetic.
        block: inputs.
        step: -1 reverses the order of the terms.
    """
    a, b = block.a_codes[:, ::step], block.b_codes[::step]
    missing = -block.k % model.k
    if missing:
        a = np.pad(a, ((0, 0), (0, missing)))
        b = np.pad(b, ((0, missing), (0, 0)))
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    if contract.split:
        return split.sums(model, a, b, contract.promotion)
    kind = np.dtype(np.float16 if model.d_type == "f16" else np.float32)
    zero = np.zeros((a.shape[0], b.shape[1]), f"u{kind.itemsize}")
    if contract.promotion is None:
        return tensorcore.evaluate(model, a, b, zero).view(kind).astype(np.float64)
    total = np.zeros(zero.shape, np.float32)
    span = -(-contract.promotion // model.k) * model.k
    for first in range(0, a.shape[1], span):
        part = slice(first, first + span)
        total += tensorcore.evaluate(model, a[:, part], b[part], zero).view(kind)
    return total.astype(np.float64)


_ENOUGH_EVENTS = 64
"""Inexact elements from which the largest simulated error is taken as typical."""


@dataclass(frozen=True)
class Spread:
    """Moments of the simulated relative error z = (value - R1) / S over a block.

    Args:
        mean_square: mean of z^2.
        mean_fourth: mean of z^4.
        largest: max |z|; where hardly any element errs, at least one rounding of the sum.
        count: elements.
    """

    mean_square: float
    mean_fourth: float
    largest: float
    count: int


def relative_errors(values: NDArray[Any], r1: Floats, s: NDArray[Any]) -> Floats:
    """(values - R1) / S where S > 0 and R1 is finite; 0 where S is 0 and the value is right."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        error = values - r1
        z: Floats = error / s
    z[(s == 0) & (error == 0)] = 0.0
    z[~np.isfinite(r1) | ~np.isfinite(s)] = 0.0  # judged by kind and sign instead
    return z


def spread(contract: Contract, block: Block, both_ways: bool = False) -> Spread:
    """Moments of the contract's own error on a block (of the worse direction)."""
    r1, s = block.r1, block.s
    worst: Spread | None = None
    for values in contract_values(contract, block, both_ways):
        z = relative_errors(values, r1, s)
        square = z * z
        largest = float(np.abs(z).max())
        if np.count_nonzero(z) < _ENOUGH_EVENTS:
            largest = max(largest, contract.roundoff)
        fourth = float((square * square).mean())
        one = Spread(float(square.mean()), fourth, largest, z.size)
        if worst is None or one.mean_square > worst.mean_square:
            worst = one
    assert worst is not None  # contract_values gives at least one
    return worst
