"""What judging is in every operation: options, runs, and the checks that need no numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.numerics import structure
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Capability, VariantLike
from gpulab.numerics.inputs import MIN_ROUNDING_SHARE
from gpulab.numerics.repeat import repeated
from gpulab.numerics.structure import POISONS, Finding
from gpulab.numerics.verdict import Judgement, Reason
from gpulab.ops.base import Dims, Effort, RestsOn, Runner

Outputs = Mapping[str, NDArray[Any]]
Expected = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and storage type of every output."""


@dataclass(frozen=True)
class Asked:
    """How a kernel is judged; see ``JudgedOp.judge``."""

    variant: VariantLike
    dims: dict[str, int]
    run: Runner
    capability: Capability
    families: Sequence[Any] | None
    seed: int
    effort: Effort
    atomics: bool
    cache: Cache
    rests_on: RestsOn


class JudgedOp(ABC):
    """An operation that judges kernels."""

    @abstractmethod
    def check_dims(self, dims: Dims) -> None:
        """See ``Op``."""

    @abstractmethod
    def case(self, asked: Asked) -> JudgedCase:
        """The kernel at its size, on the families to be judged.

        Raises:
            UsageError: an unknown family or contract.
        """

    def judge(
        self,
        variant: VariantLike,
        dims: Dims,
        run: Runner,
        *,
        capability: Capability,
        families: Sequence[Any] | None = None,
        seed: int = 0,
        effort: Effort = "quick",
        atomics: bool = False,
        cache: Cache | None = None,
        rests_on: RestsOn = "both",
    ) -> Judgement:
        """Run a kernel and judge it by the contract of its variant (a lesson: by the operation's).

        Runs: one for each family, one repetition of the first family with the other poison, and
        the probes.

        Args:
            variant: the row: formats, accumulator, instruction, contract, lesson.
            dims: of the operation.
            run: the kernel.
            capability: where it runs; decides the arithmetic of a tensor-core instruction.
            families: input families, names or their rows; None: those of the operation, and at
                ``full`` effort every one that is made for the format.
            seed: of inputs, probes and sampled parts.
            effort: ``quick`` or ``full``: how many families and probes.
            atomics: the kernel declares that the order of its sums may change between runs.
            cache: shared by the cases of a run; None: nothing is kept.
            rests_on: ``contract``: the verdict and its power certificate rest on the published
                ceiling alone (a demonstration of what it cannot see).

        Raises:
            UsageError: bad dims, family, contract or effort.
            GpulabError: whatever the runner raises (fault, timeout, build).
        """
        self.check_dims(dims)
        if effort not in ("quick", "full"):
            raise UsageError(f"unknown effort {effort!r}", fix="use quick or full")
        if families is not None and not families:
            raise UsageError("a verdict needs at least one input family")
        whole = {name: int(value) for name, value in dims.items()}
        asked = Asked(variant, whole, run, capability, families, seed, effort, atomics,
                      cache or Cache(), rests_on)  # fmt: skip
        return self.case(asked).judge()


class JudgedCase(ABC):
    """One kernel at one size: runs it, and keeps what the checks without numbers find.

    Args:
        asked: how it is judged.
        expected: its outputs.

        distinct: rows that the others of the inputs repeat, where an output that repeats too may
            be judged by so many; None: outputs are judged whole.
    """

    def __init__(self, asked: Asked, expected: Expected, distinct: int | None = None) -> None:
        self.distinct = distinct
        self.runner, self.expected, self.atomics = asked.run, expected, asked.atomics
        self.effort, self.rests_on = asked.effort, asked.rests_on
        self.structure: list[Reason] = []
        self.notes: list[str] = []
        self.runs = 0

    @abstractmethod
    def judge(self) -> Judgement:
        """Run everything and put it together."""

    def note(self, finding: Finding | None, where: str) -> None:
        """Keep the first finding of each kind."""
        if finding is not None and all(r.code != finding.code for r in self.structure):
            at = f", first at {[*finding.index]}" if finding.index is not None else ""
            text = f"{where}: {finding.text}{at}"
            self.structure.append(Reason(finding.code, text, finding.index, where))

    def launch(self, inputs: Outputs, where: str, poison: int | None = None) -> Outputs | None:
        """One run; None (and a structural reason) where shape or type are not as declared.

        Args:
            inputs: as stored.
            where: family or probe.
            poison: the byte that fills the outputs first; None: the colours in turn.
        """
        if poison is None:
            poison = POISONS[self.runs % 2]
        self.runs += 1
        result = self.runner(inputs, poison=poison)
        if not result.inputs_unchanged:
            self.note(Finding("inputs-changed", "the kernel wrote to its inputs"), where)
        outputs = result.outputs if self.distinct is not None else result.whole()
        complete = True
        for name, (shape, dtype) in self.expected.items():
            got = outputs.get(name)
            if got is None:
                self.note(Finding("shape", f"the kernel returned no output {name}"), where)
                complete = False
                continue
            if self.distinct is not None and result.stands_for.get(name) == shape[0]:
                shape = (self.distinct, *shape[1:])
            wrong = structure.check_shape(got, shape, dtype)
            self.note(wrong, where)
            complete &= wrong is None
        return outputs if complete else None

    def launch_family(self, number: int, inputs: Outputs, where: str) -> Outputs | None:
        """One run of a family; the first family runs twice, over both colours."""
        colours = POISONS if number % 2 == 0 else (POISONS[1], POISONS[0])
        got = self.launch(inputs, where, colours[0])
        again = self.launch(inputs, where, colours[1]) if number == 0 and got is not None else None
        if got is None or again is None:
            return got
        for name in self.expected:
            rows = max(len(got[name]), len(again[name]))  # one of them may repeat and one not
            first, second = (repeated(each[name], rows) for each in (got, again))
            self.note(structure.check_written(first, second, colours), where)
            if not self.atomics:
                self.note(structure.check_repeat(first, second, colours), where)
        return got

    def check_rounding(self, fmt: str, share: float, where: str) -> None:
        """Inputs that their format holds exactly are no evidence about rounding.

        Args:
            fmt: storage format.
            share: of the elements that storage changes.
            where: family.
        """
        if share < MIN_ROUNDING_SHARE:
            text = f"{where}: storing in {fmt} changes only {share:.1%} of the elements"
            self.note(Finding("exact-inputs", text), where)
