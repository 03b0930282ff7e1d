"""Attention that is wrong on purpose: the CUDA-core kernel with one of its rules broken.

Each is judged by the contract of the operation, which it must fail. Where a mistake cannot show at
the dims asked for, the lesson says so instead of passing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpulab.kernels.attention import simt
from gpulab.kernels.attention.problem import params
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    RawBuild,
    Variant,
    register,
)

Refusal = Callable[[Dims], str | None]


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


def hides_something(dims: Dims) -> str | None:
    """Whether any key is hidden from any query."""
    if dims["mask_planes"] or (dims["causal"] and dims["seq_q"] > 1):
        return None
    if 0 < dims["window"] < max(dims["seq_q"], dims["seq_k"]):
        return None
    return "no key is hidden at these dims (try --causal)"


def hides_everything(dims: Dims) -> str | None:
    """Whether a query sees no key of its first tile."""
    if dims["mask_planes"] and dims["seq_q"] > 3:
        return None
    if dims["causal"] and dims["seq_q"] > dims["seq_k"]:
        return None
    return "every query sees a key at these dims (try --mask, or --causal with --seq-q > --seq-k)"


def _causal(dims: Dims) -> str | None:
    shows = dims["causal"] and dims["seq_q"] > 1 and dims["seq_k"] > 1
    return None if shows else "needs --causal and more than one query"


def _tiles(dims: Dims) -> str | None:
    return None if dims["seq_k"] >= 2 * simt.KEYS else f"needs two tiles of {simt.KEYS} keys"


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
