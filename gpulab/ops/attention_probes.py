"""Probes of attention: inputs that leave no room for an error, and non-finite ones.

- ``uniform``: Q is zero, so every key seen has the same weight and the result is a mean of odd
  integers, half of them times a power of two, whose sum no order rounds: one key too many or too
  few, or a narrower sum, shows.
- ``one_hot``: every query singles out one of its keys: the result is a row of V, and the wrong row,
  head or batch entry shows.
- ``non_finite``: NaN and infinities must reach exactly the rows they belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import encode, get
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_data import Data, Inputs
from gpulab.ops.attention_families import bias_and_mask, generator, get_family
from gpulab.ops.attention_formula import visible

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
            return None if arrays is None else Inputs(1.0, arrays, None, self.exact_sums)

        return data.cached("probe", *key, make=build)


def _shapes(data: Data) -> tuple[tuple[int, ...], tuple[int, ...]]:
    d = data.dims
    return (
        (d["batch"], d["heads"], d["seq_q"], d["head_dim"]),
        (d["batch"], d["kv_heads"], d["seq_k"], d["head_dim"]),
    )


def _plain(data: Data, q: Any, k: Any, v: Any) -> Arrays:
    """Stored arrays of values that the format holds; bias 0, the mask as drawn, scales 1."""
    fmt = data.contract.format
    rest = bias_and_mask(data.dims, data.seed)
    rest["bias"][...] = 0.0
    arrays = {name: encode(fmt, x) for name, x in zip("qkv", (q, k, v), strict=True)}
    if data.contract.scaled:
        for name in "qkv":
            rest[f"{name}_scale"] = np.ones(arrays[name].shape[:-1], np.float32)
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
    q, k = _shapes(data)
    rng = generator("uniform", data.seed)
    bits = integer_bits(data.contract, k[2])
    odd = rng.integers(1 << (bits - 1), 1 << bits, k) | 1
    v = odd * rng.choice([-1.0, 1.0], (*k[:-1], 1))
    v[..., 1::2] = np.abs(v[..., 1::2])  # half of the columns are sums of one sign
    v *= np.where(rng.random((*k[:-1], 1)) < 0.5, 1.0, 2.0 ** spare_bits(data.contract, bits, k[2]))
    keys = rng.standard_normal(k)
    return _plain(data, np.zeros(q), keys, v * 2.0 ** -min(bits, 8))


def _one_hot(data: Data) -> Arrays | None:
    q, k = _shapes(data)
    width = max(1, int(np.ceil(np.log2(k[2]))))
    if width > q[3]:
        return None
    d = data.dims
    rng = generator("one_hot", data.seed)
    patterns = np.zeros((k[2], q[3]))
    bits = (np.arange(k[2])[:, None] >> np.arange(width)) & 1
    patterns[:, :width] = 2.0 * bits - 1.0
    seen = visible(d, np.arange(q[2]))
    mask = bias_and_mask(d, data.seed)["mask"]
    size = 2.0 ** np.ceil(np.log2(0.5 * GAP * np.sqrt(q[3])))
    size = min(size, 2.0 ** np.floor(np.log2(get(data.contract.format).max_finite)))
    queries = np.empty(q)
    for entry in range(q[0]):
        mine = seen.copy()
        if d["mask_planes"]:
            mine &= mask[entry if d["mask_planes"] > 1 else 0] != 0
        for row in range(q[2]):
            keys = np.nonzero(mine[row])[0]
            keys = keys if len(keys) else np.arange(k[2])
            targets = rng.choice(keys, q[1])
            queries[entry, :, row] = size * patterns[targets]
    return _plain(data, queries, np.broadcast_to(patterns, k), rng.standard_normal(k))


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
