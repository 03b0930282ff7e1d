"""attention: scores, online softmax and weighted sum in one kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpulab.exercises.base import Exercise, Shape
from gpulab.kernels.attention import problem
from gpulab.ops.attention_families import QUICK
from gpulab.registry import Param, Variant

_VARIANT = Variant("fp16", "fp32", "fp16")
_TAKEN = ("batch", "heads", "seq_q", "seq_k", "head_dim", "causal")
MAX_HEAD_DIM = 128
LARGEST_SCORE = 50000
_FURTHER = ("peaked", "mixed", "small", "offset", "outlier_row", "overflow", "near_max")


def _params() -> tuple[Param, ...]:
    """(q, k, v, out, lse, dims): the lab's kernels without grouped heads, bias, mask and window."""
    arrays = [p for p in problem.params(_VARIANT) if p.name in ("q", "k", "v", "out", "lse")]
    same_heads = tuple("heads" if d == "kv_heads" else d for d in problem.KEYS)
    kept = [Param(p.name, p.role, p.format, same_heads) if p.name in "kv" else p for p in arrays]
    return (*kept, *(Param(name, "dim", "int32") for name in _TAKEN))


def _dims(
    batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int, causal: int
) -> dict[str, int]:
    """Dims of the operation, whose other switches are off."""
    return {
        "batch": batch, "heads": heads, "kv_heads": heads, "seq_q": seq_q, "seq_k": seq_k,
        "head_dim": head_dim, "causal": causal, "window": 0, "bias_planes": 0, "mask_planes": 0,
    }  # fmt: skip


def _unforeseen(rng: np.random.Generator) -> Mapping[str, int]:
    """Dims of the case that nobody can know beforehand."""
    batch, heads, seq_q, seq_k, head_dim = (int(rng.integers(1, n)) for n in (3, 4, 17, 49, 17))
    return _dims(batch, heads, seq_q, seq_k, head_dim, int(rng.integers(2)))


EXERCISE = Exercise(
    name="attention",
    order=120,
    title="attention forward: online softmax between two products, causal or not",
    op="attention",
    variant=_VARIANT,
    params=_params(),
    shapes=(
        Shape(_dims(1, 1, 1, 1, 1, 0), "one element", QUICK),
        Shape(
            _dims(2, 2, 11, 37, 7, 1),
            "causal with fewer queries than keys, tails everywhere",
            (*QUICK, *_FURTHER),
            "full",
        ),
        Shape(_dims(1, 2, 13, 9, 24, 1), "causal with queries that see no key at all", QUICK[:2]),
        Shape(_dims(2, 3, 5, 33, 6, 0), "every query sees every key", QUICK),
        Shape(_dims(1, 1, 4, 5, 100, 0), "more columns than keys", QUICK[:2]),
        Shape(_dims(1, 1, 2, 11, MAX_HEAD_DIM, 1), "the widest heads", QUICK[:1]),
        Shape(_dims(1, 1, 3, 1, 5, 1), "one key", QUICK[:1]),
        Shape(_dims(1, 1, 3, 4, 1, 0), "one column", QUICK[:1]),
        Shape(
            _dims(1, 2, 16, 32, 16, 0),
            "whole tiles: the path without guards",
            QUICK[:2],
            counted=True,
        ),
        Shape(
            _dims(2, 9, 16, 48, 32, 1),
            "whole tiles, causal, of several batches and heads",
            QUICK[:1],
            once=True,
        ),
        Shape(_dims(3, 20, 2, 3, 2, 0), "more heads than are timed", QUICK[:1], once=True),
        Shape(_dims(1, 1, 2100, 1, 1, 0), "more queries than are timed", QUICK[:1], once=True),
        Shape(
            _dims(2, 2, 16, 32, 64, 0),
            "whole tiles, not causal, of several batches and heads",
            QUICK[:1],
            once=True,
        ),
        Shape(
            _dims(1, 1, 3, 150, 8, 0),
            "many keys: what the sums round away; head_dim is a whole vector, seq_k is not",
            QUICK,
        ),
    ),
    timed=_dims(1, 16, 2048, 2048, 64, 1),
    longest=Shape(_dims(1, 1, 1, 4621, 4, 0), "more than twice the keys that are timed", QUICK[:1]),
    statement=(
        "For every batch entry and head, out = softmax(Q K^T / sqrt(head_dim)) V, and for every "
        "query lse = log(sum over the keys it sees of e^score). Q and out are (batch, heads, "
        "seq_q, head_dim), K and V (batch, heads, seq_k, head_dim), lse (batch, heads, seq_q), "
        f"row-major; any sizes >= 1, head_dim up to {MAX_HEAD_DIM}.\n\n"
        "causal = 0: a query sees every key. causal = 1: query i stands at position i + seq_k - "
        "seq_q and sees the keys up to that position, so that the last query sees the last key. A "
        "query that sees no key (the first ones, where seq_q > seq_k) has out = 0 and lse = "
        "-infinity. No other row has these: NaN among the scores that a query sees makes its lse "
        "and its whole row of out NaN, and a test such as sum > 0 is false for NaN.\n\n"
        "Q, K, V and out are half, lse is float. Scores, probabilities and all sums are float; "
        "only out is rounded to half, once. On tensor cores with a float accumulator "
        "probabilities may be rounded to half before they meet V: the checker then allows for it. "
        f"Scores may be anywhere between -{LARGEST_SCORE} and {LARGEST_SCORE}, and q.k may exceed "
        "65504."
    ),
    submit=(
        "Submit one file: the kernel, and as claims in its header its error and gate fraction, its "
        "time at 16 causal heads of 2048 x 2048 x 64, and one sentence where its speed came from:\n"
        "// gpulab: claim max_abs_err=... gate_fraction=... time_ms=... "
        'speedup_from="..."'
    ),
    hints=(
        "Write it first with a block for each query: threads compute scores of different keys, "
        "then maximum and sum are reductions over the block, then threads own columns of out.",
        "e^1000 is infinite and e^-1000 is zero: subtract the maximum of the scores first. "
        "e^(x - max) / sum is the same number, and lse = max + log(sum).",
        "Online softmax walks over tiles of keys with a running maximum: where it grows from old "
        "to new, multiply the sum and the output so far by e^(old - new).",
        "A hidden key has the score -infinity, not 0 and not -1e9. While the running maximum is "
        "still -infinity, use 0 in its place: (-infinity) - (-infinity) is NaN.",
        "The keys behind seq_k in the last tile are hidden as well. A sum of 0 at the end means "
        "that no key was seen: store 0 and -infinity.",
    ),
    entry="attention",
    unforeseen=_unforeseen,
)
