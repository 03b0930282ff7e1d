"""Runs an attention kernel on families and probes and collects what every check says."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.formats import blas, storage_dtype
from gpulab.numerics import gates, structure
from gpulab.numerics.gates import RmsSum, rms_limit
from gpulab.numerics.power import Certificate
from gpulab.numerics.simulate import Spread
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
from gpulab.ops.attention_whole import findings
from gpulab.ops.judging import Asked, JudgedCase, Outputs


class Case(JudgedCase):
    """One kernel at one size.

    Args:
        asked: how it is judged.
        data: inputs and answers under its contract.
        families: the first is run twice.
    """

    def __init__(self, asked: Asked, data: Data, families: Sequence[AttentionFamily]) -> None:
        d = data.dims
        rows = (d["batch"], d["heads"], d["seq_q"])
        out = ((*rows, d["head_dim"]), storage_dtype(data.contract.output))
        super().__init__(asked, {"out": out, "lse": (rows, storage_dtype("fp32"))})
        self.contract, self.data, self.families = data.contract, data, families

    def judge(self) -> Judgement:
        """Run everything and put it together."""
        with blas.one_thread():
            return self._judge()

    def _judge(self) -> Judgement:
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

    def _family(self, number: int, family: AttentionFamily) -> FamilyResult:
        inputs = self.data.family(family)
        got = self.launch_family(number, inputs.stored, family.name)
        self._whole(inputs, got, family.name)
        if family.rounds:
            self.check_rounding(self.contract.format, inputs.share, family.name)
        return measure(self.data, inputs, family, got, asked=number == 0)

    def _whole(self, inputs: Inputs, got: Outputs | None, where: str) -> None:
        """What a sample does not show."""
        if got is not None and self.data.sample[2] < 1.0:
            for finding in findings(self.data, inputs, got):
                self.note(finding, where)

    def _probe(self, probe: AttentionProbe) -> ProbeResult | None:
        inputs = probe.inputs(self.data)
        if inputs is None:
            self.notes.append(f"{probe.name}: not asked at these dims")
            return None
        got = self.launch(inputs.stored, probe.name)
        self._whole(inputs, got, probe.name)
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
