"""The risk table: what can go wrong at each step of a kernel, and what keeps it from happening."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.explain import arithmetic
from gpulab.explain.claims import Claim
from gpulab.explain.places import Place
from gpulab.explain.steps import Step
from gpulab.formats import get

_F32 = get("fp32")
_LONGEST = 2**31
"""Terms that a sum may have: dims are 32-bit, and signed."""
NOTHING = "nothing"
"""The mitigation of a risk that a kernel takes."""


_Row = tuple[str, str, str, str, str]
"""Step, format, risk, size and mitigation."""


@dataclass(frozen=True)
class Risk:
    """A row of the table.

    Args:
        step: what happens, in words: ``sum of exponentials``.
        format: of the result.
        risk: the class: ``rounding``, ``stagnation``, ``overflow``, ``cancellation`` ...
        size: how much, or when.
        mitigation: what the instructions do against it; ``nothing`` where it needs something.
        places: the lines.
    """

    step: str
    format: str
    risk: str
    size: str
    mitigation: str
    places: tuple[Place, ...]

    @property
    def taken(self) -> bool:
        """Whether the kernel takes the risk."""
        return self.mitigation == NOTHING


def table(
    steps: Sequence[Step], claims: Sequence[Claim], fmt: str, promotion: int | None
) -> tuple[Risk, ...]:
    """The rows of a kernel, steps alike in all but their line as one.

    Args:
        steps: as shown.
        claims: which say whether roundings are declared.
        fmt: storage format of the inputs.
        promotion: terms after which a tensor core's sum is promoted, if it is.
    """
    shrinks = any("shrunk" in s.marks for s in steps)
    declared = all(c.agrees for c in claims if "rounded" in c.what)
    rows: dict[_Row, list[Place]] = {}
    for step in steps:
        row = _row(step, fmt, shrinks, declared, promotion)
        if row is not None:
            places = rows.setdefault(row, [])
            if step.place not in places:
                places.append(step.place)
    return tuple(Risk(*row, tuple(places)) for row, places in rows.items())


def _half_ulp(fmt: str) -> str:
    return f"2^-{arithmetic.BITS[fmt]}"


def _row(step: Step, fmt: str, shrinks: bool, declared: bool, promotion: int | None) -> _Row | None:
    """Step, format, risk, size and mitigation."""
    if step.kind == "sum":
        return _sum(step, fmt, shrinks, promotion)
    if step.kind == "lanes":
        what = "partial sums of threads"
        if step.format != "fp32":
            return (what, step.format, "rounding", _half_ulp(step.format) + " a level", NOTHING)
        kept = "a tree in a fixed order"
        if "rescaled" in step.marks:
            kept += ", rescaled to the larger maximum"
        return (what, step.format, "rounding", f"{_half_ulp('fp32')} a level", kept)
    if step.kind == "exp":
        return _exponential(step)
    if step.kind == "log":
        return _logarithm(step)
    if step.kind == "difference":
        return _difference(step)
    if step.kind == "rounding":
        return _rounding(step, declared)
    if step.kind == "offset":
        size = f"wraps at {_LONGEST * 2:.2g} elements"
        return ("offset of an element", step.format, "wrapping", size, NOTHING)
    return (f"{step.what} in {step.format}", step.format, "rounding", "not declared", NOTHING)


def _sum(step: Step, fmt: str, shrinks: bool, promotion: int | None) -> _Row | None:
    what, bits = f"sum of {step.what}", arithmetic.BITS.get(step.format)
    if step.what == "weighted by exponentials":
        what = "sum weighted by exponentials"
    if step.what == "ones":
        return None  # a count: exact as long as columns have 32 bits and 24 of them a thread
    if bits is None:
        return (what, step.format, "none", "integers: exact, modulo 2^32", "none is needed")
    if step.format != "fp32":
        size = f"stands still at 2^{bits} terms of one size"
        return (what, step.format, "stagnation", size, NOTHING)
    if "growing maximum" in step.marks and "rescaled" not in step.marks:
        size = "terms relative to different maxima"
        return (what, step.format, "wrong weights", size, NOTHING)
    if "tensor core" in step.marks:
        size = "cut, not rounded: grows with n"
        kept = "a float32 accumulator"
        if promotion:
            kept = f"promoted to float32 every {promotion} terms"
    else:
        size = f"sqrt(n) {_half_ulp('fp32')}"
        kept = "kept in float32"
    if "rescaled" in step.marks:
        kept += "; rescaled when the maximum grows"
    if "squares" in step.what:
        limit = math.sqrt(_F32.max_finite)
        if get(fmt).max_finite ** 2 * _LONGEST < _F32.max_finite:
            kept += f"; {fmt} ends at {get(fmt).max_finite:.5g}"
        else:
            size += f"; overflow above {limit:.2g}"
            kept += "; again times a tiny power of two" if shrinks else "; overflow is not caught"
    return (what, step.format, "rounding", size, kept)


def _exponential(step: Step) -> _Row:
    what = f"exponential ({step.what})" if step.what else "exponential"
    if "unbounded" in step.marks:
        top = math.log(_F32.max_finite)
        low = math.log(_F32.min_subnormal)
        return (what, step.format, "overflow", f"inf above {top:.1f}, 0 below {low:.1f}", NOTHING)
    size = f"|d| {_half_ulp('fp32')} of the rounded argument"
    return (what, step.format, "overflow", size, "the maximum is subtracted: d <= 0")


def _logarithm(step: Step) -> _Row:
    what = f"logarithm of {step.what}"
    if "ratio" in step.marks:
        return (what, step.format, "underflow", "-inf where it vanishes", NOTHING)
    return (what, step.format, "underflow", "log 0", "a sum has the term e^0 = 1")


def _difference(step: Step) -> _Row:
    u = _half_ulp("fp32")
    if step.what == "two sums":
        kept = "sums of shifted data: nothing large cancels" if "shifted" in step.marks else NOTHING
        size = "what is left of two large numbers"
        return ("difference of two sums", step.format, "cancellation", size, kept)
    sizes = {
        "the maximum": (f"{u} |x - max|", "one rounding of two stored numbers"),
        "another thread's mean": (f"{u} of the mean", "float32, of two means of one row"),
        "a mean": (f"{u} of the mean", "float32, of a number that has no more bits"),
        "inputs": (f"{u} |x - y|", "one rounding of two stored numbers"),
        "a logarithm": (f"{u} of the result", "formed directly, one rounding"),
    }
    size, kept = sizes[step.what]
    return (f"difference to {step.what}", step.format, "cancellation", size, kept)


def _rounding(step: Step, declared: bool) -> _Row:
    size = f"half an ulp: {_half_ulp(step.format)}"
    if "used again" in step.marks:
        kept = "a rounding point of the contract" if declared else NOTHING
        return (f"rounding of {step.what}", step.format, "double rounding", size, kept)
    what = f"rounding, {step.what}"
    return (what, step.format, "rounding", size, "the format's own; once")
