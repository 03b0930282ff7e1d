"""The standard mutants of attention.

A mutant is what a kernel with one mistake stores for some queries of the very inputs that are
judged. ``attention_power`` tries them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpulab.formats import get
from gpulab.numerics.rounding import next_lower, through, to_significand
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.attention_formula import Floats, Head, Mask, exact, softmax, visible
from gpulab.ops.attention_simulate import Steps, f32, simulate

Dims = dict[str, int]
Stored = tuple[Floats, Floats]
"""Out (r, d) as stored and the log-sum-exp (r,)."""
Compute = Callable[[AttentionContract, Head, Dims], Stored | None]
"""What is stored, or None where the mistake changes nothing by construction."""
Refused = Callable[[AttentionContract, Dims], str | None]
Loss = Callable[[AttentionContract, Head], Floats]

SCALE_ERROR = 0.999
TILE = 32
"""Keys a tile of the mutants that work by tiles."""


@dataclass(frozen=True)
class AttentionMutant:
    """One mistake.

    Args:
        name: as in records.
        about: the mistake in one phrase.
        compute: what it stores.
        precision: wrong only in how it rounds or overflows.
        refused: why it changes nothing by construction, or None.
        adds: wrong only in how it rounds exponentials and adds keys up.
        loss: c for each query (r,), such that the mistake costs at most c P |V| there.
    """

    name: str
    about: str
    compute: Compute
    precision: bool = False
    refused: Refused = lambda contract, dims: None
    adds: bool = False
    loss: Loss | None = None


def stored(contract: AttentionContract, out: Floats, lse: Floats) -> Stored:
    """Values as a kernel stores them."""
    return through(contract.output_row, out), f32(lse)


def same_queries(got: Stored, right: Stored) -> Mask:
    """Queries whose every bit is right (r,)."""
    same: Mask = np.ones(len(right[1]), bool)
    for mine, wanted in zip(got, right, strict=True):
        equal = (mine == wanted) | (np.isnan(mine) & np.isnan(wanted))
        same &= equal.reshape(len(equal), -1).all(axis=1)
    return same


def _exactly(contract: AttentionContract, head: Head) -> Stored:
    with np.errstate(all="ignore"):
        return stored(contract, *exact(head))


def _from_scores(contract: AttentionContract, head: Head, x: Floats) -> Stored:
    with np.errstate(all="ignore"):
        found = softmax(x)
        return stored(contract, found.p @ head.v, found.lse)


def _zeros(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = _exactly(contract, head)
    return np.zeros_like(out), lse


def _constant(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = exact(head)
    with np.errstate(all="ignore"):
        return stored(contract, np.full_like(out, np.nanmean(out)), lse)


def _dropped(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    seen = head.seen.copy()
    last = seen.shape[1] - 1 - seen[:, ::-1].argmax(axis=1)
    seen[np.arange(len(seen)), last] = False
    return _exactly(contract, replace(head, seen=seen))


def _flipped(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = _exactly(contract, head)
    out = out.copy()
    at = np.argsort(np.abs(out), axis=None)[out.size // 2 + (out.size > 1) * (out.size // 4)]
    out.flat[at] = -out.flat[at]
    return out, lse


def _scaled(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = exact(head)
    return stored(contract, SCALE_ERROR * out, lse)


def _no_max(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    with np.errstate(all="ignore"):
        e = f32(np.exp(head.scores))
        total = f32(e.sum(axis=1, keepdims=True))
        out = np.where(total == 0, 0.0, (e @ head.v) / total)
        return stored(contract, out, np.log(total)[:, 0])


def _no_rescale(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
    with np.errstate(all="ignore"):
        x = head.scores
        tiles = np.arange(0, x.shape[1], TILE)
        largest = np.maximum.accumulate(np.maximum.reduceat(x, tiles, axis=1), axis=1)
        base = np.repeat(largest, TILE, axis=1)[:, : x.shape[1]]
        if ((base == base[:, -1:]) | np.isneginf(x)).all():
            return None
        e = np.exp(x - np.where(np.isneginf(base), 0.0, base))
        total = e.sum(axis=1, keepdims=True)
        out = (e @ head.v) / np.where(total == 0, 1.0, total)
        lse = base[:, -1] + np.log(total)[:, 0]
        return stored(contract, out, lse)


def _mask_zero(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
    if head.seen.all():
        return None
    return _from_scores(contract, head, np.where(head.seen, head.scores, 0.0))


def _off_by_one(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
    ahead = visible(dims, head.queries + 1) | visible(dims, head.queries)
    hidden_by_mask = visible(dims, head.queries) & ~head.seen
    seen = ahead & ~hidden_by_mask
    return None if (seen == head.seen).all() else _exactly(contract, replace(head, seen=seen))


def _tail(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
    """Zero keys up to a whole tile take part where the last key does."""
    if not head.seen[:, -1].any():
        return None
    missing = -dims["seq_k"] % TILE
    extra = np.where(head.seen[:, -1:], 0.0, -np.inf) * np.ones((1, missing))
    x = np.concatenate([head.scores, extra], axis=1)
    v = np.concatenate([head.v, np.zeros((missing, head.v.shape[1]))])
    with np.errstate(all="ignore"):
        found = softmax(x)
        return stored(contract, found.p @ v, found.lse)


def _unscaled(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    return _exactly(contract, replace(head, q=head.q / head.scale))


def _lower(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    bits = next_lower(get(contract.format)).mantissa_bits + 1
    with np.errstate(all="ignore"):
        q, k, v = (to_significand(x, bits) for x in (head.q, head.k, head.v))
    return _exactly(contract, replace(head, q=q, k=k, v=v))


def _base2(contract: AttentionContract, head: Head, dims: Dims) -> Stored:
    out, lse = exact(head)
    return stored(contract, out, lse / np.log(2))


def _stepwise(steps: Steps) -> Compute:
    def compute(contract: AttentionContract, head: Head, dims: Dims) -> Stored | None:
        declared, changed = simulate(contract, head), simulate(contract, head, steps)
        return None if same_queries(changed, declared).all() else changed

    return compute


def _wider_p(contract: AttentionContract, dims: Dims) -> str | None:
    row = contract.probability_row
    if row is not None and row.mantissa_bits <= get("bf16").mantissa_bits:
        return f"the contract rounds P to {row.name}"
    return None


def _is_causal(contract: AttentionContract, dims: Dims) -> str | None:
    if not dims["causal"]:
        return "not causal"
    return "every key is seen" if dims["seq_k"] == 1 == dims["seq_q"] else None


def _has_tail(contract: AttentionContract, dims: Dims) -> str | None:
    return f"whole tiles of {TILE} keys" if dims["seq_k"] % TILE == 0 else None


def _scale_loss(contract: AttentionContract, head: Head) -> Floats:
    return np.full(len(head.q), 1.0 - SCALE_ERROR)


def _narrow_sums(fmt: str, about: str) -> AttentionMutant:
    """Each rounding costs at most u of the sum so far, of P |V| and of P."""

    def loss(contract: AttentionContract, head: Head) -> Floats:
        u, p = get(fmt).unit_roundoff, softmax(head.scores).p
        groups = -(-p.shape[1] // contract.sums.terms_per_rounding)
        product = math.expm1(groups * math.log1p(u))
        so_far = np.where(p > 0, np.cumsum(p, axis=1), 0.0).sum(axis=1)
        total = np.expm1(u * so_far)
        return np.where(total < 1, (product + total) / np.maximum(1 - total, u), np.inf)

    compute = _stepwise(Steps(sums=fmt))
    return AttentionMutant(f"{fmt}_sums", about, compute, True, adds=True, loss=loss)


STANDARD = (
    AttentionMutant("zeros", "writes zeros", _zeros),
    AttentionMutant("constant_mean", "writes the mean everywhere", _constant),
    AttentionMutant("dropped_key", "the last key of every query is missing", _dropped),
    AttentionMutant("sign_flip", "one element has the wrong sign", _flipped),
    AttentionMutant("scaled_0.999", "every element times 0.999", _scaled, True, loss=_scale_loss),
    AttentionMutant("no_max", "exponentials without the maximum", _no_max, True),
    AttentionMutant("no_rescale", "online softmax that is never rescaled", _no_rescale, True),
    AttentionMutant("mask_zero", "hidden keys have the score 0", _mask_zero),
    AttentionMutant(
        "causal_off_by_one", "a query sees one key too many", _off_by_one, refused=_is_causal
    ),
    AttentionMutant("tail_unmasked", "zero keys fill the last tile", _tail, refused=_has_tail),
    AttentionMutant("unscaled", "scores without 1 / sqrt(head_dim)", _unscaled),
    AttentionMutant(
        "bf16_exponentials",
        "exponentials in bf16",
        _stepwise(Steps(exponential="bf16")),
        True,
        _wider_p,
        adds=True,
    ),
    _narrow_sums("fp16", "sums in half"),
    _narrow_sums("bf16", "sums in bf16"),
    AttentionMutant("lower_inputs", "inputs in the next lower format", _lower, True),
    AttentionMutant("lse_base_2", "the log-sum-exp to base 2", _base2),
)
