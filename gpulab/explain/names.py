"""Which row of the lab a name means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab import registry
from gpulab.errors import UsageError
from gpulab.registry import Case


@dataclass(frozen=True)
class Wanted:
    """What a user says of a row beside its name; None: nothing.

    Args:
        op: operation.
        format: storage format of the inputs.
        accumulator: format of the running sum.
        output: storage format of the result.
        contract: name of its rounding contract.
    """

    op: str | None = None
    format: str | None = None
    accumulator: str | None = None
    output: str | None = None
    contract: str | None = None

    def said(self) -> dict[str, str]:
        """What is said, by option."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def fits(self, case: Case) -> bool:
        """Whether a row is what is said."""
        return all(_has(case, option) == value for option, value in self.said().items())


_FIELDS = ("format", "accumulator", "output", "contract")


def _has(case: Case, option: str) -> str:
    return case.spec.op if option == "op" else str(getattr(case.variant, option))


def find(name: str, wanted: Wanted) -> Case:
    """The one row of a name: ``BACKEND/KERNEL`` or ``KERNEL``.

    Raises:
        UsageError: no row, or several; lists the candidates as they can be asked for.
    """
    backend, _, kernel = name.rpartition("/")
    every = [Case(s, v) for s in registry.specs() for v in s.variants]
    named = [c for c in every if c.spec.name == kernel and backend in ("", str(c.spec.backend))]
    if not named:
        known = sorted({f"{c.spec.backend}/{c.spec.name}" for c in every if not c.spec.study})
        raise UsageError(f"no kernel {name!r}", fix=f"choose one of: {', '.join(known)}")
    found = [c for c in named if wanted.fits(c)]
    if not found:
        for option, value in wanted.said().items():
            if value not in {_has(c, option) for c in named}:
                choices = dict.fromkeys(filter(None, (_has(c, option) for c in named)))
                raise UsageError(
                    f"{name} has no {option} {value!r}",
                    fix=f"choose one of: {', '.join(choices)}"
                    if choices
                    else f"leave --{option} out",
                )
        said = " ".join(f"--{option} {value}" for option, value in wanted.said().items())
        raise UsageError(f"{name} has no row with {said}", fix=_choose(named, named))
    if len(found) > 1:
        raise UsageError(f"{name!r} names {len(found)} rows", fix=_choose(found, named))
    return found[0]


def _choose(cases: Sequence[Case], among: Sequence[Case]) -> str:
    return "choose one of:\n    " + "\n    ".join(spelled(c, among) for c in cases)


def spelled(case: Case, among: Sequence[Case]) -> str:
    """What to type for a row: its name, and the options that tell it from the others."""
    text = f"{case.spec.backend}/{case.spec.name} --op {case.spec.op}"
    others = [c for c in among if c is not case and c.spec is case.spec]
    for field in _FIELDS:
        mine = getattr(case.variant, field)
        apart = [c for c in others if getattr(c.variant, field) != mine]
        if apart and mine:
            text += f" --{field} {mine}"
            others = [c for c in others if c not in apart]
    return text
