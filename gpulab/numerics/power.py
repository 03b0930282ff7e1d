"""The power certificate: which standard mutants the gate fails on the very inputs that are judged.

A verdict of PASS is worth what the gate would have said about a wrong kernel. For each family and
each exact probe the mutants are computed on a seeded block and put through the same parts of the
gate as the kernel was. A mutant that no part fails makes the verdict INCONCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpulab.numerics import mutants, structure
from gpulab.numerics.contract import Contract
from gpulab.numerics.gates import RmsSum, interval, rms_limit
from gpulab.numerics.mutants import Mutant
from gpulab.numerics.reference import Block
from gpulab.numerics.simulate import Spread, to_output

Floats = NDArray[np.float64]
Status = Literal["caught", "passes", "not applicable"]


@dataclass(frozen=True)
class Evidence:
    """Inputs of one run and how a result on their block is judged.

    Args:
        name: family or probe.
        block: inputs.
        failed_by: names of the parts of the gate that fail values (r, c).
    """

    name: str
    block: Block
    failed_by: Callable[[Floats], list[str]]


@dataclass(frozen=True)
class Certificate:
    """What became of one mutant.

    Args:
        mutant: its name.
        status: ``caught`` by at least one part on at least one input; ``passes`` all of them; or
            ``not applicable``.
        caught_by: ``family/part`` names.
        missed_on: inputs on which no part failed it although it applies.
        reason: why it does not apply.
    """

    mutant: str
    status: Status
    caught_by: tuple[str, ...] = ()
    missed_on: tuple[str, ...] = ()
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """For records."""
        out: dict[str, object] = {"mutant": self.mutant, "status": self.status}
        if self.status == "not applicable":
            out["reason"] = self.reason
        else:
            out["caught_by"] = list(self.caught_by)
            out["missed_on"] = list(self.missed_on)
        return out


def family_evidence(name: str, contract: Contract, block: Block, spread: Spread | None) -> Evidence:
    """A family: the interval and the rms part.

    Args:
        name: family.
        contract: what is judged.
        block: seeded block of the inputs.
        spread: the simulated contract's errors; None for exact integer arithmetic.
    """
    r1, s = block.r1, block.s
    allowance = contract.allowance(block.k)
    d = allowance.relative * s + allowance.absolute

    def failed_by(values: Floats) -> list[str]:
        parts = []
        if not interval(values, r1, d, contract.output_row).ok.all():
            parts.append("interval")
        if spread is not None:
            total = RmsSum()
            total.add(values, r1, s)
            if not total.rms <= rms_limit(spread, total.count):
                parts.append("rms")
        return parts

    return Evidence(name, block, failed_by)


def probe_evidence(name: str, contract: Contract, block: Block) -> Evidence:
    """An exact probe: every bit of the value."""
    right = to_output(contract, block.r1)

    def failed_by(values: Floats) -> list[str]:
        return [] if np.array_equal(values, right) else ["bits"]

    return Evidence(name, block, failed_by)


class Named(Protocol):
    """Evidence of any operation."""

    @property
    def name(self) -> str:
        """Family or probe."""


E = TypeVar("E", bound=Named)
Attempt = Callable[[E], tuple[Sequence[str], str | None]]
"""Evidence -> parts of the gate that fail the mutant there, and, where none does, why that is no
hole."""


def certificate(
    mutant: str, evidence: Sequence[E], attempt: Attempt[E], thorough: bool
) -> Certificate:
    """Try one mutant.

    Args:
        mutant: its name.
        evidence: families and probes of the verdict.
        attempt: see ``Attempt``.
        thorough: on every input; else only until one input has failed it.
    """
    caught: list[str] = []
    missed: list[str] = []
    excuses: list[str] = []
    for one in evidence:
        if caught and not thorough:
            break
        parts, excuse = attempt(one)
        if parts:
            caught += [f"{one.name}/{part}" for part in parts]
        elif excuse is not None:
            excuses.append(excuse)
        else:
            missed.append(one.name)
    if caught:
        return Certificate(mutant, "caught", tuple(caught), tuple(missed))
    if missed or not excuses:
        return Certificate(mutant, "passes", (), tuple(missed))
    return Certificate(mutant, "not applicable", reason=excuses[0])


def unwritten(right: NDArray[Any], axis: int) -> Certificate:
    """The last row (axis 0) or column of a right result left as it was, in both colours.

    Args:
        right: as stored.
        axis: which.
    """
    name = "row_unwritten" if axis == 0 else "column_unwritten"
    runs = []
    for poison in structure.POISONS:
        run = right.copy()
        last = run[-1:] if axis == 0 else run[:, -1:]
        last[...] = np.frombuffer(bytes([poison]) * run.dtype.itemsize, run.dtype)[0]
        runs.append(run)
    if structure.check_written(runs[0], runs[1]) is None:
        return Certificate(name, "passes", (), ("poison",))
    return Certificate(name, "caught", ("structure/unwritten",))


def certify(
    contract: Contract,
    evidence: Sequence[Evidence],
    standard: Sequence[Mutant] = mutants.STANDARD,
    thorough: bool = True,
) -> tuple[Certificate, ...]:
    """Try every mutant of a product, and an unwritten last row and column.

    Args:
        contract: what is judged.
        evidence: families and probes of the verdict.
        standard: the mutants.
        thorough: on every input; else only until one input has failed the mutant.
    """
    found = [
        certificate(mutant.name, evidence, _attempt(contract, mutant), thorough)
        for mutant in standard
    ]
    if evidence:
        right = contract.store(evidence[0].block.r1)
        found += [unwritten(right, axis) for axis in (0, 1)]
    return tuple(found)


def _attempt(contract: Contract, mutant: Mutant) -> Attempt[Evidence]:
    def attempt(one: Evidence) -> tuple[Sequence[str], str | None]:
        refusal = mutant.refused(contract, one.block)
        if refusal is not None:
            return (), refusal
        with np.errstate(over="ignore", invalid="ignore"):
            values = mutant.compute(contract, one.block)
        parts = one.failed_by(values)
        if not parts and mutant.precision and mutants.is_right(contract, one.block, values):
            return (), "gives the correctly rounded right answer on every element"
        return parts, mutant.allowed(contract, one.block)

    return attempt
