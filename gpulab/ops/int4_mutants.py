"""The standard mutants of a product, and what goes wrong with int4 weights beside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulab.formats import get
from gpulab.numerics.contract import Contract
from gpulab.numerics.mutants import STANDARD, Floats, Mutant
from gpulab.numerics.reference import Block
from gpulab.numerics.rounding import through
from gpulab.numerics.simulate import to_output
from gpulab.ops.int4_data import Int4Block
from gpulab.ops.int4_weights import BITS, NOBODYS

CODES = 1 << BITS
HALF = get("fp16")
Weights = Callable[[Int4Block], Floats]


def swapped(integers: Floats) -> Floats:
    """The halves of every byte in each other's place; a half without a row is ``NOBODYS``."""
    missing = np.full((len(integers) % 2, integers.shape[1]), NOBODYS)
    even = np.concatenate([integers, missing])
    flipped: Floats = even.reshape(-1, 2, integers.shape[1])[:, ::-1].reshape(even.shape)
    return flipped[: len(integers)]


def unsigned(integers: Floats) -> Floats:
    """Codes read as 0 .. 15."""
    return np.where(integers < 0, integers + CODES, integers)


def offset(integers: Floats) -> Floats:
    """Codes read as 0 .. 15 with a zero point of 8."""
    return unsigned(integers) - CODES // 2


def neighbours(scales: Floats) -> Floats:
    """Every group has the scale of the next."""
    return np.roll(scales, -1, axis=0)


def group_sums(block: Int4Block) -> list[Floats]:
    """The sums of a q of every group (r, c), not yet scaled."""
    starts = range(0, block.k, block.group)
    return [block.a[:, s : s + block.group] @ block.integers[s : s + block.group] for s in starts]


def _with(weights: Weights) -> Callable[[Contract, Block], Floats]:
    def compute(contract: Contract, block: Block) -> Floats:
        assert isinstance(block, Int4Block)
        return to_output(contract, block.a @ weights(block))

    return compute


def _half_sums(contract: Contract, block: Block) -> Floats:
    assert isinstance(block, Int4Block)
    rounded = [through(HALF, part) for part in group_sums(block)]
    total = sum(part * scale for part, scale in zip(rounded, block.scales, strict=True))
    return to_output(contract, np.asarray(total))


def _always(contract: Contract, block: Block) -> str | None:
    return None


def _several_groups(contract: Contract, block: Block) -> str | None:
    assert isinstance(block, Int4Block)
    return "one group has no neighbour" if len(block.scales) == 1 else None


def _several_rows(contract: Contract, block: Block) -> str | None:
    return "one row has no neighbour in its byte" if block.k == 1 else None


OWN = (
    Mutant(
        "nibbles_swapped",
        "the halves of a byte change places",
        _with(lambda b: b.weights(integers=swapped(b.integers))),
        _several_rows,
    ),
    Mutant(
        "unsigned_codes",
        "codes are not sign-extended",
        _with(lambda b: b.weights(integers=unsigned(b.integers))),
        _always,
    ),
    Mutant(
        "offset_codes",
        "codes have a zero point of 8",
        _with(lambda b: b.weights(integers=offset(b.integers))),
        _always,
    ),
    Mutant(
        "neighbour_scale",
        "every group has the scale of the next",
        _with(lambda b: b.weights(scales=neighbours(b.scales))),
        _several_groups,
    ),
    Mutant("no_scale", "weights are not scaled", _with(lambda b: b.integers), _always),
    Mutant(
        "half_weights", "weights are rounded to half", _with(lambda b: through(HALF, b.b)), _always,
        True,
    ),
    Mutant("half_group_sums", "sums of groups are rounded to half", _half_sums, _always, True),
)  # fmt: skip

MUTANTS = (*STANDARD, *OWN)
