"""PASS, FAIL, INCONCLUSIVE, the reasons, and the numbers a record shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpulab.numerics.power import Certificate

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
Index = tuple[int, ...]

REASONS = {
    "shape": "the result has another shape or type than declared",
    "inputs-changed": "the kernel wrote to its inputs",
    "unwritten": "elements of the result are never written",
    "nonfinite": "NaN or Inf where the reference has none, or the reverse",
    "nondeterministic": "two runs on the same inputs differ",
    "exact-probe": "an exact probe differs in at least one bit",
    "interval": "elements lie outside the round-interval of the declared accumulation",
    "rms": "the errors are larger, on the whole, than the declared accumulation makes them",
    "contract": "elements exceed the published tolerance",
    "contract-unmeetable": "rounding the inputs alone exceeds the published tolerance",
    "exact-inputs": "the format represents the inputs exactly: no evidence about rounding",
    "power": "the gate cannot see a standard mistake on these inputs",
}
"""Reason codes and what they mean, the weightiest first."""

INCONCLUSIVE_CODES = ("contract-unmeetable", "exact-inputs", "power")
"""The codes that make a verdict INCONCLUSIVE; every other one makes it FAIL."""


def json_number(value: float | None) -> float | None:
    """A finite number, or None: JSON has no NaN and no infinity."""
    return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True)
class Reason:
    """Why a verdict is not PASS.

    Args:
        code: a key of ``REASONS``.
        text: one sentence with the case, the index and the numbers.
        index: first element concerned.
        where: family or probe.
    """

    code: str
    text: str
    index: Index | None = None
    where: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@dataclass(frozen=True)
class FamilyResult:
    """The numbers of one input family.

    Args:
        family: name.
        seed: of the inputs.
        max_abs_err: max |got - R0|.
        max_rel_err: max |got - R0| / |R0|.
        max_abs_err_stored: max |got - R1|: the kernel's own error.
        storage_err: max |R1 - R0|: the format's.
        rtol: of the contract gate.
        atol: of the contract gate.
        contract_fraction: share of the contract bound used.
        contract_text: its arithmetic.
        interval_fraction: share of D used.
        rms: rms of (got - R1) / S; None where the arithmetic is exact.
        rms_limit: its limit.
        reasons: what failed here.
        allclose: for each usual tolerance, whether ``allclose(got, R1)`` passes.
    """

    family: str
    seed: int
    max_abs_err: float
    max_rel_err: float
    max_abs_err_stored: float
    storage_err: float
    rtol: float
    atol: float
    contract_fraction: float
    contract_text: str
    interval_fraction: float
    rms: float | None
    rms_limit: float | None
    reasons: tuple[Reason, ...] = ()
    allclose: Mapping[str, bool] = field(default_factory=dict)

    @property
    def rms_fraction(self) -> float:
        """Share of the rms limit used; 0/0 is 0."""
        if self.rms is None or self.rms_limit is None or self.rms == 0:
            return 0.0
        if math.isnan(self.rms) or self.rms_limit == 0:
            return math.inf
        return self.rms / self.rms_limit

    @property
    def arithmetic_fraction(self) -> float:
        """The larger of the two shares."""
        return max(self.interval_fraction, self.rms_fraction)

    def to_json(self) -> dict[str, Any]:
        """For records."""
        return {
            "family": self.family,
            "seed": self.seed,
            "max_abs_err": json_number(self.max_abs_err),
            "max_rel_err": json_number(self.max_rel_err),
            "max_abs_err_stored": json_number(self.max_abs_err_stored),
            "storage_err": json_number(self.storage_err),
            "contract_fraction": json_number(self.contract_fraction),
            "interval_fraction": json_number(self.interval_fraction),
            "rms_fraction": json_number(self.rms_fraction),
            "rms": json_number(self.rms),
            "rms_limit": json_number(self.rms_limit),
            "reasons": [str(r) for r in self.reasons],
            "allclose": dict(self.allclose),
        }


@dataclass(frozen=True)
class ProbeResult:
    """Outcome of an exact probe.

    Args:
        probe: name.
        about: what it asks, with its numbers.
        wrong: elements that differ.
        checked: elements compared.
        reasons: what failed.
    """

    probe: str
    about: str
    wrong: int
    checked: int
    reasons: tuple[Reason, ...] = ()

    @property
    def passed(self) -> bool:
        """Every bit is right."""
        return not self.reasons

    @property
    def fraction(self) -> float:
        """0 where every bit is right, else 1 plus the share of wrong elements."""
        return 0.0 if self.passed else 1.0 + self.wrong / max(1, self.checked)

    def to_json(self) -> dict[str, Any]:
        """For records."""
        return {
            "probe": self.probe,
            "about": self.about,
            "passed": self.passed,
            "wrong": self.wrong,
            "checked": self.checked,
            "reasons": [str(r) for r in self.reasons],
        }


@dataclass(frozen=True)
class Judgement:
    """The verdict on one kernel at one size, and everything it rests on.

    ``families[0]`` gives the errors shown in tables; fractions are the largest of all families.
    ``contract_name`` is that of the rounding contract it was judged by, where the operation has
    several.
    """

    families: tuple[FamilyResult, ...]
    probes: tuple[ProbeResult, ...]
    power: tuple[Certificate, ...]
    structure: tuple[Reason, ...]
    coverage: float
    coverage_text: str
    arithmetic_text: str
    runs: int
    rests_on: Literal["both", "contract"] = "both"
    notes: tuple[str, ...] = field(default=())
    contract_name: str = ""

    @property
    def caught_on(self) -> tuple[str, ...]:
        """Families and probes on which the arithmetic gate fails it."""
        families = [f.family for f in self.families if not f.arithmetic_fraction <= 1.0]
        return (*families, *(p.probe for p in self.probes if not p.passed))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Everything that stands against PASS, the weightiest first."""
        found = [*self.structure]
        for family in self.families:
            found += family.reasons
        for probe in self.probes:
            found += probe.reasons
        if self.rests_on == "contract":
            found = [r for r in found if r.code not in ("interval", "rms", "exact-probe")]
        passing = [c.mutant for c in self.power if c.status == "passes"]
        if passing:
            names = ", ".join(passing)
            found.append(Reason("power", f"the gate passes the mutants: {names}"))
        order = list(REASONS)
        return tuple(sorted(found, key=lambda r: order.index(r.code)))

    @property
    def verdict(self) -> Verdict:
        """FAIL if anything failed; INCONCLUSIVE if the evidence is not enough; else PASS."""
        codes = [r.code for r in self.reasons]
        if any(code not in INCONCLUSIVE_CODES for code in codes):
            return "FAIL"
        return "INCONCLUSIVE" if codes else "PASS"

    @property
    def reason(self) -> Reason | None:
        """The weightiest reason; None for PASS."""
        return self.reasons[0] if self.reasons else None

    def shows(self, mutant: str) -> bool:
        """Whether a mistake can show at all on these inputs: its mutant is not a right kernel.

        A lesson whose mistake cannot show (a half accumulator at K = 1) passes without being lost.
        """
        return all(c.status != "not applicable" for c in self.power if c.mutant == mutant)

    @property
    def contract_passed(self) -> bool:
        """The contract gate holds on every family."""
        return all(f.contract_fraction <= 1.0 for f in self.families)

    @property
    def arithmetic_passed(self) -> bool:
        """Interval, rms and probes hold, and so does the structure."""
        return self.arithmetic_fraction <= 1.0 and not self.structure

    @property
    def contract_fraction(self) -> float:
        """Largest over the families."""
        return max(f.contract_fraction for f in self.families)

    @property
    def parts(self) -> dict[str, float]:
        """The largest fraction of each part of the arithmetic gate."""
        return {
            "interval": max(f.interval_fraction for f in self.families),
            "rms": max(f.rms_fraction for f in self.families),
            "probes": max((p.fraction for p in self.probes), default=0.0),
        }

    @property
    def arithmetic_fraction(self) -> float:
        """Largest of the parts."""
        return max(self.parts.values())

    def to_record(self) -> dict[str, Any]:
        """The fields of the lab's record that the gates fill."""
        first = self.families[0]
        reason = self.reason
        close: dict[str, list[str]] = {}
        for family in self.families:
            for tolerance, passes in family.allclose.items():
                if passes:
                    close.setdefault(tolerance, []).append(family.family)
        named = {"contract": self.contract_name} if self.contract_name else {}
        return named | {
            "inputs": {
                "family": first.family,
                "seed": first.seed,
                "families": [f.family for f in self.families],
            },
            "max_abs_err": json_number(first.max_abs_err),
            "max_rel_err": json_number(first.max_rel_err),
            "max_abs_err_stored": json_number(first.max_abs_err_stored),
            "storage_err": json_number(first.storage_err),
            "contract_gate": {
                "rtol": json_number(first.rtol),
                "atol": json_number(first.atol),
                "fraction": json_number(self.contract_fraction),
                "passed": self.contract_passed,
                "text": first.contract_text,
            },
            "arithmetic_gate": {
                "fraction": json_number(self.arithmetic_fraction),
                "passed": self.arithmetic_passed,
                "parts": {name: json_number(value) for name, value in self.parts.items()},
                "text": self.arithmetic_text,
            },
            "verdict": self.verdict,
            "reason": None if reason is None else str(reason),
            "reasons": [str(r) for r in self.reasons],
            "first_bad_index": None if reason is None or reason.index is None else [*reason.index],
            "coverage": {"share": self.coverage, "text": self.coverage_text},
            "gate_runs": self.runs,
            "families": [f.to_json() for f in self.families],
            "probes": [p.to_json() for p in self.probes],
            "power": [c.to_json() for c in self.power],
            "notes": list(self.notes),
            "caught_on": list(self.caught_on),
            "allclose_passes_on": close,
        }
