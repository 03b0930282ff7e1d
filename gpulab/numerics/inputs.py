"""Seeded, named input families, every one of which makes every format round.

A family draws float32 values (the ORIGINAL inputs) for one operand of an operation. All formats
get the same values, so that rows of a table differ in format and nothing else; only where a format
cannot hold them does a family declare another scale, always a power of two. Scales also keep sums
of up to 2^16 products inside the range of a 16-bit result.

The periodic family follows the published programs of this kind in its constants, 0.013 for the
first operand and 0.017 for the second. Their pattern is not published with them; it is fixed here:

    A[i, k] = ((31 i +  7 k + seed) mod 97 - 48) * 0.013
    B[k, j] = ((11 k + 29 j + seed) mod 89 - 44) * 0.017

(the pattern of B applies to an operand's own row and column indices).

``rounding_share`` is the check that inputs are evidence for a claim about rounding. Values that a
format holds exactly, such as small integers, are not: a kernel that skips every rounding, or
rounds twice, gives the same bits on them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import Format, decode, encode, get
from gpulab.formats.threads import spread
from gpulab.numerics.rounding import next_lower

Draw = Callable[[np.random.Generator, tuple[int, int], int, int, Format], NDArray[np.float64]]
"""(generator, shape, operand number, seed, format) -> float64 values; the shape is (rows, columns),
the terms of a sum run along the columns of operand 0 and along the rows of operand 1."""

LOGNORMAL_SIGMA = 1.5
PERIODIC = ((31, 7, 97, 0.013), (11, 29, 89, 0.017))
"""(row step, column step, period, scale) of the first and the second operand."""

_COMPARED = 1 << 16  # elements at a time: what is decoded stays in the cache
MIN_ROUNDING_SHARE = 0.5
"""At least this share of the stored elements must differ from the original ones."""


@dataclass(frozen=True, eq=False)
class Family:
    """A named way to draw an operand.

    Args:
        name: as in records.
        about: one phrase for tables.
        draw: see ``Draw``.
        scale: power of two applied to each operand; the key is a format name or ``*``.
        same_along_k: the terms of a sum have no preferred order, so that one order of summation
            stands for all.
        formats: None, or a predicate of the formats it is made for.
    """

    name: str
    about: str
    draw: Draw
    scale: Mapping[str, float] = field(default_factory=dict)
    same_along_k: bool = True
    formats: Callable[[Format], bool] | None = None

    def originals(self, fmt: Format) -> tuple[str, float, str]:
        """What the drawn values depend on beside shape, operand and seed: formats share them."""
        return self.name, self.factor(fmt), "" if self.formats is None else fmt.name

    def factor(self, fmt: Format) -> float:
        """The declared scale for a format."""
        return self.scale.get(fmt.name, self.scale.get("*", 1.0))


def _signs(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    return rng.integers(0, 2, shape).astype(np.float64) * 2.0 - 1.0


def _normal(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    values: NDArray[np.float64] = rng.standard_normal(shape)
    return values


def _uniform(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    values: NDArray[np.float64] = rng.random(shape)
    return values


def _lognormal(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    signs, values = _signs(rng, shape), rng.standard_normal(shape)

    def some(rows: slice) -> None:
        part = values[rows]
        part *= LOGNORMAL_SIGMA
        np.exp(part, out=part)
        part *= signs[rows]

    spread(some, shape[0], values.size)
    return values


def _pattern(shape: tuple[int, int], operand: int, seed: int, first: int) -> NDArray[np.float64]:
    """``first`` to ``first + period - 1``, scaled; rows come again after a period of them."""
    row, column, period, scale = PERIODIC[operand]
    i = np.arange(min(shape[0], period), dtype=np.int64)[:, None] * row
    j = np.arange(shape[1], dtype=np.int64)[None, :] * column
    rows = ((i + j + seed) % period + first).astype(np.float64) * scale
    return np.resize(rows, shape)


def _periodic(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    return _pattern(shape, operand, seed, -(PERIODIC[operand][2] // 2))


def _periodic_positive(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    return _pattern(shape, operand, seed, 1)


def _sorted(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    return np.sort(rng.standard_normal(shape), axis=1 - operand)


def _cancelling(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    """The second half of a sum takes back three quarters of the first, term by term."""
    values = rng.standard_normal(shape)
    along = values if operand else values.T  # (terms, other)
    half = along.shape[0] // 2
    if operand:
        along[half : 2 * half] = -0.75 * along[:half]
    else:
        along[half : 2 * half] = along[:half]
    return values


def _wide(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    return _signs(rng, shape) * np.exp2(rng.uniform(-5.0, 3.0, shape))


def _spiked(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    """One element of each sum is 32 times larger than the others."""
    values = rng.standard_normal(shape)
    along = values.T if operand else values  # (other, terms)
    at = rng.integers(0, along.shape[1], along.shape[0])
    along[np.arange(along.shape[0]), at] *= 32.0
    return values


def _subnormal(
    rng: np.random.Generator, shape: tuple[int, int], operand: int, seed: int, fmt: Format
) -> NDArray[np.float64]:
    """Subnormal times large: the products are normal again, so a flushed operand shows."""
    if operand == 1:
        return 32.0 * rng.standard_normal(shape)
    return fmt.min_normal * rng.uniform(0.25, 1.0, shape) * _signs(rng, shape)


_ALL = (
    Family("normal", "N(0, 1)", _normal, {"int8": 24.0}),
    Family("uniform", "U(0, 1), all positive", _uniform, {"int8": 96.0}),
    Family(
        "lognormal",
        "random sign times lognormal, sigma 1.5",
        _lognormal,
        {"*": 2.0**-4, "int8": 4.0},
    ),
    Family("periodic", "published pattern, 0.013 and 0.017", _periodic, {"int8": 128.0}, False),
    Family(
        "periodic_positive",
        "published pattern, all positive",
        _periodic_positive,
        {"*": 0.5, "int8": 64.0},
        False,
    ),
    Family("sorted", "N(0, 1), ascending along the sum", _sorted, {"*": 0.5, "int8": 24.0}, False),
    Family(
        "cancelling",
        "the second half of the sum takes back most of the first",
        _cancelling,
        {"int8": 24.0},
        False,
    ),
    Family("wide", "random sign, magnitudes 2^-5 to 2^3", _wide, {"int8": 8.0}),
    Family("spiked", "N(0, 1), one term 32 times larger", _spiked, {"int8": 2.0}, False),
    Family(
        "subnormal",
        "first operand below the smallest normal number",
        _subnormal,
        formats=lambda fmt: not fmt.is_integer,
    ),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}
DEFAULT = ("normal", "uniform", "lognormal", "periodic")
"""The families a verdict rests on unless told otherwise."""


F = TypeVar("F")


def find_family(name: str, families: Mapping[str, F]) -> F:
    """The family of a name among those of an operation.

    Raises:
        UsageError: unknown; lists the known ones.
    """
    if name not in families:
        raise UsageError(
            f"unknown input family {name!r}", fix=f"choose one of: {', '.join(families)}"
        )
    return families[name]


def get_family(name: str | Family) -> Family:
    """The family of a name; see ``find_family``."""
    return name if isinstance(name, Family) else find_family(name, FAMILIES)


def families_for(fmt: str) -> tuple[str, ...]:
    """Names of all families made for a format."""
    row = get(fmt)
    return tuple(f.name for f in _ALL if f.formats is None or f.formats(row))


def draw(
    family: str | Family, operand: int, shape: tuple[int, int], fmt: str, seed: int
) -> NDArray[np.float32]:
    """Original float32 values of one operand.

    Args:
        family: a name of ``FAMILIES`` or a family of one's own.
        operand: 0 or 1: the pattern, the axis of the sum and the random stream depend on it.
        shape: (rows, columns).
        fmt: storage format that the values are meant for (decides the scale only).
        seed: 0 .. 2^32 - 1.

    Raises:
        UsageError: unknown family, or one that is not made for the format.
    """
    chosen, row = get_family(family), get(fmt)
    if chosen.formats is not None and not chosen.formats(row):
        raise UsageError(f"the family {chosen.name} is not made for {fmt}")
    key = zlib.crc32(chosen.name.encode())
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key, operand])))
    values, factor = chosen.draw(rng, shape, operand, seed, row), chosen.factor(row)
    drawn = np.empty(shape, np.float32)

    def some(rows: slice) -> None:
        np.multiply(values[rows], factor, out=drawn[rows], casting="same_kind")

    spread(some, shape[0], drawn.size)
    return drawn


def rounding_share(
    fmt: str, original: NDArray[np.float32], stored: NDArray[Any] | None = None
) -> float:
    """Share of the elements that storing them in the format changes.

    fp32 holds every original, so there the question is whether the next narrower format (tf32)
    would change them: if not, no fp32 kernel could be told from a tf32 one.

    Args:
        fmt: of the storage.
        original: values.
        stored: ``encode(fmt, original)``, where that is there already.
    """
    row = get(fmt)
    if row.storage == np.float32 and row.bits == 32:
        row, stored = next_lower(row), None
    flat = original.reshape(-1)
    codes = None if stored is None else stored.reshape(-1)

    def changed(where: slice) -> int:
        count = 0
        for start in range(where.start, where.stop, _COMPARED):
            part = slice(start, min(start + _COMPARED, where.stop))
            held = encode(row, flat[part]) if codes is None else codes[part]
            count += int(np.count_nonzero(decode(row, held) != flat[part]))
        return count

    different: int = sum(spread(changed, flat.size, flat.size, _COMPARED))
    return different / max(1, flat.size)
