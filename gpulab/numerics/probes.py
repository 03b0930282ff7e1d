"""Exact probes: inputs for which every order of a correct accumulation gives the same bits.

Operands are odd integers times a power of two. All products are odd integers of one unit, and the
sum of their magnitudes stays within what the declared accumulator holds exactly (2^24 units for
float32 and for tensor cores that keep 23 fraction bits, 2^14 for those that keep 13, 2^11 for a
half accumulator), so no partial sum is ever rounded, in any order and any grouping. A narrower
accumulator, a narrower multiplier or a skipped term does not give the same bits. No tolerance.

Where K is so large that even odd integers 1 would pass the limit, only some terms of each row are
nonzero: row i uses every t-th term, starting at another place, the last term of row 0 included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode, encode, get
from gpulab.numerics.contract import Contract
from gpulab.numerics.rounding import next_lower

Stored = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Probe:
    """Inputs of an exact probe.

    Args:
        name: ``exact``, ``exact_signed``, ``exact_positive``, ``one_hot`` or ``non_finite``.
        about: what it can see, with its numbers.
        inputs: stored operands ``a`` (m, k) and ``b`` (k, n).
        finite: every right answer is finite.
    """

    name: str
    about: str
    inputs: dict[str, Stored]
    finite: bool = True


@dataclass(frozen=True)
class Integers:
    """The odd integers of a probe: ``wide`` and ``narrow`` bits, one term in ``stride`` nonzero.

    They keep ``terms * max(wide) * max(narrow) <= 2^limit_bits``.
    """

    wide: int
    narrow: int
    stride: int

    @property
    def product(self) -> int:
        """Largest product."""
        return ((1 << self.wide) - 1) * ((1 << self.narrow) - 1)


def choose(contract: Contract, k: int) -> Integers:
    """The widest odd integers that keep sums of ``k`` terms exact in the declared accumulator.

    fp32 operands get one more bit than the next lower format holds (they show a multiplier that
    reads tf32) against narrow partners; other formats get equal widths. Where a product is split,
    the partner is one that tf32 holds, so that nothing is left out, and the high part of the wide
    one may be a unit larger than it is.
    """
    row = contract.input_row
    significand = row.mantissa_bits + 1
    limit = 1 << contract.sum_bits
    if row.is_integer:
        return Integers(row.mantissa_bits, row.mantissa_bits, 1)
    if row.bits == 32:
        wide = next_lower(row).mantissa_bits + 2
        largest, widest = (1 << wide) - 1, wide
        if contract.split:
            largest, widest = 1 << wide, wide - 1
        narrow = 1
        while narrow < widest and k * largest * ((2 << narrow) - 1) <= limit:
            narrow += 1
        return Integers(wide, narrow, _stride(k * largest * ((1 << narrow) - 1), limit))
    width = significand
    while width > 1 and k * ((1 << width) - 1) ** 2 > limit:
        width -= 1
    return Integers(width, width, _stride(k * ((1 << width) - 1) ** 2, limit))


def _stride(most: int, limit: int) -> int:
    return max(1, -(-most // limit))


def exact(contract: Contract, m: int, n: int, k: int, *, seed: int, signs: str = "mixed") -> Probe:
    """An exact probe.

    Args:
        contract: decides the integers.
        m: rows of A.
        n: columns of B.
        k: terms.
        seed: of the integers.
        signs: ``positive``; ``signed``: every product has a random sign; ``mixed``: A is positive
            and every second column of B is signed, so that one run shows both.
    """
    ints = choose(contract, k)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, k, 1])))
    a, b = _odd(rng, (m, k), ints, 0), _odd(rng, (k, n), ints, 1)
    if signs == "signed":
        a *= rng.choice([-1.0, 1.0], (m, k))
    if signs != "positive":
        flip = rng.choice([-1.0, 1.0], (k, n))
        if signs == "mixed":
            flip[:, (seed + 1) % 2 :: 2] = 1.0
        b *= flip
    if ints.stride > 1:
        i, term = np.arange(m)[:, None], np.arange(k)[None, :]
        a[(k - 1 - term + i) % ints.stride != 0] = 0.0
    terms = -(-k // ints.stride)
    about = (
        f"odd integers of {ints.wide} and {ints.narrow} bits, {terms} nonzero terms: "
        f"sums up to {terms * ints.product} units, exact up to 2^{contract.sum_bits}"
    )
    if contract.exact:
        about = "odd 7-bit integers; int32 sums wrap"
    name = "exact" if signs == "mixed" else f"exact_{signs}"
    return Probe(name, about, _stored(contract.format, a, b, ints))


def _odd(rng: np.random.Generator, shape: tuple[int, int], ints: Integers, operand: int) -> Floats:
    """Odd integers; where the widths differ, wide and narrow ones alternate along the terms."""
    wide = _odd_of_width(rng, shape, ints.wide)
    if ints.wide == ints.narrow:
        return wide
    narrow = _odd_of_width(rng, shape, ints.narrow)
    term = np.arange(shape[1 - operand])
    pick = (term % 2 == operand) if operand else (term % 2 == 0)
    return np.where(pick[:, None] if operand else pick[None, :], wide, narrow)


def _odd_of_width(rng: np.random.Generator, shape: tuple[int, int], bits: int) -> Floats:
    """Odd integers of exactly ``bits`` bits."""
    low = 1 << (bits - 1)
    values = rng.integers(low, 2 * low, shape) | 1
    return values.astype(np.float64)


def _stored(fmt: str, a: Floats, b: Floats, ints: Integers) -> dict[str, Stored]:
    """Codes of the integers, scaled below 1 so that no format overflows (integers stay)."""
    unit = 1.0 if get(fmt).is_integer else 2.0**-ints.wide
    out: dict[str, Stored] = {}
    for name, values in (("a", a * unit), ("b", b * unit)):
        codes = encode(fmt, values)
        if not np.array_equal(decode(fmt, codes), values):
            raise AssertionError(f"{fmt} does not hold the probe's integers")
        out[name] = codes
    return out


def one_hot(contract: Contract, m: int, n: int, k: int, *, seed: int) -> Probe:
    """Each row of A picks one term: C[i, j] must equal B[pi(i), j] bit for bit.

    A wrong element names the index that was read instead (``locate``).
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, k, 2])))
    picked = np.resize(rng.permutation(k), m)
    a = np.zeros((m, k))
    a[np.arange(m), picked] = 1.0
    width = min(contract.operand_bits, contract.sum_bits)
    if contract.input_row.is_integer:
        width = contract.input_row.mantissa_bits
    b = _odd_of_width(rng, (k, n), width) * rng.choice([-1.0, 1.0], (k, n))
    unit = 1.0 if contract.input_row.is_integer else 2.0**-width
    inputs: dict[str, Any] = {
        "a": encode(contract.format, a),
        "b": encode(contract.format, b * unit),
    }
    return Probe("one_hot", f"every row of A picks one of {k} terms", inputs)


