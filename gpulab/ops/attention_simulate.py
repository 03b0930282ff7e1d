"""Attention step by step in the arithmetic that a contract declares, in the plainest order.

What it gives is the yardstick of the rms part of the arithmetic gate, and, with one step changed,
the mutants of precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.formats import decode, encode, get, threads
from gpulab.numerics.contract import Contract
from gpulab.numerics.reference import Block
from gpulab.numerics.rounding import through
from gpulab.numerics.simulate import Spread, relative_errors, sequential, tensor_core
from gpulab.ops.attention_bounds import P_SHIFT
from gpulab.ops.attention_contract import FP8_BLOCK, AttentionContract
from gpulab.ops.attention_formula import Answer, Codes, Floats, Head

LOG2_E = float(np.float32(np.log2(np.e)))


@dataclass(frozen=True)
class Steps:
    """Changes to the declared arithmetic; the defaults are the declared one.

    Args:
        sums: accumulator of the product with V, and of the sum of P.
        probability: format that P is rounded to after the declared rounding.
        exponential: format that exponentials are rounded to, before their sum.
    """

    sums: str = "fp32"
    probability: str | None = None
    exponential: str | None = None


PLAIN = Steps()


def f32(values: Floats) -> Floats:
    """Rounded to float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: Floats = np.asarray(values).astype(np.float32).astype(np.float64)
    return rounded


def simulate(
    contract: AttentionContract, head: Head, steps: Steps = PLAIN
) -> tuple[Floats, Floats]:
    """Out (r, d) as stored, and the log-sum-exp (r,)."""
    with np.errstate(all="ignore"):
        z, base = _exponents(contract, head)
        e = f32(np.exp2(z))
        if steps.exponential is not None:
            e = through(get(steps.exponential), e)
        total = sequential(e, np.ones((e.shape[1], 1)), get(steps.sums))
        lse = f32(f32(base * np.log(2)) + f32(np.log(total)))[:, 0]
        summed = _weighted_sum(contract, head, e, steps)
        share = np.where(total == 0, 0.0, f32(1.0 / total))
        return through(contract.output_row, f32(summed * share)), lse


def _exponents(contract: AttentionContract, head: Head) -> tuple[Floats, Floats]:
    """Scores relative to the maximum, and the maximum (r, 1), both in powers of two."""
    d = head.q.shape[1]
    if contract.scores.instruction is None:
        q = f32(head.q * float(np.float32(head.scale)))
        s = sequential(q, head.k.T, get("fp32"))
        x = f32(s + head.bias) if head.bias is not None else s
        x = np.where(head.seen, x, -np.inf)
        largest = _base(x)
        return f32(f32(x - largest) * LOG2_E), largest * np.log2(np.e)
    assert head.codes is not None  # stored inputs have codes
    q_codes, k_codes, _ = head.codes
    shift = 0
    if contract.splits_scale:
        shift = int(np.floor(0.5 * np.log2(d)))
        q_codes = encode(contract.format, decode(contract.format, q_codes) * 2.0**-shift)
    s = _product(contract.scores, q_codes, np.ascontiguousarray(k_codes.T))
    if head.scales is not None:
        s = f32(s * f32(head.scales.q[:, None] * head.scales.k[None, :]))
    exponent = float(np.float32(np.log2(np.e) * 2.0**shift / np.sqrt(d)))
    if head.bias is not None:
        s, exponent = f32(f32(s * exponent) + head.bias * LOG2_E), 1.0
    x = np.where(head.seen, s, -np.inf)
    base = f32(_base(x) * exponent)
    return f32(x * exponent - base), base


def _base(x: Floats) -> Floats:
    largest = x.max(axis=1, keepdims=True)
    return np.where(np.isneginf(largest), 0.0, largest)


def _product(contract: Contract, a: Codes, b: Codes) -> Floats:
    """Through the instruction; float32."""
    assert contract.model is not None  # the caller asked for tensor cores
    fmt = contract.format
    rows, cols = np.arange(len(a)), np.arange(b.shape[1])
    shape = (len(a), b.shape[1])

    def element(i: Codes, j: Codes) -> Floats:
        raise NotImplementedError("simulations ask for no single elements")

    block = Block(shape, rows, cols, a, b, decode(fmt, a), decode(fmt, b), element)
    return tensor_core(contract, contract.model, block)


def _weighted_sum(contract: AttentionContract, head: Head, e: Floats, steps: Steps) -> Floats:
    """The product of P, as it is rounded, and V: float32 (r, d)."""
    row = contract.probability_row
    shift = 2.0**P_SHIFT if contract.scaled else 1.0
    p = e * shift if row is None else through(row, e * shift)
    if steps.probability is not None:
        p = through(get(steps.probability), p)
    if steps.sums != "fp32" or row is None:
        v = head.v
        every = contract.sums.terms_per_rounding if steps.sums != "fp32" else 1
        return sequential(p, v, get(steps.sums), every) / shift
    assert head.codes is not None  # stored inputs have codes
    codes, v_codes = encode(row, p), head.codes[2]
    if head.scales is None:
        return _product(contract.sums, codes, v_codes)
    total = np.zeros((len(p), v_codes.shape[1]))
    for first in range(0, len(v_codes), FP8_BLOCK):
        part = slice(first, first + FP8_BLOCK)
        partial = _product(contract.sums, codes[:, part], v_codes[part])
        total = f32(total + partial * head.scales.v[first])
    return total / shift


def row_squares(got: Floats, right: Answer) -> Floats:
    """Mean of ((got - exact) / unit)^2 over each query (r,): errors of a row are not
    independent, since its probabilities are shared."""
    z = relative_errors(got, right.out, right.unit)
    squares: Floats = (z * z).mean(axis=1)
    return squares


def spread(contract: AttentionContract, heads: list[Head], answers: list[Answer]) -> Spread:
    """Moments of the simulated ``row_squares`` over some queries."""

    def one(at: int) -> Floats:
        return row_squares(simulate(contract, heads[at])[0], answers[at])

    work = sum(head.products for head in heads)
    square = np.concatenate(list(threads.each(one, range(len(heads)), work)))
    rounded = [a.s[a.unit > 0] / a.unit[a.unit > 0] for a in answers]
    half = 0.5 * contract.output_row.unit_roundoff * max(x.max(initial=0.0) for x in rounded)
    largest = max(float(np.sqrt(square.max(initial=0.0))), half)
    return Spread(float(square.mean()), float((square * square).mean()), largest, square.size)
