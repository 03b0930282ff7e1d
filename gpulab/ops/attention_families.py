"""Seeded input families of attention: the shapes of scores and values in which kernels go wrong.

A family draws float32 Q, K and V. What matters is the scores they lead to: their size, where the
largest is, and how far they lie from those of absent keys, which are 0. Families that ``rounds``
make every format round and are evidence about rounding.

Bias and mask are drawn where the dims have planes for them: a bias of N(0, 1), a mask that hides
three keys in ten and every key of each seventh query.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import Format, get, threads
from gpulab.numerics.inputs import find_family

Drawn = NDArray[np.float32 | np.float64]
Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape, Shape, Format], tuple[Drawn, Drawn, Drawn]]
"""(generator, shape of q, shape of k and v, storage format) -> q, k, v."""

DrawGroup = Callable[[np.random.Generator, Shape, Shape, int], tuple[NDArray[Any], ...]]
"""(generator, shape of a group's q, of its k and v, batch entry) -> q, k, v."""

HIDDEN_SHARE = 0.3
HIDDEN_EVERY = 7
"""Query HIDDEN_EVERY - 4 of each so many sees no key at all."""


@dataclass(frozen=True)
class AttentionFamily:
    """A named way to draw Q, K and V.

    Args:
        name: as in records.
        about: one phrase for tables.
        draw: see ``Draw``.
        rounds: evidence about rounding.
        formats: None, or a predicate of the formats it is made for.
        by_format: the values depend on the format.
    """

    name: str
    about: str
    draw: Draw
    rounds: bool = True
    formats: Callable[[Format], bool] | None = None
    by_format: bool = False


def normal(rng: np.random.Generator, shape: Shape) -> NDArray[np.float32]:
    """N(0, 1), drawn as what is kept of it: half the memory."""
    return rng.standard_normal(shape, np.float32)


def _normals(rng: np.random.Generator, q: Shape, k: Shape, scale: float = 1.0) -> Any:
    queries = normal(rng, q)
    queries *= np.float32(scale)
    return queries, normal(rng, k), normal(rng, k)


def _normal(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    return _normals(rng, q, k)


def _peaked(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    """Scores N(0, 20): a few keys take everything."""
    return _normals(rng, q, k, 20.0)


def _small(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    return tuple(rng.uniform(-1e-4, 1e-4, s) for s in (q, k, k))


def _mixed(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    def one(shape: Shape) -> Drawn:
        signs = rng.integers(0, 2, shape) * 2.0 - 1.0
        return np.asarray(signs * np.exp(1.5 * rng.standard_normal(shape)), np.float64)

    return one(q), one(k), one(k)


def levels(q: Shape, k: Shape, levels: NDArray[np.float64], rng: np.random.Generator) -> Any:
    """Every query gives key j the score levels[..., j], but for noise."""
    direction = rng.integers(0, 2, q[-1]) * 2.0 - 1.0
    largest = np.sqrt(np.abs(levels).max())
    queries, keys = _near_one(rng, q), _near_one(rng, k)
    queries *= (direction * largest).astype(np.float32)
    keys *= (levels / largest / np.sqrt(q[-1]))[..., None].astype(np.float32)
    keys *= direction.astype(np.float32)
    return queries, keys, normal(rng, k)


def _near_one(rng: np.random.Generator, shape: Shape) -> NDArray[np.float32]:
    """1 + N(0, 0.01)."""
    found = normal(rng, shape)
    found *= np.float32(0.01)
    found += np.float32(1.0)
    return found


def _high(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    return levels(q, k, rng.uniform(100.0, 1000.0, k[:-1]), rng)


def _low(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    return levels(q, k, -rng.uniform(100.0, 1000.0, k[:-1]), rng)


def _ascending(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    ramp = np.broadcast_to(np.linspace(1.0, 60.0, k[-2]), k[:-1])
    return levels(q, k, np.array(ramp), rng)


def _equal(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    keys = np.broadcast_to(normal(rng, (*k[:-2], 1, k[-1])), k)
    return normal(rng, q), keys, normal(rng, k)


def _offset(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    """A common 100 on every key: rows of scores are shifted by up to hundreds."""
    queries, keys, values = _normals(rng, q, k)
    return queries, keys + np.float32(100.0), values


def _outlier(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    """FlashAttention-3's model of activations: a few elements ten times larger."""

    def one(shape: Shape) -> Drawn:
        large = 10.0 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)
        return np.asarray(rng.standard_normal(shape) + large, np.float64)

    return one(q), one(k), one(k)


def _outlier_row(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    """One value in the last quarter of a head 1e4 times larger (1e5 for scaled formats).

    Queries before it, under causality, must not feel it.
    """
    queries, keys, values = _normals(rng, q, k)
    at = k[-2] - 1 - int(rng.integers(k[-2] // 4 + 1))
    values[..., at, :] *= 1e4 if _wide_format(fmt) else 1e5
    return queries, keys, values


def _overflow(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    """q.k about 2^17 in every pair, twice what half holds; scaled, it fits."""
    size = np.sqrt(2.0**17 / q[-1])
    queries = size * (1.0 + 0.001 * rng.standard_normal(q))
    keys = size * (1.0 + 0.001 * rng.standard_normal(k))
    return queries, keys, rng.standard_normal(k)


def _near_max(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    """V as large as the format, and a float32 sum of all of them times 2^9, hold."""
    queries, keys, _ = _normals(rng, q, k)
    signs = rng.integers(0, 2, k) * 2.0 - 1.0
    room = 2.0 ** np.floor(np.log2(get("fp32").max_finite / (512 * k[-2])))
    return queries, keys, signs * rng.uniform(0.25, 0.5, k) * min(fmt.max_finite, room)


def _zero(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    return np.zeros(q), np.zeros(k), np.zeros(k)


def _wide_format(fmt: Format) -> bool:
    return fmt.bits >= 16


_ALL = (
    AttentionFamily("normal", "N(0, 1)", _normal),
    AttentionFamily("peaked", "scores N(0, 20)", _peaked),
    AttentionFamily("small", "|q|, |k|, |v| below 1e-4", _small, formats=_wide_format),
    AttentionFamily("mixed", "random sign times lognormal, sigma 1.5", _mixed),
    AttentionFamily("high", "scores U(100, 1000)", _high),
    AttentionFamily("low", "scores U(-1000, -100)", _low),
    AttentionFamily("ascending", "scores 1 to 60: the maximum comes last", _ascending),
    AttentionFamily("equal", "all keys of a head the same", _equal),
    AttentionFamily("offset", "N(0, 1), every key 100 further", _offset),
    AttentionFamily("outlier", "N(0, 1), one element in 1000 from N(0, 10)", _outlier),
    AttentionFamily(
        "outlier_row", "N(0, 1), one row of V 1e4 or 1e5 times larger", _outlier_row, by_format=True
    ),
    AttentionFamily("overflow", "q.k about 2^17, twice what half holds", _overflow),
    AttentionFamily("near_max", "V near the largest finite number", _near_max, by_format=True),
    AttentionFamily("zero", "all zero", _zero, rounds=False),
)
FAMILIES: Mapping[str, AttentionFamily] = {family.name: family for family in _ALL}
QUICK = ("normal", "ascending", "high", "low")


def get_family(name: str | AttentionFamily) -> AttentionFamily:
    """The family of a name; see ``find_family``."""
    return name if isinstance(name, AttentionFamily) else find_family(name, FAMILIES)


def families_for(fmt: str) -> tuple[str, ...]:
    """Names of all families made for a format."""
    row = get(fmt)
    return tuple(f.name for f in _ALL if f.formats is None or f.formats(row))


def generator(name: str, seed: int, stream: int = 0) -> np.random.Generator:
    """The generator of a named stream."""
    key = zlib.crc32(name.encode())
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key, stream])))


def draw(
    family: AttentionFamily, dims: Mapping[str, int], fmt: str, seed: int
) -> dict[str, NDArray[Any]]:
    """Original inputs: float32 q, k, v and bias, int8 mask.

    Raises:
        UsageError: a family that is not made for the format.
    """
    row = get(fmt)
    if family.formats is not None and not family.formats(row):
        raise UsageError(f"the family {family.name} is not made for {fmt}")

    def one(rng: np.random.Generator, q: Shape, k: Shape, entry: int) -> Any:
        return family.draw(rng, q, k, row)

    drawn = by_groups(dims, family.name, seed, np.dtype(np.float32), one)
    return drawn | bias_and_mask(dims, seed)


def by_groups(
    dims: Mapping[str, int], name: str, seed: int, dtype: np.dtype[Any], draw_one: DrawGroup
) -> dict[str, NDArray[Any]]:
    """Whole q, k and v of a type: each key head, with the query heads it serves, from a stream of
    its own; on several cores where there is much to draw."""
    entries, served = int(dims["batch"]), int(dims["heads"]) // int(dims["kv_heads"])
    queries, keys, kv_heads, d = (int(dims[x]) for x in ("seq_q", "seq_k", "kv_heads", "head_dim"))
    shape = (entries, kv_heads, keys, d)
    q = np.empty((entries, kv_heads, served, queries, d), dtype)
    k, v = np.empty(shape, dtype), np.empty(shape, dtype)

    def one(number: int) -> None:
        at = divmod(number, kv_heads)
        rng = generator(name, seed, number)
        drawn = draw_one(rng, (1, served, queries, d), (1, 1, keys, d), at[0])
        for array, part in zip((q, k, v), drawn, strict=True):
            array[at] = part

    list(threads.each(one, range(entries * kv_heads), q.size + 2 * k.size, threads.cores()))
    return {"q": q.reshape(entries, -1, queries, d), "k": k, "v": v}


def bias_and_mask(dims: Mapping[str, int], seed: int) -> dict[str, NDArray[Any]]:
    """Bias and mask for the planes that the dims have (arrays without elements where none)."""
    rng = generator("mask", seed)
    rows = (int(dims["seq_q"]), int(dims["seq_k"]))
    bias = rng.standard_normal((int(dims["bias_planes"]), *rows)).astype(np.float32)
    mask = (rng.random((int(dims["mask_planes"]), *rows)) >= HIDDEN_SHARE).astype(np.int8)
    mask[:, HIDDEN_EVERY - 4 :: HIDDEN_EVERY] = 0
    return {"bias": bias, "mask": mask}
