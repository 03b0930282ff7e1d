"""What every element of a result must hold, queries outside of the sample included.

An output is a mean of V and the log-sum-exp a number, so NaN, Inf and what lies far beyond every V
are found without a reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode, encode
from gpulab.formats.threads import spread
from gpulab.numerics.structure import Finding, first_index
from gpulab.ops.attention_data import Data, Inputs
from gpulab.ops.attention_formula import key_range

OVER = 2.0
"""Rounding to nearest at most doubles a probability: no mean passes so many times the largest V."""
_CHUNK = 1 << 16
"""Elements looked at at a time: they stay in the cache."""


def _codes(stored: NDArray[Any]) -> NDArray[Any]:
    """Without their signs; such codes of a format are in the order of magnitudes, NaN last."""
    codes = stored.view(f"u{stored.dtype.itemsize}")
    unsigned: NDArray[Any] = codes & codes.dtype.type((1 << 8 * codes.dtype.itemsize - 1) - 1)
    return unsigned


def largest_code(stored: NDArray[Any]) -> int:
    """The code of the largest magnitude."""
    flat = stored.reshape(-1)

    def some(where: slice) -> int:
        starts = range(where.start, where.stop, _CHUNK)
        return max(int(_codes(flat[at : min(at + _CHUNK, where.stop)]).max()) for at in starts)

    return int(max(spread(some, flat.size, flat.size)))


def _largest(data: Data, inputs: Inputs) -> dict[str, float]:
    """An upper bound of |q|, |k| and |v|; not finite where one of them is not."""

    def one(name: str) -> float:
        stored = inputs.stored[name]
        code = np.array([largest_code(stored)], f"u{stored.dtype.itemsize}").view(stored.dtype)
        scale = inputs.stored[f"{name}_scale"].max() if data.contract.scaled else 1.0
        return float(decode(data.contract.format, code)[0]) * float(scale)

    return data.kept(
        "largest inputs", data.contract, inputs, make=lambda: {name: one(name) for name in "qkv"}
    )


def findings(data: Data, inputs: Inputs, outputs: Mapping[str, NDArray[Any]]) -> list[Finding]:
    """What is wrong anywhere in the outputs; nothing is looked for where inputs are not finite."""
    largest = _largest(data, inputs)
    if not np.isfinite([*largest.values()]).all():
        return []
    found = [*_of_out(data, outputs["out"], OVER * largest["v"]), _of_lse(data, outputs["lse"])]
    return [one for one in found if one is not None]


def _of_out(data: Data, out: NDArray[Any], limit: float) -> list[Finding | None]:
    row = data.contract.output_row
    top = encode(row, np.array([limit if limit < row.max_finite else np.inf]))
    highest = int(_codes(top)[0])
    if largest_code(out) <= highest:
        return []
    bad = _codes(out) > highest
    endless = np.zeros_like(bad)
    endless[bad] = ~np.isfinite(decode(row, out[bad]))
    return [_endless("out", endless), _beyond(bad & ~endless, limit)]


def _of_lse(data: Data, lse: NDArray[Any]) -> Finding | None:
    """-inf is right where a query sees no key."""
    d = data.dims
    first, last = key_range(d, np.arange(d["seq_q"], dtype=np.int64))
    none = (first == last) | (d["mask_planes"] > 0)
    return _endless("lse", ~(np.isfinite(lse) | (np.isneginf(lse) & none)))


def _endless(name: str, bad: NDArray[np.bool_]) -> Finding | None:
    at = first_index(bad)
    if at is None:
        return None
    count = int(bad.sum())
    text = f"{count} elements of {name} are NaN or Inf where the answer is finite"
    return Finding("nonfinite", text, at, count)


def _beyond(bad: NDArray[np.bool_], limit: float) -> Finding | None:
    at = first_index(bad)
    if at is None:
        return None
    count = int(bad.sum())
    text = (
        f"{count} elements of out exceed {limit:.9g}, {OVER:g} times the largest |V|: no mean does"
    )
    return Finding("interval", text, at, count)
