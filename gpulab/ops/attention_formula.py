"""Attention of some queries of one head: exactly, and the error that the contract allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import get
from gpulab.numerics.contract import RANDOM_WALK
from gpulab.ops.attention_bounds import KEYS, lost_p, products, rounded_p_bound
from gpulab.ops.attention_contract import SLACK, AttentionContract, U

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[Any]

TINY = get("fp32").min_normal
"""Exponentials below it may be flushed to zero."""


@dataclass(frozen=True)
class Scales:
    """Scales of fp8 rows.

    Args:
        q: (r,).
        k: (n,).
        v: (n,).
    """

    q: Floats
    k: Floats
    v: Floats


@dataclass(frozen=True)
class Head:
    """Some queries of one head, and what they attend to.

    Args:
        head: of batch * heads.
        queries: their positions in the sequence (r,).
        q: values (r, d), scales included.
        k: values (n, d).
        v: values (n, d).
        bias: (r, n), or None.
        seen: which keys may be seen (r, n).
        codes: the stored q, k, v, for simulations; None for originals.
        scales: of fp8 codes.
    """

    head: int
    queries: NDArray[np.int64]
    q: Floats
    k: Floats
    v: Floats
    bias: Floats | None
    seen: Mask
    codes: tuple[Codes, Codes, Codes] | None = None
    scales: Scales | None = None

    @property
    def products(self) -> int:
        """Of one matmul."""
        return int(self.seen.size * self.q.shape[1])

    @property
    def scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return 1.0 / float(np.sqrt(self.q.shape[1]))

    def rows(self, part: slice) -> Head:
        """Some of the queries."""
        codes, scales = self.codes, self.scales
        return replace(
            self,
            queries=self.queries[part],
            q=self.q[part],
            bias=None if self.bias is None else self.bias[part],
            seen=self.seen[part],
            codes=None if codes is None else (codes[0][part], *codes[1:]),
            scales=None if scales is None else replace(scales, q=scales.q[part]),
        )

    @cached_property
    def alone(self) -> Mask:
        """Queries that see one key or none: their P is 1, and nothing is added (r,)."""
        few: Mask = self.keys <= 1
        return few

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """How many keys each query sees (r,)."""
        keys: NDArray[np.int64] = np.count_nonzero(~np.isneginf(self.scores), axis=1)
        return keys

    @cached_property
    def scores(self) -> Floats:
        """Scaled products plus bias, hidden keys -inf (r, n)."""
        with np.errstate(invalid="ignore", over="ignore"):
            x = self.q @ self.k.T * self.scale
            if self.bias is not None:
                x = x + self.bias
        x[~self.seen] = -np.inf
        return x


def key_range(
    dims: Mapping[str, int], queries: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First key that causality and window leave each query, and one past the last (r,).

    A query without a key has an empty range.
    """
    position = queries + dims["seq_k"] - dims["seq_q"]
    first, last = np.zeros_like(position), np.full_like(position, dims["seq_k"])
    if dims["window"]:
        first = np.maximum(first, position - dims["window"] + 1)
        last = np.minimum(last, position + dims["window"])
    if dims["causal"]:
        last = np.minimum(last, position + 1)
    return first, np.maximum(last, first)


def visible(dims: Mapping[str, int], queries: NDArray[np.int64]) -> Mask:
    """Keys that causality and window leave (r, n); aligned bottom right.

    Query i stands at position i + seq_k - seq_q. Causal: no key behind it. Window w: keys nearer
    than w positions, on both sides.
    """
    first, last = key_range(dims, queries)
    key = np.arange(dims["seq_k"])
    seen: Mask = (key >= first[:, None]) & (key < last[:, None])
    return seen


@dataclass(frozen=True)
class Softmax:
    """Exact parts of a softmax.

    Args:
        largest: maximum of each row (r, 1); 0 where there is no key.
        p: probabilities (r, n); zero rows where there is no key.
        lse: log-sum-exp (r,); -inf where there is no key.
        total: sum of e^(x - largest) (r, 1).
    """

    largest: Floats
    p: Floats
    lse: Floats
    total: Floats


