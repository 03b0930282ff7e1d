"""The standard mutants: wrong kernels that a gate must fail before it is trusted.

A mutant computes what a kernel with one particular mistake would return, on a block of the very
inputs that are judged. Each is made as harmless as its mistake allows (exact apart from it, one
rounding a mistake), so that a gate which sees the mutant sees the real mistake too.

Whether a mutant applies follows from its declaration, never from whether a gate happens to see it:
it is refused with a reason where the mistake changes nothing by construction (one element
transposed), and a precision mutant also where its result is the correctly rounded right answer on
every element, since then it is not wrong on these inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import get
from gpulab.numerics import split
from gpulab.numerics.contract import Contract
from gpulab.numerics.reference import Block
from gpulab.numerics.rounding import next_lower, through, to_significand
from gpulab.numerics.simulate import sequential, to_output

Floats = NDArray[np.float64]
Compute = Callable[[Contract, Block], Floats]
Applies = Callable[[Contract, Block], str | None]
Loss = Callable[[Contract, int], float]

SCALE_ERROR = 0.999
INT4_STEP = 16.0
"""int8 values kept to their upper four bits."""


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Args:
        name: as in records.
        about: the mistake in one phrase.
        compute: results (r, c) of a block, rounded to the output.
        refused: why it cannot be told from a right kernel by construction, or None.
        precision: wrong only in how it rounds; right where every rounding is exact.
        loss: for precision mutants, c such that the mistake costs at most c S.
    """

    name: str
    about: str
    compute: Compute
    refused: Applies
    precision: bool = False
    loss: Loss | None = None

    def allowed(self, contract: Contract, block: Block) -> str | None:
        """Why the declared contract permits whatever this mistake can do, or None.

        Consulted only for a mutant that no part of the gate fails.
        """
        if self.loss is None:
            return None
        worst, bound = self.loss(contract, block.k), contract.allowance(block.k).relative
        if not worst <= bound:
            return None
        return f"costs at most {worst:.3g} S, the declared accumulation may lose {bound:.3g} S"


def _always(contract: Contract, block: Block) -> str | None:
    return None


def _out(value: Callable[[Contract, Block], Floats]) -> Compute:
    return lambda contract, block: to_output(contract, value(contract, block))


def _zeros(contract: Contract, block: Block) -> Floats:
    return np.zeros((len(block.rows), len(block.cols)))


def _constant(contract: Contract, block: Block) -> Floats:
    mean = float(block.r1.mean())
    if contract.exact:
        mean = float(np.rint(mean))
    return np.full((len(block.rows), len(block.cols)), mean)


def _dropped(contract: Contract, block: Block) -> Floats:
    return block.r1 - block.a[:, -1:] * block.b[-1:]


def _scaled(contract: Contract, block: Block) -> Floats:
    scaled = SCALE_ERROR * block.r1
    return np.rint(scaled) if contract.exact else scaled


def _flipped(contract: Contract, block: Block) -> Floats:
    flat: Floats = block.r1.ravel().copy()
    at = _middle(np.abs(flat))
    flat[at] = -flat[at]
    return flat.reshape(block.r1.shape)


