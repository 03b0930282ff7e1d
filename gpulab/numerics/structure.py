"""Checks that need no numbers: shape, poison left over, inputs kept, repetition, non-finite places.

Outputs are filled with one of two byte patterns before each run. Both are finite in every format,
so neither can be taken for a legitimate NaN, and an element is called unwritten only where it
follows the pattern through both colours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

POISONS = (0xA5, 0x5A)
"""The two byte patterns ("colours") that outputs are filled with before a run."""
_AT_ONCE = 1 << 24
"""Elements of two results compared at a time."""

Index = tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """Something structurally wrong.

    Args:
        code: reason code of ``verdict``.
        text: one sentence.
        index: first element concerned, or None.
        count: elements concerned.
    """

    code: str
    text: str
    index: Index | None = None
    count: int = 0


def first_index(mask: NDArray[np.bool_]) -> Index | None:
    """Index of the first True in row-major order; None where there is none."""
    if not mask.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def check_shape(got: NDArray[Any], shape: Index, dtype: np.dtype[Any]) -> Finding | None:
    """The result has the declared shape and storage type."""
    if got.shape == shape and got.dtype == dtype:
        return None
    return Finding("shape", f"the result is {got.dtype} {got.shape}, declared {dtype} {shape}")


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays hold the same bits (NaN equals itself)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    mine, theirs = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (one, other))
    whole = mine.size // 8 * 8
    return np.array_equal(mine[whole:], theirs[whole:]) and np.array_equal(
        mine[:whole].view(np.uint64), theirs[:whole].view(np.uint64)
    )


def poisoned(got: NDArray[Any], poison: int) -> NDArray[np.bool_]:
    """Elements whose every byte is the pattern."""
    mask: NDArray[np.bool_] = codes(got) == int.from_bytes(bytes([poison]) * got.dtype.itemsize)
    return mask


def codes(got: NDArray[Any]) -> NDArray[Any]:
    """The bits of elements as unsigned integers."""
    return np.ascontiguousarray(got).view(f"u{got.dtype.itemsize}")


Bad = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]]


def _count(first: NDArray[Any], second: NDArray[Any], bad: Bad) -> tuple[int, Index | None]:
    """How many elements of two results are bad, and the first; a few million at a time."""
    count, found = 0, None
    step = max(1, _AT_ONCE * len(first) // max(1, first.size))
    for start in range(0, len(first), step):
        mask = bad(first[start : start + step], second[start : start + step])
        at = first_index(mask)
        if at is not None:
            count += int(mask.sum())
            found = found or (start + at[0], *at[1:])
    return count, found


def check_written(
    first: NDArray[Any], second: NDArray[Any], poisons: tuple[int, int] = POISONS
) -> Finding | None:
    """No element follows the poison through two runs on the same inputs."""
    if poisons[0] != poisons[1] and same_bits(first, second):
        return None  # what follows two colours differs

    def unwritten(one: NDArray[Any], two: NDArray[Any]) -> NDArray[np.bool_]:
        return poisoned(one, poisons[0]) & poisoned(two, poisons[1])

    count, at = _count(first, second, unwritten)
    if at is None:
        return None
    return Finding("unwritten", f"{count} of {first.size} elements are never written", at, count)


def check_repeat(
    first: NDArray[Any], second: NDArray[Any], poisons: tuple[int, int] = POISONS
) -> Finding | None:
    """Two runs on the same inputs give the same bits (unwritten elements are another finding)."""
    if same_bits(first, second):
        return None

    def differs(one: NDArray[Any], two: NDArray[Any]) -> NDArray[np.bool_]:
        unequal: NDArray[np.bool_] = codes(one) != codes(two)
        return unequal & ~(poisoned(one, poisons[0]) & poisoned(two, poisons[1]))

    count, at = _count(first, second, differs)
    if at is None:
        return None
    return Finding(
        "nondeterministic",
        f"{count} of {first.size} elements differ between two runs on the same inputs",
        at,
        count,
    )


def check_finite(values: NDArray[np.float64], may_overflow: bool) -> Finding | None:
    """No NaN (and, unless the output format can overflow, no Inf) anywhere in a finite result."""
    bad = np.isnan(values) if may_overflow else ~np.isfinite(values)
    at = first_index(bad)
    if at is None:
        return None
    count = int(bad.sum())
    what = "NaN" if np.isnan(values[at]) else "Inf"
    return Finding(
        "nonfinite",
        f"{count} elements are NaN or Inf where the answer is finite ({what})",
        at,
        count,
    )


def check_kinds(got: NDArray[np.float64], want: NDArray[np.float64]) -> Finding | None:
    """NaN, +Inf and -Inf stand exactly where the reference has them."""
    bad = np.isnan(got) != np.isnan(want)
    bad |= np.isposinf(got) != np.isposinf(want)
    bad |= np.isneginf(got) != np.isneginf(want)
    at = first_index(bad)
    if at is None:
        return None
    count = int(bad.sum())
    text = f"{count} elements differ in kind: {got[at]} instead of {want[at]} at the first"
    return Finding("nonfinite", text, at, count)