def locate(probe: Probe, fmt: str, i: int, got_row: Floats) -> str:
    """Which row of B a wrong row of C looks like."""
    a, b = decode(fmt, probe.inputs["a"]), decode(fmt, probe.inputs["b"])
    right = int(a[i].argmax())
    equal = (b == got_row).mean(axis=1)
    found = int(equal.argmax())
    if equal[found] > 0.5 and found != right:
        return f"row {i} of C holds term {found} of K instead of term {right}"
    return f"row {i} of C does not hold term {right} of K"


def non_finite(contract: Contract, m: int, n: int, k: int, *, seed: int) -> Probe | None:
    """Infinities and NaN in a few places: they must reach exactly the elements they belong to.

    None where the input format has no code for them.
    """
    row = contract.input_row
    if row.is_integer or not row.has_nan:
        return None
    ints = choose(contract, k)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, k, 3])))
    a, b = _odd(rng, (m, k), ints, 0), _odd(rng, (k, n), ints, 1)
    inputs = _stored(contract.format, a, b, ints)

    def put(name: str, at: tuple[int, int], value: float) -> None:
        array: Any = inputs[name]
        array[at] = encode(contract.format, value)

    def place(shape: tuple[int, int]) -> tuple[int, int]:
        return int(rng.integers(shape[0])), int(rng.integers(shape[1]))

    put("a", (m - 1, k - 1), np.nan)
    if row.has_inf:
        put("a", place((max(1, m - 1), k)), np.inf)
        put("b", place((k, n)), -np.inf)
    else:
        put("b", place((k, n)), np.nan)
    return Probe("non_finite", "NaN and infinities in a few places", inputs, finite=False)
