"""What the stages of a check take from an operation: inputs, right answers, mistakes, a witness.

Every operation has one module ``gpulab/check/subjects/<op>.py`` whose ``SUBJECT`` is a ``Subject``.
The stages are the same for all of them.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.formats import decode, encode, get
from gpulab.numerics.contract import Capability
from gpulab.ops.base import Runner
from gpulab.registry import Variant

if TYPE_CHECKING:
    from gpulab.check.hypotheses import Hypothesis

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Setting:
    """What one case is judged under.

    Args:
        variant: the exercise's row, with the instruction that the submission uses.
        capability: where it runs.
        atomics: the order of its sums may change between runs.
        dims: of the operation.
        seed: of the inputs.
        narrow: 16-bit formats that the submission's code computes in or converts to or from.
    """

    variant: Variant
    capability: Capability
    atomics: bool
    dims: Mapping[str, int]
    seed: int
    narrow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expected:
    """What one output must be on given inputs.

    Args:
        name: of the parameter.
        format: as stored; ``int32`` too.
        right: float64 over the stored inputs, in the output's shape.
        slack: how far an element may be off before it is rounded.
        ideal: the right results as stored, as values.
        ok: which elements of a result (float64 values) are right.
    """

    name: str
    format: str
    right: Floats
    slack: Floats
    ideal: Floats
    ok: Callable[[Floats], NDArray[np.bool_]]

    def values(self, stored: NDArray[Any]) -> Floats:
        """A stored result as float64."""
        return stored.astype(np.float64) if self.format == "int32" else decode(self.format, stored)

    def stored(self) -> NDArray[Any]:
        """The right result as a kernel stores it."""
        if self.format == "int32":
            return self.ideal.astype(np.int64).astype(np.int32)
        with np.errstate(invalid="ignore", over="ignore"):
            return encode(self.format, self.ideal)

    @property
    def unit_roundoff(self) -> float:
        """Of the stored format; 0 for integers."""
        return 0.0 if self.format == "int32" else get(self.format).unit_roundoff


@dataclass(frozen=True)
class Beyond:
    """Inputs that the gates do not use and that a right kernel must get right too.

    Args:
        name: for messages.
        inputs: as stored.
        text: what it is where results that were right elsewhere tell nothing here.
        fix: what to do then.
        slug: of the diagnosis then; empty: as found.
        scalars: what the kernel is given in the stead of the operation's own values.
        sent: inputs that it is given in the stead of these, by name.
        subject: knows what is right there; None: the operation's own.
    """

    name: str
    inputs: Arrays
    text: str
    fix: str
    slug: str = ""
    scalars: Mapping[str, float] = field(default_factory=dict)
    sent: Arrays = field(default_factory=dict)
    subject: Subject | None = None


@dataclass(frozen=True)
class Seen:
    """What a witness saw.

    Args:
        text: one sentence.
        against: what speaks against the submission, or None.
        wrong: the result is wrong in a way that tells nothing about its arithmetic.
        facts: for the record.
    """

    text: str
    against: Diagnosis | None = None
    wrong: bool = False
    facts: Mapping[str, Any] | None = None


class Subject(ABC):
    """An operation as the checker knows it.

    Attributes:
        guard: how threads beyond the data are kept out, for messages.
        store: the statement that stores a result, for messages.
        mistakes: hypotheses about a result that is finite where it is wrong, the likeliest first.
        special: hypotheses about one that is not.
        subtle: hypotheses for a result of which every element is within its bound.
        along: dims of what ``moving`` shifts: results at its places depend on nothing at others.
    """

    guard: str
    store: str
    mistakes: Sequence[Hypothesis]
    special: Sequence[Hypothesis] = ()
    subtle: Sequence[Hypothesis] = ()
    along: tuple[str, ...]

    def row(
        self,
        variant: Variant,
        instructions: Sequence[str],
        capability: Capability,
        dims: Mapping[str, int],
    ) -> Variant:
        """The exercise's row with what the submission's tensor instructions change in it."""
        return variant

    @abstractmethod
    def inputs(self, setting: Setting, where: str) -> Arrays | None:
        """The stored inputs of a family or probe that the gates use; None for an unknown name."""

    def unrepeated(self, setting: Setting, where: str) -> Arrays | None:
        """Stored inputs of a family of which no row is another's; None: those of ``inputs`` are
        such. What is judged whole may repeat rows; a kernel that knows how must not pass by it."""
        return None

    def beyond(self, setting: Setting) -> Sequence[Beyond]:
        """Inputs that the gates do not use and a right kernel must get right too."""
        return ()

    @abstractmethod
    def expected(self, setting: Setting, inputs: Inputs) -> tuple[Expected, ...]:
        """What every output must be on stored inputs."""

    @abstractmethod
    def moving(self, setting: Setting) -> Mapping[str, int]:
        """Axes along which inputs and outputs may be shifted together, by parameter name.

        Shifting every array named by the same number of elements gives other inputs whose right
        result is the shifted one: what is timed is then always new and always verified.
        """

    def witness(self, setting: Setting, at: Callable[[Mapping[str, int]], Runner]) -> Seen | None:
        """What the results say about the arithmetic used; None where they cannot say it.

        Args:
            setting: of the submission; its dims are any.
            at: the kernel at dims of the witness's choosing.
        """
        return None


def get_subject(op: str) -> Subject:
    """The subject of an operation that the registry knows (``matmul``)."""
    found: Subject = importlib.import_module(f"gpulab.check.subjects.{op}").SUBJECT
    return found
