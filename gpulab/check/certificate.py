"""The power certificate of an exercise: which wrong kernels its gates would catch.

The standard mutants are put through the gates at every shape and input of the exercise. A right
result stands in for the kernel, so that the certificate is about the exercise alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab import ops
from gpulab.exercises.base import Exercise
from gpulab.formats import decode
from gpulab.numerics.contract import Contract
from gpulab.ops.base import RunResult
from gpulab.registry import Capability


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


def certificate(exercise: Exercise, seed: int, capability: Capability = (8, 9)) -> tuple[Line, ...]:
    """Every standard mutant at every shape of an exercise.

    Args:
        exercise: whose gates are tried.
        seed: of the inputs.
        capability: whose arithmetic is declared.
    """
    op, variant = ops.get(exercise.op), exercise.variant
    contract = Contract.of(variant, capability)

    def right(inputs: Mapping[str, NDArray[Any]], *, poison: int) -> RunResult:
        a, b = (decode(contract.format, inputs[name]) for name in ("a", "b"))
        with np.errstate(invalid="ignore", over="ignore"):
            return RunResult({"c": contract.store(a @ b)}, inputs_unchanged=True)

    caught: dict[str, list[str]] = {}
    missed: dict[str, list[str]] = {}
    reasons: dict[str, str] = {}
    for shape in exercise.shapes:
        dims = " ".join(f"{k}={v}" for k, v in shape.dims.items())
        judged = op.judge(
            variant, shape.dims, right, capability=capability, families=shape.families,
            seed=seed, effort=shape.effort,
        )  # fmt: skip
        for one in judged.power:
            if one.status == "caught":
                caught.setdefault(one.mutant, []).append(f"{dims}: {', '.join(one.caught_by)}")
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