def _middle(magnitudes: Floats) -> int:
    """Flat index of the upper median of the nonzero magnitudes (0 where there is none)."""
    order = np.argsort(magnitudes, axis=None, kind="stable")
    zeros = magnitudes.size - int(np.count_nonzero(magnitudes))
    middle = min(magnitudes.size - 1, zeros + (magnitudes.size - zeros) // 2)
    return int(order[middle])


def _transposed(contract: Contract, block: Block) -> Floats:
    """C written column by column into row-major memory."""
    m, n = block.shape
    flat = block.rows[:, None] * n + block.cols[None, :]
    return block.element(flat % m, flat // m)


def _accumulator(name: str) -> Compute:
    def compute(contract: Contract, block: Block) -> Floats:
        every = contract.terms_per_rounding
        return to_output(contract, sequential(block.a, block.b, get(name), every))

    return compute


def _accumulator_loss(name: str) -> Loss:
    def loss(contract: Contract, k: int) -> float:
        roundings = -(-k // contract.terms_per_rounding)
        return math.expm1(roundings * math.log1p(get(name).unit_roundoff))

    return loss


def _half_loss(contract: Contract, k: int) -> float:
    return get("fp16").unit_roundoff


def _scale_loss(contract: Contract, k: int) -> float:
    return 1.0 - SCALE_ERROR


def _lower_loss(contract: Contract, k: int) -> float:
    u = next_lower(contract.input_row).unit_roundoff
    return math.expm1(2 * math.log1p(u))


def _split_half(contract: Contract, block: Block) -> Floats:
    half = (block.k + 1) // 2
    partials = (block.a[:, :half] @ block.b[:half], block.a[:, half:] @ block.b[half:])
    return through(get("fp16"), partials[0]) + through(get("fp16"), partials[1])


def _lower_inputs(contract: Contract, block: Block) -> Floats:
    row = contract.input_row
    if row.is_integer:
        return (np.rint(block.a / INT4_STEP) @ np.rint(block.b / INT4_STEP)) * INT4_STEP**2
    bits = next_lower(row).mantissa_bits + 1
    return to_significand(block.a, bits) @ to_significand(block.b, bits)


def _tf32_inputs(contract: Contract, block: Block) -> Floats:
    bits = get("tf32").mantissa_bits + 1
    return to_significand(block.a, bits, True) @ to_significand(block.b, bits, True)


def _without_low(a: bool) -> Callable[[Contract, Block], Floats]:
    """Everything but the product of one operand's low part and the other's high part."""

    def compute(contract: Contract, block: Block) -> Floats:
        (high_a, low_a), (high_b, low_b) = split.split(block.a), split.split(block.b)
        left, right = (low_a, high_b) if a else (high_a, low_b)
        missing = left.astype(np.float64) @ right.astype(np.float64)
        return block.r1 - missing / split.LOW_SCALE

    return compute


def _accumulates_wider(name: str) -> Applies:
    def refused(contract: Contract, block: Block) -> str | None:
        if contract.exact:
            return "integer sums have no such rounding"
        if get(name).mantissa_bits >= contract.sum_bits - 1:
            return f"the contract declares an accumulator of {contract.sum_bits} bits"
        return None

    return refused


def _splits(contract: Contract, block: Block) -> str | None:
    if block.k < 2:
        return "K = 1 has one partial sum"
    return _accumulates_wider("fp16")(contract, block)


def _moves(contract: Contract, block: Block) -> str | None:
    m, n = block.shape
    return f"a {m} x {n} result is its own transpose in memory" if 1 in (m, n) else None


def _varies(contract: Contract, block: Block) -> str | None:
    return "one element is its own mean" if block.shape == (1, 1) else None


def _reads_fp32(contract: Contract, block: Block) -> str | None:
    return None if contract.input_row.bits == 32 else "the inputs hold no more than tf32 does"


STANDARD = (
    Mutant("zeros", "writes zeros", _zeros, _always),
    Mutant("constant_mean", "writes the mean everywhere", _out(_constant), _varies),
    Mutant("dropped_term", "the last term of K is missing", _out(_dropped), _always),
    Mutant("sign_flip", "one element has the wrong sign", _out(_flipped), _always),
    Mutant("transposed", "C is stored transposed", _out(_transposed), _moves),
    Mutant("scaled_0.999", "every element times 0.999", _out(_scaled), _always, True, _scale_loss),
    Mutant(
        "fp16_accumulator",
        "sums in half",
        _accumulator("fp16"),
        _accumulates_wider("fp16"),
        True,
        _accumulator_loss("fp16"),
    ),
    Mutant(
        "bf16_accumulator",
        "sums in bf16",
        _accumulator("bf16"),
        _accumulates_wider("bf16"),
        True,
        _accumulator_loss("bf16"),
    ),
    Mutant(
        "split_k_half", "two partial sums in half", _out(_split_half), _splits, True, _half_loss
    ),
    Mutant(
        "lower_inputs",
        "inputs rounded to the next lower format",
        _out(_lower_inputs),
        _always,
        True,
        _lower_loss,
    ),
    Mutant("tf32_inputs", "fp32 inputs cut to tf32", _out(_tf32_inputs), _reads_fp32, True),
)
"""Mutants that compute values; unwritten rows and columns are tried on the structure checks."""

SPLIT = tuple(
    Mutant(
        f"low_{name}_dropped",
        f"the product of {name}'s low part is missing",
        _out(_without_low(name == "a")),
        _always,
        True,
    )
    for name in ("a", "b")
)
"""Beside them where a contract declares split products. A kernel that multiplies once is
``lower_inputs``."""


def is_right(contract: Contract, block: Block, values: Floats) -> bool:
    """Whether values are the correctly rounded right answer on every element of a block."""
    return bool(np.array_equal(values, to_output(contract, block.r1)))