def softmax(x: Floats) -> Softmax:
    """Over the last axis; a row of -inf gives zeros and -inf."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        largest = x.max(axis=1, keepdims=True)
        largest = np.where(np.isneginf(largest), 0.0, largest)
        e = np.exp(x - largest)
        total = e.sum(axis=1, keepdims=True)
        p = e / np.where(total == 0, 1.0, total)
        lse = (largest + np.log(total))[:, 0]
    return Softmax(largest, p, lse, total)


@dataclass(frozen=True)
class Answer:
    """What some queries of a head must give.

    Args:
        out: exact (r, d).
        lse: exact (r,).
        d_out: how far ``out`` may be off before its rounding.
        d_lse: likewise.
        s: P |V|.
        unit: of errors of ``out``, in which those of all queries are comparable: what the error of
            each p_j may do to first order, and what happens to every sum.
    """

    out: Floats
    lse: Floats
    d_out: Floats
    d_lse: Floats
    s: Floats
    unit: Floats


def exact(head: Head) -> tuple[Floats, Floats]:
    """Out (r, d) and log-sum-exp (r,)."""
    found = softmax(head.scores)
    with np.errstate(invalid="ignore", over="ignore"):
        return found.p @ head.v, found.lse


def answer(contract: AttentionContract, head: Head, exact_sums: bool = False) -> Answer:
    """Exact values and their bounds; see ``attention_contract``.

    Args:
        contract: declared arithmetic.
        head: stored inputs.
        exact_sums: scores, sums and products are such that no order of them rounds.
    """
    x, keys = head.scores, head.k.shape[0]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        found = softmax(x)
        out = found.p @ head.v
        finite = np.isfinite(x)
        d_x = np.zeros_like(x) if exact_sums else _score_bound(contract, head, x)
        d_x[~finite] = 0.0
        away = np.abs(x - found.largest, where=finite, out=np.zeros_like(x))
        walk = 0.0 if exact_sums else RANDOM_WALK * float(np.sqrt(keys))
        alone = head.alone[:, None]
        relative = np.where(alone, 4.0 * U * (away + np.abs(found.largest)), d_x)
        relative += (3.0 * U) * away
        relative += U * (3.0 * SLACK + 8.0 + walk)
        weighted = found.p * relative
        lost = lost_p(contract, found.p, found.total)
        s, d, small = products((found.p, weighted, lost), head.v, np.abs)
        second, squares = products((found.p, found.p * found.p), head.v, np.square)
        d += np.abs(out) * weighted.sum(axis=1, keepdims=True)
        d += 4.0 * U * np.abs(out)
        d += TINY * head.seen.any(axis=1, keepdims=True) * np.abs(head.v).sum(axis=0)
        if not exact_sums:
            product = contract.sums.allowance(keys)
            summed = rounded_p_bound(contract, s, squares) + small
            summed += product.relative * s + product.absolute * (s > 0)
            d += np.where(alone, 0.0, summed)
        largest = np.abs(found.largest[:, 0])
        d_lse = (found.p * d_x).sum(axis=1)
        d_lse += U * (3.0 * SLACK + 12.0 + walk + 4.0 * largest + 2.0 * np.abs(found.lse))
        spread = np.sqrt(np.maximum(second - out * out, 0.0))
        unit = _unit(contract, found.p, relative, spread, s, squares)
    d[~np.isfinite(d)] = 0.0
    d_lse[~np.isfinite(d_lse)] = 0.0
    return Answer(out, found.lse, d, d_lse, s, unit)


def _unit(
    contract: AttentionContract,
    p: Floats,
    relative: Floats,
    spread: Floats,
    s: Floats,
    squares: Floats,
) -> Floats:
    """See ``Answer`` (r, d); ``spread`` is sqrt(sum p v^2 - o^2), ``squares`` sum p^2 v^2.

    To first order an error e_j of each p_j changes o by sum_j p_j e_j (v_j - o): what all keys have
    in common cancels, and a query whose P is on one key errs little, whatever its scores. With
    |e_j| <= E_j that is at most sqrt(sum p E^2) sqrt(sum p v^2 - o^2).
    """
    row = contract.probability_row
    unit: Floats = np.sqrt((p * relative * relative).sum(axis=1, keepdims=True)) * spread
    unit += (contract.output_row.unit_roundoff + U * (8.0 + np.sqrt(p.shape[1]))) * s
    if row is not None:
        unit += row.unit_roundoff * np.sqrt(squares)
    return unit


def _score_bound(contract: AttentionContract, head: Head, x: Floats) -> Floats:
    """D of the scaled scores (r, n)."""
    product = contract.scores.allowance(head.q.shape[1])
    size_q, d, lengths = np.abs(head.q), np.empty_like(x), np.empty(len(head.k))
    for at in range(0, len(head.k), KEYS):
        part = slice(at, at + KEYS)
        size_k = np.abs(head.k[part])
        d[:, part], lengths[part] = size_q @ size_k.T, size_k.sum(axis=1)
    d *= (product.relative + 4.0 * U) * head.scale
    d += product.absolute
    if head.bias is not None:
        d = d + U * (2.0 * np.abs(head.bias) + 4.0 * np.abs(np.where(np.isfinite(x), x, 0.0)))
    if contract.splits_scale:
        half_step = 0.5 * get(contract.format).min_subnormal
        d += half_step * lengths
    return d
