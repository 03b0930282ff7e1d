"""Attention that is wrong on purpose: the CUDA-core kernel with one of its rules broken.

Each is judged by the contract of the operation, which it must fail. Where a mistake cannot show at
the dims asked for, the lesson says so instead of passing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpulab.kernels.attention import simt
from gpulab.kernels.attention.problem import params
from gpulab.ops.attention_families import HIDDEN_EVERY
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    RawBuild,
    Variant,
    register,
)

Refusal = Callable[[Dims], str | None]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lesson:
    """One broken rule.

    Args:
        name: of the kernel and of its file.
        rules: the C++ type in it.
        idea: the mistake in one phrase.
        note: why it is wrong, in one sentence.
        caught_on: families that show it best.
        hidden: why it cannot show at some dims, or None.
    """

    name: str
    rules: str
    idea: str
    note: str
    caught_on: tuple[str, ...]
    hidden: Refusal = lambda dims: None


@dataclass(frozen=True)
class Walk:
    """Which keys each query sees, and which its block of queries visits, a tile at a time.

    Args:
        first: of the keys that causality and window leave to each query (seq_q,).
        last: behind the last one; none are left where ``last <= first``.
        begin: first key of the first tile that the query's block visits.
        end: behind the last key that it visits; nothing is visited where ``end <= begin``.
    """

    first: Ints
    last: Ints
    begin: Ints
    end: Ints

    @classmethod
    def of(cls, dims: Dims) -> Walk:
        """As attention/shape.cuh and attention/simt.cuh have it."""
        seq_q, seq_k, window = dims["seq_q"], dims["seq_k"], dims["window"]
        query = np.arange(seq_q)
        position = query + seq_k - seq_q
        first, last = np.zeros(seq_q, np.int64), np.full(seq_q, seq_k)
        if window:
            first = np.maximum(0, position - window + 1)
            last = np.minimum(seq_k, position + window)
        if dims["causal"]:
            last = np.minimum(last, position + 1)
        head = query // simt.ROWS * simt.ROWS
        begin = first[head] // simt.KEYS * simt.KEYS
        end = last[np.minimum(head + simt.ROWS, seq_q) - 1]
        tiles = -(-np.maximum(0, end - begin) // simt.KEYS)
        return cls(first, last, begin, np.minimum(seq_k, begin + tiles * simt.KEYS))

    def seen(self, begin: Ints, end: Ints) -> Ints:
        """How many of the keys from ``begin`` to before ``end`` each query sees."""
        count: Ints = np.maximum(0, np.minimum(self.last, end) - np.maximum(self.first, begin))
        return count

    @property
    def emptied(self) -> bool:
        """Whether the lab's masks hide every key of a query that visits some."""
        hidden = slice(HIDDEN_EVERY - 4, None, HIDDEN_EVERY)
        return bool((self.end > self.begin)[hidden].any())


ENOUGH_MASKED = 64
"""Keys of which random masks hide one for certain: 0.7^64 < 2^-32."""
ENOUGH_LEFT = 8
"""Keys of which random masks leave one: 0.3^8 < 2^-13."""


def hides_something(dims: Dims) -> str | None:
    """Whether a key of a visited tile is hidden from a query."""
    walk = Walk.of(dims)
    seen, visited = walk.seen(walk.begin, walk.end), np.maximum(0, walk.end - walk.begin)
    if (seen < visited).any():
        return None
    if dims["mask_planes"] and (walk.emptied or seen.sum() >= ENOUGH_MASKED):
        return None
    return "no key that is visited is hidden at these dims (try --causal)"


def hides_everything(dims: Dims) -> str | None:
    """Whether a query sees no key of the first tile that it visits."""
    walk = Walk.of(dims)
    none = walk.seen(walk.begin, walk.begin + simt.KEYS) == 0
    if (none & (walk.end > walk.begin)).any() or (dims["mask_planes"] and walk.emptied):
        return None
    return "every query sees a key at these dims (try --mask, or --causal with --seq-q > --seq-k)"


def _causal(dims: Dims) -> str | None:
    shows = dims["causal"] and dims["seq_q"] > 1 and dims["seq_k"] > 1
    return None if shows else "needs --causal and more than one query"


def _tiles(dims: Dims) -> str | None:
    """Whether a query sees keys of two tiles."""
    walk, few = Walk.of(dims), ENOUGH_LEFT if dims["mask_planes"] else 1
    for border in range(simt.KEYS, dims["seq_k"], simt.KEYS):
        before = walk.seen(walk.begin, np.full_like(walk.begin, border))
        behind = walk.seen(np.full_like(walk.begin, border), walk.end)
        if ((before >= few) & (behind >= few)).any():
            return None
    return f"no query sees keys of two tiles of {simt.KEYS}"


def _tail(dims: Dims) -> str | None:
    return "seq_k is a whole number of tiles" if dims["seq_k"] % simt.KEYS == 0 else None


LESSONS = (
    Lesson(
        "mask_zero",
        "MaskZeroRules",
        "hidden keys have the score 0",
        "e^0 is 1: a hidden key needs the score -inf to have no weight",
        ("low",),
        hides_something,
    ),
    Lesson(
        "minus_1e9_half",
        "MinusBillionHalfRules",
        "the mask -1e9 is added in half",
        "half ends at 65504: -1e9 is -inf there, and a row without a key is -inf - -inf = NaN",
        ("normal",),
        hides_everything,
    ),
    Lesson(
        "scale_after_half",
        "ScaleAfterHalfRules",
        "q.k is kept in half and scaled afterwards",
        "the product overflows where the score does not: scale Q first, keep q.k in float32",
        ("overflow",),
    ),
    Lesson(
        "causal_off_by_one",
        "CausalOffByOneRules",
        "a query sees one key too many",
        "causality is key <= position, aligned at the last query and the last key",
        ("normal",),
        _causal,
    ),
    Lesson(
        "no_rescale",
        "NoRescaleRules",
        "the online softmax is never rescaled",
        "what was summed relative to an older maximum must be multiplied by e^(old - new)",
        ("ascending",),
        _tiles,
    ),
    Lesson(
        "tail_unmasked",
        "TailUnmaskedRules",
        "the zeros behind the last key take part",
        "an absent key has the score 0, not the weight 0",
        ("low",),
        _tail,
    ),
)


def _build(lesson: Lesson, variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    entry = simt.entry(variant, dims, lesson.rules)
    return RawBuild(f"lessons/attention_{lesson.name}.cu", entry)


def _supports(lesson: Lesson, variant: Variant, capability: Capability, dims: Dims) -> str | None:
    return simt.supports(variant, capability, dims) or lesson.hidden(dims)


for _order, _lesson in enumerate(LESSONS):
    register(
        KernelSpec(
            op="attention",
            name=_lesson.name,
            backend="raw",
            idea=_lesson.idea,
            order=60 + _order,
            variants=(
                Variant(
                    "fp16",
                    "fp32",
                    "fp16",
                    lesson=True,
                    caught_on=_lesson.caught_on,
                    note=_lesson.note,
                ),
            ),
            params=params,
            build=partial(_build, _lesson),
            plan=simt.plan,
            supports=partial(_supports, _lesson),
            source="see the head of the file",
            twin="simt",
        )
    )
