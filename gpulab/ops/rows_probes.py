"""Probes of row kernels: inputs on which no order of sums rounds, non-finite values, odd labels.

On the first kind D has no term for the sum, so that what is left is a few units in the last place:
a running sum in half or a skipped column shows however long the row is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import Format, get
from gpulab.numerics.rounding import through
from gpulab.ops.rows_contract import Floats, RowContract, Sums

if TYPE_CHECKING:
    from gpulab.ops.rows_logsum import LogSumOp

SUM_BITS = 24
"""Integers up to 2^24 are exact in float32."""

Change = Callable[[dict[str, NDArray[Any]], np.random.Generator, RowContract], None]
"""Replaces drawn inputs (float64 values by name, rows already distinct) in place."""


@dataclass(frozen=True)
class RowProbe:
    """A probe.

    Args:
        name: as in records.
        about: what it asks.
        change: see ``Change``.
        sums: what the terms of the sums are like.
    """

    name: str
    about: str
    change: Change
    sums: Sums


def integers(balanced: bool, sums: Sums) -> RowProbe:
    """Odd integers whose squares sum to at most 2^24, one large among them.

    The large one is the last of every second row, anywhere in the others.

    Args:
        balanced: every value also with the other sign, so that the mean is exactly 0.
        sums: ``exact`` where the kernel sums these integers and nothing else.
    """

    def change(
        values: dict[str, NDArray[Any]], rng: np.random.Generator, contract: RowContract
    ) -> None:
        x = values["x"]
        rows, cols = x.shape
        found = _odd(rng, (rows, cols), contract.input_row)
        large = _largest(contract.input_row)
        for row in range(rows):
            at = cols - 1 if row % 2 == 0 else int(rng.integers(cols))
            if balanced:
                half = cols // 2
                mirrored = np.concatenate([found[row, :half], -found[row, :half]])
                found[row] = 0.0
                found[row, : 2 * half] = rng.permutation(mirrored)
                if cols > 1:
                    _swap_in(found[row], at, large)
            else:
                found[row, at] = large
        if "residual" in values:
            part = rng.integers(-1, 2, (rows, cols)).astype(np.float64)
            keep = np.abs(found) >= 64  # few formats hold a large integer less one
            part[keep] = 0.0
            values["residual"][...] = part
            x[...] = found - part
        else:
            x[...] = found

    return RowProbe("exact", "odd integers: no order of the sums rounds", change, sums)


def _odd(rng: np.random.Generator, shape: tuple[int, int], row: Format) -> Floats:
    """Random-signed odd integers; their squares leave half of 2^24 to the large ones."""
    bits = row.mantissa_bits
    while bits > 1 and shape[1] * ((1 << bits) - 1) ** 2 > 1 << (SUM_BITS - 1):
        bits -= 1
    values = (rng.integers(0, 1 << max(0, bits - 1), shape) * 2 + 1).astype(np.float64)
    values *= rng.choice([-1.0, 1.0], shape)
    room = (1 << (SUM_BITS - 1)) // ((1 << bits) - 1) ** 2
    if shape[1] > room:  # rows so long that even ones are too many: zeros between them
        stride = -(-shape[1] // room)
        values[:, np.arange(shape[1]) % stride != (shape[1] - 1) % stride] = 0.0
    return values


def _largest(row: Format) -> float:
    """The widest integer of the format whose square, twice, is at most 2^23."""
    top = float((1 << (row.mantissa_bits + 1)) - 1)
    while top * top > 1 << (SUM_BITS - 2):
        top = float(int(top) // 2)
    while 2 * top <= row.max_finite and 4 * top * top <= 1 << (SUM_BITS - 2):
        top *= 2
    while top > row.max_finite:
        top *= 0.5
    return top


def _swap_in(values: Floats, at: int, large: float) -> None:
    """``large`` at a place and its negative at another, instead of a mirrored pair."""
    if values[at] == 0:  # the one without a partner, or one of the zeros between
        other = int(np.nonzero(values)[0][-1])
        values[at], values[other] = values[other], values[at]
    partners = np.nonzero(values == -values[at])[0]
    values[at], values[partners[0]] = large, -large


def masked(op: LogSumOp, contract: RowContract) -> RowProbe:
    """Rows of zeros and -inf: every exponential is 1 or 0, their sum is a count.

    The counts are such that one element more or less changes the rounded result; the last element
    is always among those that count.
    """

    def change(
        values: dict[str, NDArray[Any]], rng: np.random.Generator, contract: RowContract
    ) -> None:
        x = values["x"]
        rows, cols = x.shape
        counts = _telling_counts(op, contract, cols)
        x[...] = -np.inf
        for row in range(rows):
            kept = int(counts[row % len(counts)])
            if kept > 1:
                x[row, rng.choice(cols - 1, kept - 1, replace=False)] = 0.0
            x[row, -1] = 0.0
        if "labels" in values:
            values["labels"][...] = cols - 1

    return RowProbe("exact", "zeros and -inf: the sum is a count", change, "exact")


def two_terms() -> RowProbe:
    """Rows with two finite elements: 0, and the one whose power errs most in half.

    In a long row the errors of many powers cancel within what D allows their sum; here there is
    one, and no sum that rounds.
    """

    def change(
        values: dict[str, NDArray[Any]], rng: np.random.Generator, contract: RowContract
    ) -> None:
        x = values["x"]
        rows, cols = x.shape
        x[...] = -np.inf
        x[:, -1] = 0.0
        if cols > 1:
            x[np.arange(rows), rng.integers(0, cols - 1, rows)] = _telling_difference(contract)
        if "labels" in values:
            values["labels"][...] = cols - 1

    return RowProbe("two_terms", "two powers in a row of -inf, one between halves", change, "exact")


def _telling_difference(contract: RowContract) -> float:
    """The number in (-0.7, 0) of the input's format with the worst power in half."""
    d = through(contract.input_row, np.linspace(-0.7, -0.01, 1 << 12))
    power = np.exp(d)
    error: Floats = np.abs(through(get("fp16"), power) - power) / (1.0 + power)
    return float(d[error.argmax()])


