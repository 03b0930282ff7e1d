"""What rounding P may cost, and products of magnitudes, in little memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpulab.numerics.contract import RANDOM_WALK
from gpulab.ops.attention_contract import AttentionContract

Floats = NDArray[np.float64]

KEYS = 1 << 11
"""Keys whose magnitudes are in memory at a time: they stay in the cache."""


def products(left: Sequence[Floats], right: Floats, of: Callable[[Floats], Floats]) -> list[Floats]:
    """Each of ``left`` (r, n) times ``of(right)``, (n, d); that is never in memory whole."""
    stacked = np.concatenate(left)
    total = np.zeros((len(stacked), right.shape[1]))
    for at in range(0, len(right), KEYS):
        part = slice(at, at + KEYS)
        total += stacked[:, part] @ of(right[part])
    return np.split(total, len(left))


def rounded_p_bound(contract: AttentionContract, s: Floats, squares: Floats) -> Floats:
    """What rounding normal P to its format may do to the output (r, d).

    Args:
        contract: declared arithmetic.
        s: P |V|.
        squares: P^2 V^2.
    """
    row = contract.probability_row
    if row is None:
        return np.zeros_like(s)
    walk: Floats = RANDOM_WALK * row.unit_roundoff * np.sqrt(squares)
    return np.minimum(row.unit_roundoff * s, walk)


def lost_p(contract: AttentionContract, p: Floats, total: Floats) -> Floats:
    """How much rounding to steps of the smallest subnormal may take from each P, or add (r, n).

    Args:
        contract: declared arithmetic.
        p: probabilities.
        total: what they were divided by (r, 1).
    """
    row = contract.probability_row
    if row is None:
        return np.zeros_like(p)
    step = 0.5 * row.min_subnormal * p_step(contract)
    lost: Floats = np.minimum(p, step / np.where(total == 0, 1.0, total))
    return lost


def p_step(contract: AttentionContract) -> float:
    """1 over the power of two by which P is multiplied before it is rounded."""
    return 2.0**-P_SHIFT if contract.scaled else 1.0


P_SHIFT = 8
"""fp8: P in [0, 1] is multiplied by 2^8 (e4m3 holds 448), so that fewer of them are subnormal."""
