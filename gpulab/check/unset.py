"""A value that nobody set, where it goes into the result.

What a register or local memory holds before anything is put there is luck on a card: often 0, so
that a sum that nobody set to zero comes out right. The emulated device puts NaN there, which a
maximum passes over; so a kernel is launched once more with large numbers in their stead. What is
not the same then, bit for bit, was made of what nobody set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulab.check.evidence import Diagnosis
from gpulab.check.subject import Arrays
from gpulab.emulator.values import OTHERWISE_UNSET
from gpulab.errors import GpulabError, KernelTimeoutError
from gpulab.exercises.base import Shape
from gpulab.numerics import structure

if TYPE_CHECKING:
    from gpulab.check.session import Check

STAGE = "state"
FIX = (
    "set every variable and every element of a local array before it is read or added to: "
    "float sum = 0.0f;"
)


def judge(check: Check) -> bool:
    """Beside a card: look at every shape that was watched; whether a value that nobody set was
    found. It is the cause of whatever the card's results look like."""
    return any(look(check, shape, first) for shape, first in check.beside)


def look(check: Check, shape: Shape, first: Arrays) -> bool:
    """Launch once more on the emulated device, with other values left in registers and local
    memory; whether the result is another, which is noted.

    Args:
        check: of a kernel that the emulated device runs.
        shape: dims and families; the inputs are the stored ones.
        first: the stored outputs with NaN left there.
    """
    if check.watched is None:
        return False
    inputs = check.stored(shape)
    check.watched.load()
    run = check.watched.at(shape.dims, unset=OTHERWISE_UNSET)
    shown = " ".join(f"{k}={v}" for k, v in shape.dims.items())
    text = f"a value that nobody set goes into the result at {shown}: "
    try:
        other = run(inputs, poison=structure.POISONS[0]).outputs
    except KernelTimeoutError:
        return False  # the limit of time may be too near: it says nothing about the result
    except GpulabError as error:
        _note(check, shape, Diagnosis("uninitialised", text + error.message, FIX))
        return True
    for one in check.subject.expected(check.setting(shape.dims), inputs):
        differ = structure.codes(first[one.name]) != structure.codes(other[one.name])
        at = structure.first_index(differ)
        if at is None:
            continue
        values, others = one.values(first[one.name]), one.values(other[one.name])
        text += (
            f"{differ.mean():.1%} of the elements of {one.name} depend on what registers and local "
            f"memory hold before they are set, the first is {values[at]:.6g} with NaN left there "
            f"and {others[at]:.6g} with large numbers; on a card it is luck"
        )
        nan = bool((np.isnan(values) & ~np.isnan(one.right)).any())
        found = Diagnosis(
            "nan" if nan else "uninitialised",
            text,
            FIX,
            at,
            float(others[at]),
            float(one.right[at]),
            float(one.slack[at]),
            float(differ.mean()),
        )
        _note(check, shape, found)
        return True
    return False


def _note(check: Check, shape: Shape, found: Diagnosis) -> None:
    check.result.note(STAGE, "FAIL", found.text)
    check.result.facts["replay"] = str(check.token(shape))
    check.result.diagnosis = found
