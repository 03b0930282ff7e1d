"""Softmax that is wrong on purpose."""

from __future__ import annotations

from gpulab.kernels.row_lesson import (
    Lesson,
    beyond_32_bits,
    declare,
    enough,
    several_a_lane,
)
from gpulab.kernels.softmax.row import params

LESSONS = (
    Lesson(
        "no_max",
        "e^x without the maximum",
        "e^x overflows from 88.8 on and vanishes below -103: NaN where the softmax is ordinary",
        ("high", "low"),
    ),
    Lesson(
        "half_sum",
        "the running sum is kept in the storage format",
        "every exponential is rounded to the bits of the sum so far: a whole row is off",
        ("normal",),
        ("fp16", "bf16"),
        narrow_sum=True,
        hidden=enough,
    ),
    Lesson(
        "half_exp",
        "the exponentials are kept in the storage format",
        "each result is rounded twice: one in four is off in its last place",
        ("normal",),
        ("fp16", "bf16"),
        hidden=enough,
    ),
    Lesson(
        "no_rescale",
        "the online sum is never rescaled",
        "what was summed relative to an older maximum must be multiplied by e^(old - new)",
        ("ascending",),
        hidden=several_a_lane,
        twin="plain_online",
    ),
    Lesson(
        "index32",
        "the offset of an element has 32 bits",
        "beyond 2^32 elements the offset wraps: the first rows are written again, the last never",
        ("normal",),
        ("fp16", "bf16"),
        shown_by=("unwritten",),
        hidden=beyond_32_bits,
    ),
)

for _order, _lesson in enumerate(LESSONS):
    declare("softmax", _order, _lesson, params)
