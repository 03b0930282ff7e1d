"""What a submission says about itself, answered one by one with what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulab import exercises
from gpulab.check import measuring, speed
from gpulab.check.runner import Submitted
from gpulab.check.subject import Setting, get_subject
from gpulab.formats import storage_dtype
from gpulab.numerics.structure import POISONS

if TYPE_CHECKING:
    from gpulab.check.session import Check

CLAIM_FACTOR = 2.0
"""An error claim stands within this factor of the measured one: inputs differ."""
TIME_FACTOR = 1.25


def claims(check: Check, submitted: Submitted) -> None:
    """Answer each claim of the file."""
    made, facts = check.parsed.claims, check.result.facts
    base = _Baseline(check, submitted) if check.exercise.baseline else None
    answers: list[dict[str, Any]] = []
    for name, value in made.items():
        if name == "speedup_from":
            answers.append({"claim": name, "value": value, "answer": _cause(check, base)})
            continue
        measured, why = _measured(check, name, base)
        answer: dict[str, Any] = {"claim": name, "value": value, "measured": measured}
        if measured is None:
            answer["answer"] = f"not verified: {why}"
        else:
            factor = TIME_FACTOR if name.endswith("_ms") else CLAIM_FACTOR
            low, high = sorted((float(value), measured))
            holds = high <= factor * low
            answer["holds"] = holds
            answer["answer"] = f"{'holds' if holds else 'does not hold'}: measured {measured:.4g}"
        answers.append(answer)
    facts["claims"] = answers
    wrong = [a for a in answers if a.get("holds") is False]
    open_ = [a for a in answers if "measured" in a and a["measured"] is None]
    if not answers:
        check.result.note("claims", "note", "none made")
    elif wrong:
        check.result.note("claims", "note", f"{len(wrong)} of {len(answers)} do not hold")
    else:
        text = f"{len(answers) - len(open_)} answered"
        check.result.note("claims", "note", text + (f", {len(open_)} not" if open_ else ""))


def _measured(check: Check, name: str, base: _Baseline | None) -> tuple[float | None, str]:
    """What was measured of a claim, or None and why nothing was."""
    shown = " ".join(f"{k}={v}" for k, v in check.exercise.timed.items())
    timed = check.result.facts.get("time_ms")
    at_size = next((j for s, j in check.judged if dict(s.dims) == dict(check.exercise.timed)), None)
    if name == "max_abs_err" and at_size is not None:
        return at_size.families[0].max_abs_err, ""
    if name == "gate_fraction" and at_size is not None:
        return at_size.contract_fraction, ""
    if name == "time_ms" and timed is not None:
        return float(timed["median"]), ""
    if name == "baseline_ms" and base is None:
        return None, f"{check.exercise.name} has no float32 kernel to compare with"
    if name == "baseline_ms" and base is not None and timed is not None:
        return base.time_ms(), ""
    return None, f"needs a card ({shown})"


class _Baseline:
    """The float32 kernel that an exercise starts from: the solution of another exercise.

    Args:
        check: the submission's.
        submitted: gives the worker.
    """

    def __init__(self, check: Check, submitted: Submitted) -> None:
        assert check.exercise.baseline is not None
        self.check, self.submitted = check, submitted
        self.exercise = exercises.get(check.exercise.baseline)
        self.key = ("baseline", check.exercise.name, check.capability, check.seed)

    def _run(self, beside: Submitted) -> Submitted:
        path = self.exercise.file("solution", "cu")
        return measuring.own(self.check, beside, self.exercise, path)

    def time_ms(self) -> float:
        """Median at the submission's timed size (card)."""

        def make() -> float:
            dims = {d: self.check.exercise.timed[d] for d in self.exercise.dims}
            answer = speed.take(self.check, self._run(self.submitted), self.exercise, dims)
            return float(answer["time_ms"]["median"])

        return self.check.cache.get((*self.key, "time"), make)

    def counters(self) -> dict[str, Any]:
        """Work at the shape at which the submission's was counted (emulated device)."""

        def make() -> dict[str, Any]:
            counted = self.check.exercise.shape("counted").dims
            dims = {d: counted[d] for d in self.exercise.dims}
            setting = Setting(
                self.exercise.variant, self.check.capability, False, dims, self.check.seed
            )
            inputs = get_subject(self.exercise.op).inputs(setting, speed.FAMILY)
            assert inputs is not None
            assert self.check.watched is not None  # counters of the submission are its
            run = self._run(self.check.watched)
            run.load()
            run.at(dims, "counters")(inputs, poison=POISONS[0])
            return dict(run.last.get("counters") or {})

        return self.check.cache.get((*self.key, "counters"), make)


def _cause(check: Check, base: _Baseline | None) -> str:
    """What was measured that can make the kernel faster than the float32 one."""
    counters, facts = check.result.facts.get("counters"), check.result.facts
    size = storage_dtype(check.exercise.variant.format).itemsize
    parts = [] if size == 4 else [f"elements of {size} bytes instead of 4"]
    if counters:
        other = base.counters() if base is not None else {}
        for key, text in (
            ("global_load_bytes", "{:.4g} kB loaded"),
            ("global_sector_bytes", "{:.4g} kB moved in sectors"),
        ):
            part = text.format(float(counters.get(key) or 0) * 1e-3)
            if other.get(key):
                part += f" (the float32 kernel {float(other[key]) * 1e-3:.4g})"
            parts.append(part)
        products = counters.get("tensor_products") or 0
        parts.append(
            f"{products:.4g} products on tensor cores" if products else "no tensor-core products"
        )
    if (timed := facts.get("time_ms")) is not None:
        median = float(timed["median"])
        parts.append(f"{facts['gb_per_s']:.4g} GB/s and {facts['tflops']:.4g} TFLOP/s reached")
        if base is not None:
            other_ms = base.time_ms()
            parts.append(f"the float32 kernel takes {other_ms / median:.3g} times as long")
    return "measured: " + ", ".join(parts) if parts else "nothing was measured that bears on it"
