"""Runs an attention kernel on families and probes and collects what every check says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from gpulab.formats import storage_dtype
from gpulab.numerics import gates, structure
from gpulab.numerics.gates import RmsSum, rms_limit
from gpulab.numerics.inputs import MIN_ROUNDING_SHARE
from gpulab.numerics.power import Certificate
from gpulab.numerics.simulate import Spread
from gpulab.numerics.structure import POISONS, Finding
from gpulab.numerics.verdict import FamilyResult, Judgement, ProbeResult, Reason
from gpulab.ops.attention_data import Data, Inputs
from gpulab.ops.attention_families import AttentionFamily
from gpulab.ops.attention_measure import (
    LSE,
    largest_r0,
    measure,
    of_piece,
    place,
    tolerance_of,
)
from gpulab.ops.attention_mutants import Stored, stored
from gpulab.ops.attention_power import Evidence, certify
from gpulab.ops.attention_probes import AttentionProbe, probes
from gpulab.ops.attention_simulate import row_squares
from gpulab.ops.base import Effort, RestsOn, Runner

Outputs = Mapping[str, NDArray[Any]]


class Case:
    """One kernel at one size.

    Args:
        data: inputs and answers under its contract.
        run: the kernel.
        families: the first is run twice.
        effort: which probes.
        rests_on: which gate decides.
    """

    def __init__(
        self,
        data: Data,
        run: Runner,
        families: Sequence[AttentionFamily],
        effort: Effort,
        rests_on: RestsOn,
    ) -> None:
        self.data, self.runner, self.families = data, run, families
        self.contract, self.effort, self.rests_on = data.contract, effort, rests_on
        self.structure: list[Reason] = []
        self.notes: list[str] = []
        self.runs = 0

    def judge(self) -> Judgement:
        """Run everything and put it together."""
        results = [self._family(i, family) for i, family in enumerate(self.families)]
        asked = probes(self.effort) if self.rests_on == "both" else ()
        probed = [p for p in (self._probe(probe) for probe in asked) if p is not None]
        _, text, coverage = self.data.sample
        dims = self.data.dims
        return Judgement(
            families=tuple(results),
            probes=tuple(probed),
            power=self._power(asked),
            structure=tuple(self.structure),
            coverage=coverage,
            coverage_text=text,
            arithmetic_text=self.contract.explain(dims["head_dim"], dims["seq_k"]),
            runs=self.runs,
            rests_on=self.rests_on,
            notes=tuple(self.notes),
            contract_name=self.contract.name,
        )

    def _launch(self, inputs: Inputs, poison: int, where: str) -> Outputs | None:
        """One run; None (and a structural reason) where shape or type are not as declared."""
        self.runs += 1
        result = self.runner(inputs.stored, poison=poison)
        if not result.inputs_unchanged:
            self._note(Finding("inputs-changed", "the kernel wrote to its inputs"), where)
        d, complete = self.data.dims, True
        rows = (d["batch"], d["heads"], d["seq_q"])
        for name, shape, fmt in (
            ("out", (*rows, d["head_dim"]), self.contract.output),
            ("lse", rows, "fp32"),
        ):
            got = result.outputs.get(name)
            if got is None:
                self._note(Finding("shape", f"the kernel returned no output {name}"), where)
                complete = False
                continue
            wrong = structure.check_shape(got, shape, storage_dtype(fmt))
            self._note(wrong, where)
            complete &= wrong is None
        return result.outputs if complete else None

    def _note(self, finding: Finding | None, where: str) -> None:
        """Keep the first finding of each kind."""
        if finding is not None and all(r.code != finding.code for r in self.structure):
            at = f", first at {[*finding.index]}" if finding.index is not None else ""
            text = f"{where}: {finding.text}{at}"
            self.structure.append(Reason(finding.code, text, finding.index, where))

    def _family(self, number: int, family: AttentionFamily) -> FamilyResult:
        inputs = self.data.family(family)
        colours = POISONS if number % 2 == 0 else (POISONS[1], POISONS[0])
        got = self._launch(inputs, colours[0], family.name)
        if number == 0 and got is not None:
            again = self._launch(inputs, colours[1], family.name)
            for name in ("out", "lse") if again is not None else ():
                assert again is not None
                self._note(structure.check_written(got[name], again[name], colours), family.name)
                if not self.contract.atomics:
                    repeat = structure.check_repeat(got[name], again[name], colours)
                    self._note(repeat, family.name)
        if family.rounds and inputs.share < MIN_ROUNDING_SHARE:
            text = (
                f"{family.name}: storing in {self.contract.format} changes only "
                f"{inputs.share:.1%} of the elements"
            )
            self._note(Finding("exact-inputs", text), family.name)
        return measure(self.data, inputs, family, got, asked=number == 0)

    def _probe(self, probe: AttentionProbe) -> ProbeResult | None:
        inputs = probe.inputs(self.data)
        if inputs is None:
            self.notes.append(f"{probe.name}: not asked at these dims")
            return None
        got = self._launch(inputs, POISONS[self.runs % 2], probe.name)
        if got is None:
            reason = Reason("exact-probe", f"{probe.name}: no result to compare")
            return ProbeResult(probe.name, probe.about, 1, 1, (reason,))
        wrong = checked = 0
        reasons: list[Reason] = []
        for piece in self.data.pieces(inputs):
            out, lse = of_piece(self.data, piece, got)
            right = piece.answer
            for name, mine, exact, d, row in (
                ("out", out, right.out, right.d_out, self.contract.output_row),
                ("lse", lse, right.lse, right.d_lse, LSE),
            ):
                bad = ~gates.interval(mine, exact, d, row).ok
                wrong, checked = wrong + int(bad.sum()), checked + bad.size
                at = structure.first_index(bad)
                if at is not None and not reasons:
                    index = place(self.data, piece, at)
                    text = (
                        f"{probe.name}: {name}{[*index]}: got {mine[at]:.9g}, R1 = {exact[at]:.9g}"
                    )
                    reasons.append(Reason("exact-probe", text, index, probe.name))
        return ProbeResult(probe.name, probe.about, wrong, checked, tuple(reasons))

    def _power(self, asked: Sequence[AttentionProbe]) -> tuple[Certificate, ...]:
        """The certificate of these inputs under this contract, computed once a run."""

        def make() -> tuple[Certificate, ...]:
            evidence = [
                self._evidence(f.name, self.data.family(f), self.data.spread(f), f)
                for f in self.families
            ]
            for probe in asked:
                inputs = probe.inputs(self.data)
                if inputs is not None and probe.name != "non_finite":
                    evidence.append(self._evidence(probe.name, inputs, None, None))
            thorough = self.effort == "full"
            return certify(self.contract, self.data.dims, evidence, thorough)

        key = (self.contract, tuple(self.families), self.effort, self.rests_on)
        return self.data.cached("power", *key, make=make)

    def _evidence(
        self, name: str, inputs: Inputs, spread: Spread | None, family: AttentionFamily | None
    ) -> Evidence:
        answers = self.data.answers(inputs)
        row = self.contract.output_row
        tolerance = tolerance_of(self.data)

        def failed_by(outputs: Sequence[Stored]) -> list[str]:
            parts, total = [], RmsSum()
            for (out, lse), right in zip(outputs, answers, strict=True):
                if self.rests_on == "contract" and family is not None:
                    largest = largest_r0(self.data, family)
                    ok = gates.contract_gate(out, right.out, largest, tolerance).ok
                    parts += [] if ok.all() else ["contract"]
                    continue
                inside = gates.interval(out, right.out, right.d_out, row).ok.all()
                same = gates.interval(lse, right.lse, right.d_lse, LSE).ok.all()
                parts += [] if inside and same else ["interval"]
                squares = row_squares(out, right)
                total.square += float(squares.sum())
                total.count += squares.size
            if spread is not None and total.count:
                parts += [] if total.rms <= rms_limit(spread, total.count) else ["rms"]
            return list(dict.fromkeys(parts))

        exact = [stored(self.contract, a.out, a.lse) for a in answers]
        return Evidence(name, self.data.block(inputs), exact, failed_by)
