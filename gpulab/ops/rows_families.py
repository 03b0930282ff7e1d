"""Seeded input families of the row operations: the ranges and shapes in which they go wrong.

A family draws float32 rows. Families that ``rounds`` make every format round and are evidence about
rounding; the others (constant rows, zeros) are special values that a right kernel must also get
right. Where a format cannot hold a family's values it declares another scale, a power of two.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import Format, get
from gpulab.numerics.errors import ulp
from gpulab.numerics.inputs import find_family
from gpulab.ops.rows_contract import Sums

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int], Format], Floats]
"""(generator, (rows, cols), storage format) -> float64 values."""

ORDINARY = 1e4
"""The offset and the constant of the published failures; scaled where a format ends below."""


@dataclass(frozen=True)
class RowFamily:
    """A named way to draw the rows of x.

    Args:
        name: as in records.
        about: one phrase for tables.
        draw: see ``Draw``.
        rounds: evidence about rounding.
        alike: of the formats in which a row's values are few or one, so that all roundings of a
            running sum may err the same way.
        ordered: the columns have a preferred order, so that a sum from the last column to the first
            errs differently.
        formats: None, or a predicate of the formats it is made for.
    """

    name: str
    about: str
    draw: Draw
    rounds: bool = True
    alike: Callable[[Format], bool] = lambda fmt: False
    ordered: bool = False
    formats: Callable[[Format], bool] | None = None

    def sums(self, fmt: str) -> Sums:
        """What the terms of a row's sums are like."""
        return "alike" if self.alike(get(fmt)) else "random"


def _signs(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.integers(0, 2, shape).astype(np.float64) * 2.0 - 1.0


def held(value: float, fmt: Format) -> float:
    """``value``, halved until a format holds twice as much."""
    while 2.0 * value > fmt.max_finite:
        value *= 0.5
    return value


def _normal(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    values: Floats = rng.standard_normal(shape)
    return values


def _large(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    top = held(4000.0, fmt)
    return _signs(rng, shape) * rng.uniform(0.25 * top, top, shape)


def _small(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    return rng.uniform(-1e-4, 1e-4, shape)


def _mixed(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    return _signs(rng, shape) * np.exp(1.5 * rng.standard_normal(shape))


def _equal(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    return np.repeat(rng.uniform(0.5, 2.0, (shape[0], 1)), shape[1], axis=1)


def _ascending(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    return np.sort(4.0 * rng.standard_normal(shape), axis=1)


def _high(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    top = held(1000.0, fmt)
    return rng.uniform(0.1 * top, top, shape)


def _low(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    return -_high(rng, shape, fmt)


def _outlier(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    values = rng.standard_normal(shape)
    at = rng.integers(0, shape[1], shape[0])
    values[np.arange(shape[0]), at] *= held(ORDINARY, fmt)
    return values


def _offset(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    """N(0, 1) on top of 1e4; wider where the format's steps there are wide."""
    base = held(ORDINARY, fmt)
    spread = max(1.0, float(ulp(fmt, [base])[0]))
    return base + spread * rng.standard_normal(shape)


def _near_max(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    return _signs(rng, shape) * rng.uniform(0.5, 0.75, shape) * fmt.max_finite


def _zero(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    return np.zeros(shape)


def _constant(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
    return np.full(shape, held(ORDINARY, fmt))


def _always(fmt: Format) -> bool:
    return True


def _coarse_there(fmt: Format) -> bool:
    """Whether the steps at the offset are as wide as the spread: few distinct values."""
    return float(ulp(fmt, [held(ORDINARY, fmt)])[0]) >= 1.0


def _wide_format(fmt: Format) -> bool:
    return fmt.bits >= 16


_ALL = (
    RowFamily("normal", "N(0, 1)", _normal),
    RowFamily("large", "random sign, 1000 to 4000", _large),
    RowFamily("small", "|x| below 1e-4", _small, formats=_wide_format),
    RowFamily("mixed", "random sign times lognormal, sigma 1.5", _mixed),
    RowFamily("equal", "every row one value", _equal, rounds=False, alike=_always),
    RowFamily("ascending", "4 N(0, 1) sorted: the maximum comes last", _ascending, ordered=True),
    RowFamily("high", "U(100, 1000)", _high),
    RowFamily("low", "U(-1000, -100)", _low),
    RowFamily("outlier", "N(0, 1), one element 1e4 times larger", _outlier),
    RowFamily("offset", "N(0, 1) on an offset of 1e4", _offset, alike=_coarse_there),
    RowFamily("near_max", "random sign, 0.5 to 0.75 of the largest finite number", _near_max),
    RowFamily("zero", "all zero", _zero, rounds=False, alike=_always),
    RowFamily("constant", "1e4 everywhere", _constant, rounds=False, alike=_always),
)
FAMILIES: Mapping[str, RowFamily] = {family.name: family for family in _ALL}


def get_family(name: str | RowFamily) -> RowFamily:
    """The family of a name; see ``find_family``."""
    return name if isinstance(name, RowFamily) else find_family(name, FAMILIES)


def families_for(fmt: str) -> tuple[str, ...]:
    """Names of all families made for a format."""
    row = get(fmt)
    return tuple(f.name for f in _ALL if f.formats is None or f.formats(row))


def together(names: Sequence[str], seeds: Sequence[int]) -> RowFamily:
    """Rows of several families in turn, each drawn anew for every seed.

    Rows are independent of each other, so one launch may hold them all.
    """
    parts = [(get_family(name), seed) for seed in seeds for name in names]

    def draw_rows(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> Floats:
        base = int(rng.integers(1 << 31))
        out = np.empty(shape)
        for row in range(shape[0]):
            family, seed = parts[row % len(parts)]
            own = np.random.Generator(np.random.PCG64([base, seed, row]))
            out[row] = family.draw(own, (1, shape[1]), fmt)[0]
        return out

    return RowFamily(f"{len(parts)} families in turn", "several families", draw_rows, rounds=False)


def draw(
    family: RowFamily, operand: int, shape: tuple[int, int], fmt: str, seed: int
) -> NDArray[np.float32]:
    """Original float32 rows.

    Args:
        family: how.
        operand: 0 for x, 1 for the residual: another stream, and for numbers near the format's end
            an eighth of their size, so that sums stay finite.
        shape: (rows, cols).
        fmt: storage format the values are meant for (decides scales only).
        seed: 0 .. 2^32 - 1.

    Raises:
        UsageError: a family that is not made for the format.
    """
    row = get(fmt)
    if family.formats is not None and not family.formats(row):
        raise UsageError(f"the family {family.name} is not made for {fmt}")
    key = zlib.crc32(family.name.encode())
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key, operand])))
    values = family.draw(rng, shape, row)
    if operand:
        values[np.abs(values) > 0.25 * row.max_finite] *= 0.125
    return values.astype(np.float32)


def parameter(name: str, cols: int, seed: int) -> NDArray[np.float32]:
    """A weight or bias (cols,): U(0.5, 1.5) with random signs, never near zero."""
    key = zlib.crc32(name.encode())
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key])))
    magnitude = rng.uniform(0.5, 1.5, cols)
    return (magnitude * (rng.integers(0, 2, cols) * 2.0 - 1.0)).astype(np.float32)
