"""Codes to try instructions on: specials, subnormals, ends of the range, random patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
RANDOM = 20_000

_FORM = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
"""(exponent bits, fraction bits) of a float format."""


def generator(*seed: Any) -> np.random.Generator:
    """A generator of its own for each use: named, not ordered."""
    return np.random.Generator(np.random.PCG64([*b"".join(str(s).encode() for s in seed)]))


def dtype_of(form: str) -> Any:
    """Of the codes of a float format."""
    exponent, fraction = _FORM[form]
    return np.dtype(f"u{(1 + exponent + fraction) // 8}")


def random_codes(kind: Any, count: int, *seed: Any) -> Array:
    """Uniform bit patterns."""
    dtype = np.dtype(kind)
    raw = generator(*seed, dtype.str).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype)


def specials(form: str) -> Array:
    """Zeros, infinities, NaN with payloads, subnormals, ends, and numbers next to round ones."""
    exponent, fraction = _FORM[form]
    top, bias = (1 << exponent) - 1, (1 << exponent - 1) - 1
    full = (1 << fraction) - 1
    infinity = top << fraction
    one = bias << fraction
    codes = [
        0, 1, 2, 3, full >> 1, full - 1, full,  # zero and subnormals
        1 << fraction, (1 << fraction) + 1, 2 << fraction, (2 << fraction) - 1,
        infinity - 1, infinity - 2, infinity - (1 << fraction), infinity - (2 << fraction),
        infinity - (1 << fraction) - 1, infinity - (2 << fraction) + 1,
        infinity, infinity + 1, infinity + (1 << fraction - 1) - 1,  # signalling NaN
        infinity + (1 << fraction - 1), infinity + (1 << fraction - 1) + 5, infinity + full,
        one - 1, one, one + 1, one + (1 << fraction - 1), one + full,
        one + (1 << fraction), one - (1 << fraction), one + (1 << fraction) + 1,
        (bias - 2) << fraction, ((bias - 2) << fraction) - 1, (bias - 3) << fraction,
        ((bias - 3) << fraction) + 1, (bias + fraction) << fraction,
        ((bias + fraction) << fraction) + 1, (bias + fraction + 1) << fraction,
        ((bias + fraction - 1) << fraction) + (1 << fraction - 1),
    ]  # fmt: skip
    sign = 1 << (exponent + fraction)
    return np.array([*codes, *(c | sign for c in codes)], dtype_of(form))


def _exponents(form: str, low: int, high: int, count: int, *seed: Any) -> Array:
    """Random signs and fractions with exponent fields in low .. high."""
    exponent, fraction = _FORM[form]
    rng = generator(form, low, high, *seed)
    dtype = dtype_of(form)
    field = rng.integers(low, high + 1, count).astype(dtype) << dtype.type(fraction)
    rest = random_codes(dtype, count, form, low, high, *seed)
    mask = (1 << fraction) - 1 | 1 << (exponent + fraction)
    return field | (rest & dtype.type(mask))


def floats(form: str, count: int = RANDOM, *seed: Any) -> Array:
    """Specials, ``count`` random patterns, and as many of each difficult kind as a tenth of it."""
    exponent, fraction = _FORM[form]
    top, bias = (1 << exponent) - 1, (1 << exponent - 1) - 1
    few = count // 10
    short = _exponents(form, bias - 4, bias + 4, few, "short", *seed)
    short &= dtype_of(form).type(~((1 << fraction - fraction // 3) - 1) & (1 << 64) - 1
                                 & int(np.iinfo(dtype_of(form)).max))  # fmt: skip
    parts = [
        specials(form),
        random_codes(dtype_of(form), count, form, *seed),
        _exponents(form, 0, 0, few, *seed),
        _exponents(form, 1, min(3, bias), few, *seed),
        _exponents(form, top - 3, top - 1, few, *seed),
        _exponents(form, bias - 2, bias + 2, few, *seed),
        _exponents(form, bias - 2, bias + fraction + 2, few, *seed),
        _exponents(form, top, top, few // 4, *seed),
        short,  # few fraction bits: ties, exact results
    ]
    return np.concatenate(parts)


def pairs(form: str, count: int = RANDOM, *seed: Any) -> tuple[Array, Array]:
    """Two operands: every two specials, random ones, equal ones, ones next to each other."""
    special = specials(form)
    a, b = (x.ravel() for x in np.meshgrid(special, special, indexing="ij"))
    rng = generator("pairs", form, *seed)
    first, second = floats(form, count, 1, *seed), floats(form, count, 2, *seed)
    second = rng.permutation(second)
    near = first[: count // 4]
    close = near + rng.integers(0, 3, near.size).astype(near.dtype)
    sign = near.dtype.type(1 << (8 * near.itemsize - 1))
    return (
        np.concatenate([a, first, near, near]),
        np.concatenate([b, second, close, close ^ sign]),
    )


def triples(form: str, count: int = RANDOM, *seed: Any) -> tuple[Array, Array, Array]:
    """Three operands: drawn specials, random ones, and sums that cancel almost or underflow."""
    rng = generator("triples", form, *seed)
    special = specials(form)
    three = [floats(form, count, i, *seed) for i in range(3)]
    three = [rng.permutation(x) for x in three]
    drawn = [rng.choice(special, count // 2) for _ in range(3)]
    exponent, fraction = _FORM[form]
    bias = (1 << exponent - 1) - 1
    # c close to -a b, as it is at the middle of the range
    value = {"f16": np.float16, "f32": np.float32, "f64": np.float64}.get(form)
    a, b = (_exponents(form, bias - 3, bias + 3, count // 4, i, *seed) for i in "ab")
    if value is None:
        wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (a, b)]
        c = ((wide[0] * wide[1]).view(np.uint32) >> 16).astype(np.uint16)
    else:
        c = (a.view(value) * b.view(value)).view(a.dtype)
    c = c ^ c.dtype.type(1 << (exponent + fraction))
    c = c + rng.integers(0, 2, c.size).astype(c.dtype)
    small = [_exponents(form, max(1, bias // 2 - 4), bias // 2 + 4, count // 4, i) for i in "xy"]
    tiny = _exponents(form, 0, 2, count // 4, "z", *seed)
    columns = zip(three, drawn, (a, b, c), (*small, tiny), strict=True)
    return tuple(np.concatenate(column) for column in columns)


def packed(*columns: Array) -> list[Array]:
    """16-bit codes as the pairs of 32-bit words (low half first), padded by the first ones."""
    out = []
    for codes in columns:
        even = codes if codes.size % 2 == 0 else np.append(codes, codes[:1])
        out.append(np.ascontiguousarray(even).view(np.uint32))
    return out


def integers(kind: Any, count: int = RANDOM, *seed: Any) -> Array:
    """Random integers of all magnitudes, small ones, and the ends of the signed and unsigned
    ranges, as unsigned codes."""
    dtype = np.dtype(kind)
    bits = 8 * dtype.itemsize
    rng = generator("integers", bits, *seed)
    raw = random_codes(dtype, count, "integers", *seed)
    shift = rng.integers(0, bits, count).astype(dtype)
    scaled = random_codes(dtype, count, "scaled", *seed) >> shift
    ends = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65, 255]
    for width in (7, 8, 15, 16, 23, 24, 25, 31, 32, 52, 53, 54, 63, 64):
        if width <= bits:
            ends += [(1 << width) - 1, (1 << width) % (1 << bits), (1 << bits) - (1 << width - 1)]
            ends += [(1 << bits) - (1 << width - 1) - 1, (1 << width - 1) + 1]
    end = np.array([e % (1 << bits) for e in ends], np.uint64).astype(dtype)
    negative = (~scaled[: count // 2]).astype(dtype)
    return np.concatenate([end, raw, scaled, negative])


def mixed(columns: Sequence[Array], count: int, *seed: Any) -> list[Array]:
    """``count`` lanes that draw each operand from its own column, and all ends with all ends."""
    rng = generator("mixed", len(columns), *seed)
    return [rng.choice(c, count) for c in columns]
