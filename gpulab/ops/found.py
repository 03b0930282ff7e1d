"""What judging one family of inputs finds, element by element, and the numbers made of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gpulab.numerics.errors import ErrorSummary
from gpulab.numerics.gates import ContractTolerance, RmsSum, rms_limit
from gpulab.numerics.simulate import Spread
from gpulab.numerics.verdict import FamilyResult, Reason

Index = tuple[int, ...]


def _none() -> ErrorSummary:
    return ErrorSummary(0.0, 0.0, None)


@dataclass
class Found:
    """Collected over the parts of a result; every largest share and the first reason of each code.

    Args:
        error0: of the first output against R0.
        error1: against R1.
        storage: of R1 against R0.
        contract: largest share of the published ceiling.
        interval: largest share of D.
        squares: of the scaled errors.
        rms: their root mean square; None where nothing may err.
        limit: of ``rms``.
        close: by tolerance, whether ``allclose`` passes.
        reasons: by code.
    """

    error0: ErrorSummary = field(default_factory=_none)
    error1: ErrorSummary = field(default_factory=_none)
    storage: ErrorSummary = field(default_factory=_none)
    contract: float = 0.0
    interval: float = 0.0
    squares: RmsSum = field(default_factory=RmsSum)
    rms: float | None = None
    limit: float | None = None
    close: dict[str, bool] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)

    @classmethod
    def nothing(cls) -> Found:
        """Where there is no result to judge."""
        lost = ErrorSummary(math.inf, math.inf, None)
        return cls(error0=lost, error1=lost, contract=math.inf, interval=math.inf)

    def merge(self, other: Found) -> None:
        """Add what was found in a later part."""
        self.error0, self.error1 = self.error0.merge(other.error0), self.error1.merge(other.error1)
        self.storage = self.storage.merge(other.storage)
        self.contract = max(self.contract, other.contract)
        self.interval = max(self.interval, other.interval)
        self.squares.merge(other.squares)
        for tolerance, passes in other.close.items():
            self.close[tolerance] = self.close.get(tolerance, True) and passes
        for code, reason in other.reasons.items():
            self.reasons.setdefault(code, reason)

    def fail(self, code: str, text: str, index: Index | None, where: str) -> None:
        """Keep the first reason of each code."""
        self.reasons.setdefault(code, Reason(code, text, index, where))

    def check_rms(self, spread: Spread | None, what: str, where: str) -> None:
        """Hold the squares against the simulated ones.

        Args:
            spread: of the simulated errors; None where nothing may err.
            what: of which the root mean square is taken.
            where: family.
        """
        if spread is None or not self.squares.count:
            return
        self.rms, self.limit = self.squares.rms, rms_limit(spread, self.squares.count)
        if not self.rms <= self.limit:
            text = f"{where}: rms({what}) = {self.rms:.3g}, limit {self.limit:.3g}"
            self.fail("rms", text, self.error1.index, where)

    def result(
        self, family: str, seed: int, tolerance: ContractTolerance, largest: float
    ) -> FamilyResult:
        """The numbers of the family.

        Args:
            family: name.
            seed: of the inputs.
            tolerance: of the published ceiling.
            largest: max |R0|.
        """
        atol = tolerance.rtol * largest
        return FamilyResult(
            family=family,
            seed=seed,
            max_abs_err=self.error0.max_abs,
            max_rel_err=self.error0.max_rel,
            max_abs_err_stored=self.error1.max_abs,
            storage_err=self.storage.max_abs,
            rtol=tolerance.rtol,
            atol=atol,
            contract_fraction=self.contract,
            contract_text=f"{tolerance.text}; atol = rtol * max|R0| = {atol:.4g}",
            interval_fraction=self.interval,
            rms=self.rms,
            rms_limit=self.limit,
            reasons=tuple(self.reasons.values()),
            allclose=self.close,
        )


def placed(summary: ErrorSummary, place: Callable[[Index], Index]) -> ErrorSummary:
    """A summary of a part with its index in the whole result."""
    if summary.index is None:
        return summary
    return ErrorSummary(summary.max_abs, summary.max_rel, place(summary.index))
