"""What mistakes of attention store, head by head, in float64 over the stored inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpulab.check.subject import Inputs
from gpulab.formats import get
from gpulab.numerics.rounding import through
from gpulab.ops.attention_data import Data
from gpulab.ops.attention_formula import Floats, Head, Mask, softmax
from gpulab.ops.attention_simulate import f32

HALF = get("fp16")
Pair = tuple[Floats, Floats]
"""Out (queries, columns) and log-sum-exp (queries,) of a head, not yet rounded."""
OfHead = Callable[[Head], Pair]


@dataclass(frozen=True)
class View:
    """The inputs of a case, head by head.

    Args:
        data: dims and contract.
        inputs: as stored.
    """

    data: Data
    inputs: Inputs

    def heads(self, inputs: Inputs | None = None) -> list[Head]:
        """Every head with all its queries."""
        d = self.data.dims
        queries = np.arange(d["seq_q"], dtype=np.int64)
        stored = dict(self.inputs if inputs is None else inputs)
        return [self.data.head(stored, n, queries) for n in range(d["batch"] * d["heads"])]

    def results(self, of_head: OfHead, inputs: Inputs | None = None) -> dict[str, Floats]:
        """``out`` and ``lse`` of a computation of every head."""
        found = [of_head(head) for head in self.heads(inputs)]
        d = self.data.dims
        shape = (d["batch"], d["heads"], d["seq_q"])
        return {
            "out": np.concatenate([out for out, _ in found]).reshape(*shape, -1),
            "lse": np.concatenate([lse for _, lse in found]).reshape(shape),
        }


def weighted(x: Floats, v: Floats) -> Pair:
    """Softmax of scores (queries, keys), and with it the sum of ``v`` (keys, columns)."""
    found = softmax(x)
    return found.p @ v, found.lse


def right(head: Head) -> Pair:
    """No mistake."""
    return weighted(head.scores, head.v)


def seen(head: Head, mask: Mask) -> Pair:
    """Other keys are seen."""
    return right(replace(head, seen=mask))


def everything(head: Head) -> Pair:
    """Every key is seen."""
    return seen(head, np.ones_like(head.seen))


def hidden(value: float, head: Head) -> Pair:
    """Hidden keys have a finite score."""
    shown = replace(head, seen=np.ones_like(head.seen)).scores
    return weighted(np.where(head.seen, shown, value), head.v)


def scaled(factor: float, head: Head) -> Pair:
    """Scores are multiplied once more."""
    return right(replace(head, q=head.q * factor))


def tail(tile: int, causal: bool, head: Head) -> Pair:
    """Zero keys up to a whole tile, which causality hides where the last key is hidden."""
    missing = -head.k.shape[0] % tile
    there = head.seen[:, -1:] if causal else np.ones((len(head.q), 1), bool)
    extra = np.where(there, 0.0, -np.inf) * np.ones((1, missing))
    v = np.concatenate([head.v, np.zeros((missing, head.v.shape[1]))])
    return weighted(np.concatenate([head.scores, extra], axis=1), v)


def running(x: Floats, tile: int) -> Floats:
    """The largest score so far at every key (queries, keys), tile by tile; 0 where none is seen."""
    starts = np.arange(0, x.shape[1], tile)
    largest = np.maximum.accumulate(np.maximum.reduceat(x, starts, axis=1), axis=1)
    base = np.repeat(largest, tile, axis=1)[:, : x.shape[1]]
    return np.where(np.isneginf(base), 0.0, base)


def online(tile: int, sum_rescaled: bool, head: Head) -> Pair:
    """Exponentials relative to the running maximum after each tile, never rescaled."""
    base = running(head.scores, tile)
    e = np.exp(head.scores - base)
    found, total = softmax(head.scores), e.sum(axis=1, keepdims=True)
    lse = base[:, -1] + np.log(total)[:, 0]
    if sum_rescaled:
        total, lse = found.total, found.lse
    return (e @ head.v) / np.where(total == 0, 1.0, total), lse


def no_max(head: Head) -> Pair:
    """Float exponentials of the scores as they are."""
    e = f32(np.exp(head.scores))
    total = f32(e.sum(axis=1, keepdims=True))
    return (e @ head.v) / total, np.log(total)[:, 0]


def no_max_guarded(head: Head) -> Pair:
    """The same, where a sum of 0 is taken for a query without a key."""
    out, lse = no_max(head)
    return np.where(np.isneginf(lse)[:, None], 0.0, out), lse


def not_divided(head: Head) -> Pair:
    """The output is not divided by the sum."""
    found = softmax(head.scores)
    return (found.p * found.total) @ head.v, found.lse


def half_scores(head: Head) -> Pair:
    """q.k rounded to half before it is scaled."""
    s = through(HALF, head.q @ head.k.T)
    return weighted(np.where(head.seen, s * head.scale, -np.inf), head.v)


def half_scaled(head: Head) -> Pair:
    """Scores rounded to half after they are scaled."""
    return weighted(through(HALF, head.scores), head.v)


def half_queries(head: Head) -> Pair:
    """Q rounded to half after it is scaled, with a scale that is a half."""
    q = through(HALF, head.q * through(HALF, np.array(head.scale)))
    return weighted(np.where(head.seen, q @ head.k.T, -np.inf), head.v)


def half_weights(tile: int, summed: bool, head: Head) -> Pair:
    """Exponentials rounded to half before they meet V, and before their sum too."""
    found, base = softmax(head.scores), running(head.scores, tile)
    e = through(HALF, np.exp(head.scores - base)) * np.exp(base - found.largest)
    total = e.sum(axis=1, keepdims=True) if summed else found.total
    return (e @ head.v) / np.where(total == 0, 1.0, total), found.lse


def lse(change: Callable[[Any], Floats], head: Head) -> Pair:
    """Another log-sum-exp."""
    found = softmax(head.scores)
    return found.p @ head.v, change(found)


def only(use: Mask, head: Head) -> Pair:
    """Some keys are missing for every query."""
    return seen(head, head.seen & use)


def whole_tiles(tile: int, head: Head) -> Pair:
    """The keys that a query sees, but for the last ones that are no whole tile."""
    kept = head.seen.sum(axis=1, keepdims=True) // tile * tile
    return only(np.arange(head.seen.shape[1]) < kept, head)


def columns(kept: int, head: Head) -> Pair:
    """Scores sum the first columns only."""
    q = np.where(np.arange(head.q.shape[1]) < kept, head.q, 0.0)
    return right(replace(head, q=q))
