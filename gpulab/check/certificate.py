"""The power certificate of an exercise: which wrong kernels its gates would catch.

The standard mutants are put through the gates at every shape and input of the exercise. A right
result stands in for the kernel, so that the certificate is about the exercise alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from gpulab import ops
from gpulab.arch import DEFAULT_EMULATED, Capability
from gpulab.check.subject import Setting, Subject, get_subject
from gpulab.exercises.base import Exercise
from gpulab.ops.base import RunResult


@dataclass(frozen=True)
class Line:
    """What became of one mistake.

    Args:
        mutant: its name.
        status: ``caught``, ``passes`` or ``not applicable``.
        text: where and by what, or why not.
    """

    mutant: str
    status: str
    text: str

    def to_json(self) -> dict[str, str]:
        """For records."""
        return {"mutant": self.mutant, "status": self.status, "text": self.text}


_SHOWN = 3


def _shown(parts: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(parts) - _SHOWN
    return ", ".join(parts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class _Right:
    """Stands for a kernel that is right."""

    subject: Subject
    setting: Setting

    def __call__(self, inputs: Mapping[str, NDArray[Any]], *, poison: int) -> RunResult:
        expected = self.subject.expected(self.setting, inputs)
        return RunResult({one.name: one.stored() for one in expected}, inputs_unchanged=True)


def certificate(
    exercise: Exercise, seed: int, capability: Capability = DEFAULT_EMULATED
) -> tuple[Line, ...]:
    """Every standard mutant at every shape of an exercise.

    Args:
        exercise: whose gates are tried.
        seed: of the inputs.
        capability: whose arithmetic is declared.
    """
    op, variant, subject = ops.get(exercise.op), exercise.variant, get_subject(exercise.op)
    caught: dict[str, list[str]] = {}
    missed: dict[str, list[str]] = {}
    reasons: dict[str, str] = {}
    for shape in (s for s in exercise.shapes if not s.once):
        dims = " ".join(f"{k}={v}" for k, v in shape.dims.items())
        setting = Setting(variant, capability, False, shape.dims, seed)
        judged = op.judge(
            variant, shape.dims, _Right(subject, setting), capability=capability,
            families=shape.families, seed=seed, effort=shape.effort,
        )  # fmt: skip
        for one in judged.power:
            if one.status == "caught":
                caught.setdefault(one.mutant, []).append(f"{dims}: {_shown(one.caught_by)}")
            elif one.status == "passes":
                missed.setdefault(one.mutant, []).append(dims)
            else:
                reasons.setdefault(one.mutant, one.reason)
    names = dict.fromkeys([*caught, *missed, *reasons])
    lines = []
    for name in names:
        if name in caught:
            lines.append(Line(name, "caught", "; ".join(caught[name])))
        elif name in missed:
            lines.append(Line(name, "passes", "; ".join(missed[name])))
        else:
            lines.append(Line(name, "not applicable", reasons[name]))
    return tuple(lines)
