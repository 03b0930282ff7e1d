"""Beside a card: a value that nobody set, where it went into the result.

What a register or local memory holds before anything is put there is luck on a card; often it is 0,
and a sum that nobody set to zero comes out right. On the emulated device it is NaN. So where that
device returns NaN, the right result is none, and the card returns none for the same inputs, the
card's number is made of what was left there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulab.check.evidence import Diagnosis
from gpulab.check.subject import values
from gpulab.numerics import structure

if TYPE_CHECKING:
    from gpulab.check.runner import Submitted
    from gpulab.check.session import Check

STAGE = "arithmetic"
FIX = (
    "set every variable and every element of a local array before it is read or added to: "
    "float sum = 0.0f;"
)


def judge(check: Check, submitted: Submitted) -> bool:
    """Hold what ``Check.watch`` kept against the card; whether a value that nobody set was found.

    It is the cause of whatever the card's results look like: nothing else needs to be diagnosed.

    Args:
        check: its shapes are judged.
        submitted: the kernel on the card.

    Raises:
        GpulabError: the kernel faults on the card.
    """
    formats = {p.name: p.format for p in check.exercise.params if p.role == "out"}
    for shape, emulated in check.beside:
        if not any(np.isnan(values(form, emulated[n])).any() for n, form in formats.items()):
            continue
        inputs = check.stored(shape)
        with check.about(shape):
            submitted.load()
            got = submitted.at(shape.dims)(inputs, poison=structure.POISONS[0]).outputs
        for one in check.subject.expected(check.setting(shape.dims), inputs):
            card = one.values(got[one.name])
            lucky = np.isnan(one.values(emulated[one.name])) & ~np.isnan(one.right)
            lucky &= ~np.isnan(card)
            at = structure.first_index(lucky)
            if at is None:
                continue
            shown = " ".join(f"{k}={v}" for k, v in shape.dims.items())
            text = (
                f"a value that nobody set went into {one.name} at {shown}: the emulated device, "
                "where registers and local memory start as NaN, returns NaN for "
                f"{lucky.mean():.1%} of the elements; a card starts with whatever they hold, so "
                "its result is luck"
            )
            check.result.note(STAGE, "FAIL", text)
            check.result.facts["replay"] = str(check.token(shape))
            check.result.diagnosis = Diagnosis(
                "nan",
                text,
                FIX,
                at,
                float(card[at]),
                float(one.right[at]),
                float(one.slack[at]),
                float(lucky.mean()),
            )
            return True
    return False
