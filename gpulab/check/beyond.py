"""Inputs and scalars that the gates do not use: every element within its bound there too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from gpulab import ops
from gpulab.check import diagnose, measuring
from gpulab.check.evidence import Diagnosis
from gpulab.check.subject import Beyond, Inputs
from gpulab.exercises.base import Shape
from gpulab.numerics import structure
from gpulab.ops.base import RunResult

if TYPE_CHECKING:
    from gpulab.check.runner import Submitted
    from gpulab.check.session import Check

_SAYS_NOTHING = (*diagnose.VAGUE, "nan", "zeros")


def judge(check: Check, submitted: Submitted) -> None:
    """Judge what ``Subject.beyond`` gives at the shape with all probes, up to the first wrong one.

    Raises:
        GpulabError: a fault.
    """
    if check.failing() is not None:
        return
    shape = check.exercise.shape("full")
    setting = check.setting(shape.dims)
    for one in check.subject.beyond(setting):
        submitted.load()
        run = _Given(submitted.at(shape.dims, scalars=one.scalars), one)
        found = diagnose.of_case(one.subject or check.subject, setting, one.inputs, run)
        if found is None or not found.share:
            continue
        if found.slug in (*_SAYS_NOTHING, one.slug):
            found = replace(found, slug=one.slug or found.slug, text=one.text, fix=one.fix)
        found = _typed_in(check, shape, one, run, found)
        found = replace(found, text=f"{one.name}: {found.text}")
        check.result.note("arithmetic", "FAIL", found.text)
        check.result.facts["replay"] = str(check.token(shape))
        check.result.diagnosis = found
        return


class _Given:
    """The submission as a runner that is sent what ``one`` says."""

    def __init__(self, submitted: Submitted, one: Beyond) -> None:
        self.submitted, self.one = submitted, one

    def __call__(self, inputs: Inputs, *, poison: int) -> RunResult:
        return self.submitted({**inputs, **self.one.sent}, poison=poison)


def _typed_in(check: Check, shape: Shape, one: Beyond, run: _Given, found: Diagnosis) -> Diagnosis:
    """Whether the result is right for the values that the scalars had before."""
    sent: dict[str, NDArray[Any]] = {**one.inputs, **one.sent}
    if not one.scalars or not measuring.right(
        check, shape, sent, run(sent, poison=structure.POISONS[0]).outputs
    ):
        return found
    own = ops.get(check.exercise.op).scalars(check.exercise.variant, shape.dims)
    names = " and ".join(one.scalars)
    values = ", ".join(f"{name} = {own[name]:g}" for name in one.scalars)
    text = f"the result is that of {values}: the kernel does not use the {names} that it is given"
    return replace(found, slug="typed-in", text=text, fix=f"use the parameter {names}")