def _telling_counts(op: LogSumOp, contract: RowContract, cols: int) -> NDArray[np.int64]:
    """Counts in the upper half whose result differs from that of one less, as stored."""
    top = min(cols, 1 << SUM_BITS)
    counts = np.arange(max(1, top - min(top // 2, 1 << 16)), top + 1)
    row = get(op.output_format(op.outputs(contract)[0], contract))
    with np.errstate(divide="ignore"):
        stored = through(row, op.masked_value(counts.astype(np.float64)))
        fewer = through(row, op.masked_value(counts.astype(np.float64) - 1.0))
    telling = counts[stored != fewer]
    return telling[::-1] if len(telling) else counts[-1:]


def non_finite(minus_infinity: bool) -> RowProbe:
    """NaN and infinities, which must stay within their rows.

    Args:
        minus_infinity: a row that is all -inf, and one that is so but for one element.
    """

    def change(
        values: dict[str, NDArray[Any]], rng: np.random.Generator, contract: RowContract
    ) -> None:
        x, row = values["x"], contract.input_row
        rows, cols = x.shape

        def anywhere() -> int:
            return int(rng.integers(cols))

        for i in range(0, rows, 6):
            x[i, -1] = np.nan
            if row.has_inf and i + 1 < rows:
                x[i + 1, anywhere()] = np.inf
            if row.has_inf and i + 2 < rows:
                x[i + 2, anywhere()] = -np.inf
            if row.has_inf and minus_infinity and i + 4 < rows:
                x[i + 3] = -np.inf
                x[i + 4] = -np.inf
                x[i + 4, anywhere()] = 10.0
            if "residual" in values and i + 4 < rows:
                values["residual"][i + 4, anywhere()] = np.nan

    return RowProbe("non_finite", "NaN and infinities in a few rows", change, "random")


def odd_labels(ignore_index: int) -> RowProbe:
    """Labels that name no column give NaN and read nothing; ignored rows give 0."""

    def change(
        values: dict[str, NDArray[Any]], rng: np.random.Generator, contract: RowContract
    ) -> None:
        rows, cols = values["x"].shape
        limits = np.iinfo(np.int32)
        odd = (ignore_index, cols, -1, 0, int(limits.max), int(limits.min), cols - 1)
        values["labels"][...] = np.resize(np.array(odd, np.int64), rows)

    about = "labels outside the columns, ignored rows, first and last column"
    return RowProbe("labels", about, change, "random")
