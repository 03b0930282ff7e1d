"""Runs a row kernel on families and probes and collects what every check says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import call
from typing import TypeVar

import numpy as np

from gpulab.formats import storage_dtype
from gpulab.formats.threads import each
from gpulab.numerics import gates, structure
from gpulab.numerics.gates import RmsSum, rms_limit
from gpulab.numerics.power import Certificate
from gpulab.numerics.simulate import Spread
from gpulab.numerics.verdict import Judgement, ProbeResult, Reason
from gpulab.ops.judging import Asked, JudgedCase, Outputs
from gpulab.ops.rows_contract import Floats, Sums
from gpulab.ops.rows_data import RowData, RowInputs, row_squares
from gpulab.ops.rows_families import RowFamily
from gpulab.ops.rows_measure import bands, ceiling, measure
from gpulab.ops.rows_mutants import Evidence, certify
from gpulab.ops.rows_probes import RowProbe

T = TypeVar("T")


class Case(JudgedCase):
    """One kernel at one size.

    Args:
        asked: how it is judged.
        data: inputs and answers under its contract.
        families: the first is run twice.
    """

    def __init__(self, asked: Asked, data: RowData, families: Sequence[RowFamily]) -> None:
        op, contract, (rows, cols) = data.op, data.contract, data.shape
        super().__init__(
            asked,
            {
                name: (
                    (rows, cols) if op.wide(name) else (rows,),
                    storage_dtype(op.output_format(name, contract)),
                )
                for name in op.outputs(contract)
            },
            data.distinct,
        )
        self.contract, self.data, self.families = contract, data, families

    def judge(self) -> Judgement:
        """Run everything and put it together; a family is prepared, and measured, beside others."""
        data, families = self.data, self.families
        probes: Sequence[RowProbe] = ()
        if self.rests_on == "both":
            probes = data.op.probes(self.contract, data.dims, self.effort)
        self._at_once([partial(data.family, family) for family in families]
                      + [partial(data.probe, probe) for probe in probes]
                      + [partial(data.spreads, family) for family in families])  # fmt: skip
        ran = [self._run(i, family) for i, family in enumerate(families)]
        asked = [self.launch(data.probe(probe).stored, probe.name) for probe in probes]
        results = self._at_once([
            partial(measure, data, data.family(family), family, got, i == 0)
            for i, (family, got) in enumerate(zip(families, ran, strict=True))
        ])  # fmt: skip
        for family in families[1:]:
            self._unasked(family)
        probed = self._at_once(
            [partial(self._probe, probe, got) for probe, got in zip(probes, asked, strict=True)]
        )
        return Judgement(
            families=tuple(results),
            probes=tuple(probed),
            power=self._power(probes),
            structure=tuple(self.structure),
            coverage=1.0,
            coverage_text=self.data.coverage_text,
            arithmetic_text=self.data.op.explain(self.contract, self.data.shape[1]),
            runs=self.runs,
            rests_on=self.rests_on,
            notes=tuple(self.notes),
            contract_name=self.contract.name,
        )

    def _at_once(self, makers: Sequence[Callable[[], T]]) -> list[T]:
        """The results of several calls; on several cores where the distinct rows are many."""
        elements = self.data.distinct * self.data.shape[1]
        return list(each(call, makers, elements * len(makers)))

    def _run(self, number: int, family: RowFamily) -> Outputs | None:
        inputs = self.data.family(family)
        got = self.launch_family(number, inputs.stored, family.name)
        if family.rounds:
            self.check_rounding(self.contract.format, inputs.share, family.name)
        return got

    def _unasked(self, family: RowFamily) -> None:
        """Say where the published ceiling is not asked, since no kernel could meet it."""
        inputs = self.data.family(family)
        for answer in inputs.answers:
            if not ceiling(self.data, family, answer, inputs.r0[answer.name])[2]:
                self.notes.append(
                    f"{family.name}: storing the inputs in {self.contract.format} alone exceeds "
                    f"the published tolerance of {answer.name}; it is not asked there"
                )

    def _probe(self, probe: RowProbe, got: Outputs | None) -> ProbeResult:
        inputs = self.data.probe(probe)
        if got is None:
            reason = Reason("exact-probe", f"{probe.name}: no result to compare")
            return ProbeResult(probe.name, probe.about, 1, 1, (reason,))
        wrong = checked = 0
        reasons: list[Reason] = []
        for answer in inputs.answers:
            for band in bands(answer, answer.r1, got[answer.name], self.data.shape[0]):
                right, mine = band.right, band.got
                bad = ~right.right(mine)
                wrong += band.times * int(bad.sum())
                checked += band.times * bad.size
                at = structure.first_index(bad)
                if at is not None and not reasons:
                    index = band.place(at)
                    low, high = right.ends()
                    text = (
                        f"{probe.name}: {answer.name}{[*index]}: got {mine[at]:.9g}, "
                        f"R1 = {right.r1[at]:.9g}, allowed {low[at]:.9g} .. {high[at]:.9g}"
                    )
                    reasons.append(Reason("exact-probe", text, index, probe.name))
        return ProbeResult(probe.name, probe.about, wrong, checked, tuple(reasons))

    def _power(self, probes: Sequence[RowProbe]) -> tuple[Certificate, ...]:
        """The certificate of these inputs under this contract, computed once a run."""

        def make() -> tuple[Certificate, ...]:
            evidence = self._at_once(
                [partial(self._family_evidence, family) for family in self.families]
                + [
                    partial(self._evidence, probe.name, self.data.probe(probe), {}, probe.sums)
                    for probe in probes
                ]
            )
            return certify(self.data.op, self.contract, evidence, thorough=self.effort == "full")

        key = (tuple(self.families), self.effort, self.rests_on)
        return self.data.cached("power", *key, make=make)

    def _family_evidence(self, family: RowFamily) -> Evidence:
        inputs = self.data.family(family)
        spreads = self.data.spreads(family)
        return self._evidence(family.name, inputs, spreads, family.sums(self.contract.format))

    def _evidence(
        self, name: str, inputs: RowInputs, spreads: Mapping[str, Spread | None], sums: Sums
    ) -> Evidence:
        values = self.data.block(inputs)
        op, contract = self.data.op, self.contract
        answers = op.answers(contract, values, sums)

        def failed_by(outputs: dict[str, Floats]) -> list[str]:
            parts = []
            for answer in answers:
                got = outputs[answer.name]
                if self.rests_on == "contract":
                    tolerance = gates.contract_tolerance(
                        op.table, contract.format, answer.row.name, self.data.shape[1]
                    )
                    largest = float(np.abs(np.nan_to_num(answer.r1)).max(initial=0.0))
                    if not gates.contract_gate(got, answer.r1, largest, tolerance).ok.all():
                        parts.append("contract")
                    continue
                if not answer.right(got).all():
                    parts.append("interval")
                spread = spreads.get(answer.name)
                if spread is not None:
                    q = row_squares(answer, got)
                    total = RmsSum(float(q.sum()), len(q))
                    if not total.rms <= rms_limit(spread, total.count):
                        parts.append("rms")
            return list(dict.fromkeys(parts))

        return Evidence(name, values, answers, failed_by)
