"""Probes of attention: inputs that leave no room for an error, and non-finite ones.

- ``uniform``: Q is zero, so every key seen has the same weight and the result is a mean of odd
  integers, half of them times a power of two, whose sum no order rounds: one key too many or too
  few, or a narrower sum, shows.
- ``one_hot``: every query singles out one of its keys: the result is a row of V, and the wrong row,
  head or batch entry shows.
- ``non_finite``: NaN and infinities must reach exactly the rows they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import encode, get, storage_dtype
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_data import Data, Inputs
from gpulab.ops.attention_families import (
    DrawGroup,
    Shape,
    bias_and_mask,
    by_groups,
    get_family,
    normal,
)
from gpulab.ops.attention_formula import key_range, visible

Arrays = dict[str, NDArray[Any]]

GAP = 200.0
"""Score by which a singled-out key lies above the others: e^-200 is nothing."""


@dataclass(frozen=True)
class AttentionProbe:
    """A probe.

    Args:
        name: as in records.
        about: what it asks.
        make: its inputs; None where the dims do not allow it.
        exact_sums: no order of the sums rounds.
    """

    name: str
    about: str
    make: Callable[[Data], Arrays | None]
    exact_sums: bool = False

    def inputs(self, data: Data) -> Inputs | None:
        """Stored inputs."""
        key = (self.name, data.contract.format, data.contract.name, data.contract.sums.sum_bits)

        def build() -> Inputs | None:
            arrays = self.make(data)
            if arrays is None:
                return None
            return Inputs(1.0, arrays, None, self.exact_sums, ("probe", self.name))

        return data.cached("probe", *key, make=build)


def _plain(data: Data, name: str, draw_one: DrawGroup) -> Arrays:
    """Stored arrays of values that the format holds; bias 0, the mask as drawn, scales 1."""
    fmt, dims = data.contract.format, data.dims
    rest = bias_and_mask(dims, data.seed)
    rest["bias"][...] = 0.0

    def stored(rng: np.random.Generator, q: Shape, k: Shape, entry: int) -> Any:
        return tuple(encode(fmt, x) for x in draw_one(rng, q, k, entry))

    arrays = by_groups(dims, name, data.seed, storage_dtype(fmt), stored)
    if data.contract.scaled:
        for which in "qkv":
            rest[f"{which}_scale"] = np.ones(arrays[which].shape[:-1], np.float32)
    return arrays | rest


def integer_bits(contract: AttentionContract, keys: int) -> int:
    """Bits of the widest odd integers of which ``keys`` sum exactly in the declared arithmetic."""
    bits = get(contract.format).mantissa_bits + 1
    while bits > 1 and keys * ((1 << bits) - 1) > 1 << contract.sums.sum_bits:
        bits -= 1
    return bits


def spare_bits(contract: AttentionContract, bits: int, keys: int) -> int:
    """Bits by which half of the integers may be larger, so that sums of a few keys have as many
    bits as the declared arithmetic holds, and more than a narrower one."""
    largest = keys * ((1 << bits) - 1)
    spare = ((1 << contract.sums.sum_bits) // largest).bit_length() - 1
    held = get(contract.format).max_finite * 2.0 ** min(bits, 8)
    while spare > 0 and ((1 << bits) - 1) << spare > held:
        spare -= 1
    return max(spare, 0)


def _uniform(data: Data) -> Arrays:
    keys = data.dims["seq_k"]
    bits = integer_bits(data.contract, keys)
    sizes = 2.0 ** -min(bits, 8) * np.array([1.0, 2.0 ** spare_bits(data.contract, bits, keys)])

    def one(rng: np.random.Generator, q: Shape, k: Shape, entry: int) -> Any:
        odd = rng.integers(1 << (bits - 1), 1 << bits, k, np.int32)
        v = (odd | 1).astype(np.float32)  # whole numbers of at most 24 bits
        size = rng.choice(sizes.astype(np.float32), (*k[:-1], 1))
        v[..., 1::2] *= size  # half of the columns are sums of one sign
        v[..., ::2] *= size * rng.choice(np.array([-1.0, 1.0], np.float32), size.shape)
        return np.zeros(q, np.float32), normal(rng, k), v

    return _plain(data, "uniform", one)


def _one_hot(data: Data) -> Arrays | None:
    d = data.dims
    width = max(1, int(np.ceil(np.log2(d["seq_k"]))))
    if width > d["head_dim"]:
        return None
    patterns = np.zeros((d["seq_k"], d["head_dim"]), np.float32)
    bits = (np.arange(d["seq_k"])[:, None] >> np.arange(width)) & 1
    patterns[:, :width] = 2.0 * bits - 1.0
    mask = bias_and_mask(d, data.seed)["mask"]
    size = 2.0 ** np.ceil(np.log2(0.5 * GAP * np.sqrt(d["head_dim"])))
    size = min(size, 2.0 ** np.floor(np.log2(get(data.contract.format).max_finite)))
    size = np.float32(size)  # a power of two

    def one(rng: np.random.Generator, q: Shape, k: Shape, entry: int) -> Any:
        plane = mask[entry if len(mask) > 1 else 0] if len(mask) else None
        targets = _seen_keys(d, plane, rng.random(q[:-1]))
        return patterns[targets] * size, patterns, normal(rng, k)

    return _plain(data, "one_hot", one)


def _seen_keys(
    dims: Mapping[str, int], mask: NDArray[np.int8] | None, share: NDArray[np.float64]
) -> NDArray[np.int64]:
    """A key that each query sees, ``share`` of the way from the first to the last (..., seq_q); of
    all keys where it sees none."""
    queries = np.arange(dims["seq_q"], dtype=np.int64)
    if mask is None:
        first, last = key_range(dims, queries)
        none = first == last
        first, last = np.where(none, 0, first), np.where(none, dims["seq_k"], last)
        return first + (share * (last - first)).astype(np.int64)
    found = np.empty(share.shape, np.int64)
    step = max(1, _SEEN_AT_ONCE // dims["seq_k"])
    for band in (slice(at, at + step) for at in range(0, len(queries), step)):
        seen = visible(dims, queries[band]) & (mask[band] != 0)
        seen[~seen.any(axis=1)] = True
        number = (share[..., band] * seen.sum(axis=1)).astype(np.int64)
        keys = np.argsort(~seen, axis=1, kind="stable")  # those seen come first
        found[..., band] = keys[np.arange(len(seen)), number]
    return found


_SEEN_AT_ONCE = 1 << 20
"""Pairs of a query and a key that are looked at at a time."""


def _non_finite(data: Data) -> Arrays | None:
    fmt, d = get(data.contract.format), data.dims
    if not fmt.has_nan:
        return None
    stored = dict(data.family(get_family("normal")).stored)
    arrays = {n: np.array(x) for n, x in stored.items()}
    arrays["q"][-1, -1, 0] = encode(fmt, np.nan)
    arrays["k"][0, 0, -1, 0] = encode(fmt, np.nan)
    everyone = not d["window"] and not d["mask_planes"] and d["seq_q"] <= d["seq_k"]
    if fmt.has_inf and everyone and d["seq_k"] > 1:
        arrays["v"][-1, -1, 0, -1] = encode(fmt, np.inf)
    if d["bias_planes"]:
        arrays["bias"][:, d["seq_q"] // 2] = -np.inf
        arrays["bias"][:, 0, 0] = -np.inf
    return arrays


UNIFORM = AttentionProbe(
    "uniform", "equal weights of odd integers: no order of the sums rounds", _uniform, True
)
ONE_HOT = AttentionProbe("one_hot", "every query singles out one key", _one_hot)
NON_FINITE = AttentionProbe("non_finite", "NaN and infinities in a few rows", _non_finite)


def probes(effort: str) -> tuple[AttentionProbe, ...]:
    """The probes of an effort, in the order in which they run."""
    return (UNIFORM, ONE_HOT) if effort == "quick" else (UNIFORM, ONE_HOT, NON_FINITE)
