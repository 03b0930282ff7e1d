"""The power certificate: which standard mutants the gate fails on the very inputs that are judged.

A verdict of PASS is worth what the gate would have said about a wrong kernel. For each family and
each exact probe the mutants are computed on a seeded block and put through the same parts of the
gate as the kernel was. A mutant that no part fails makes the verdict INCONCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

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


@dataclass
class _Tally:
    caught: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def certify(
    contract: Contract,
    evidence: Sequence[Evidence],
    standard: Sequence[Mutant] = mutants.STANDARD,
    thorough: bool = True,
) -> tuple[Certificate, ...]:
    """Try every mutant, and an unwritten last row and column on the structure checks.

    Args:
        contract: what is judged.
        evidence: families and probes of the verdict.
        standard: the mutants.
        thorough: on every input; else only until one input has failed the mutant.
    """
    found = [_certificate(contract, evidence, mutant, thorough) for mutant in standard]
    if evidence:
        found += [_unwritten(contract, evidence[0].block, axis) for axis in (0, 1)]
    return tuple(found)


def _certificate(
    contract: Contract, evidence: Sequence[Evidence], mutant: Mutant, thorough: bool
) -> Certificate:
    tally = _Tally()
    for one in evidence:
        if tally.caught and not thorough:
            break
        refusal = mutant.refused(contract, one.block)
        if refusal is not None:
            tally.refusals.append(refusal)
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            values = mutant.compute(contract, one.block)
        parts = one.failed_by(values)
        if parts:
            tally.caught += [f"{one.name}/{part}" for part in parts]
        elif mutant.precision and mutants.is_right(contract, one.block, values):
            tally.refusals.append("gives the correctly rounded right answer on every element")
        elif (allowed := mutant.allowed(contract, one.block)) is not None:
            tally.refusals.append(allowed)
        else:
            tally.missed.append(one.name)
    if tally.caught:
        return Certificate(mutant.name, "caught", tuple(tally.caught), tuple(tally.missed))
    if tally.missed or not tally.refusals:
        return Certificate(mutant.name, "passes", (), tuple(tally.missed))
    return Certificate(mutant.name, "not applicable", reason=tally.refusals[0])


def _unwritten(contract: Contract, block: Block, axis: int) -> Certificate:
    """The last row or column left as it was before the launch, in both colours."""
    name = "row_unwritten" if axis == 0 else "column_unwritten"
    right = contract.store(block.r1)
    runs = []
    for poison in structure.POISONS:
        run = right.copy()
        last = run[-1:] if axis == 0 else run[:, -1:]
        last[...] = np.frombuffer(bytes([poison]) * run.dtype.itemsize, run.dtype)[0]
        runs.append(run)
    if structure.check_written(runs[0], runs[1]) is None:
        return Certificate(name, "passes", (), ("poison",))
    return Certificate(name, "caught", ("structure/unwritten",))
