"""Runs a product kernel on families and probes and collects what every check says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpulab.numerics import gates, mutants, power, probes, structure
from gpulab.numerics.inputs import Family, get_family
from gpulab.numerics.mutants import Mutant
from gpulab.numerics.power import Certificate, Evidence
from gpulab.numerics.reference import Block
from gpulab.numerics.simulate import to_output
from gpulab.numerics.verdict import FamilyResult, Judgement, ProbeResult, Reason
from gpulab.ops.judging import Asked, JudgedCase
from gpulab.ops.matmul_data import Data, FamilyData, ProbeData
from gpulab.ops.matmul_measure import measure

Floats = NDArray[np.float64]

_LOOKS_LIKE = 0.9
"""Share of equal elements from which a wrong result is said to look like a mutant's."""


class Case(JudgedCase):
    """One kernel at one size.

    Args:
        asked: how it is judged.
        data: inputs and references under its contract.
        families: the first is run twice.
    """

    standard: ClassVar[Sequence[Mutant]] = mutants.STANDARD
    """The mutants that the gates must fail."""

    def __init__(self, asked: Asked, data: Data, families: Sequence[str | Family]) -> None:
        m, n, _ = data.mnk
        contract = data.contract
        super().__init__(asked, {"c": ((m, n), contract.store(np.zeros(1)).dtype)})
        self.contract, self.data = contract, data
        self.families = [get_family(f) for f in families]
        self.mutants = (*self.standard, *(mutants.SPLIT if contract.split else ()))

    def judge(self) -> Judgement:
        """Run everything and put it together."""
        results = [self._family(i, family) for i, family in enumerate(self.families)]
        found = self.data.probes(self.effort) if self.rests_on == "both" else []
        probed = [self._probe(one) for one in found]
        ref = self.data.family(self.families[0]).reference
        return Judgement(
            families=tuple(results),
            probes=tuple(probed),
            power=self._power(found),
            structure=tuple(self.structure),
            coverage=ref.coverage,
            coverage_text=ref.text,
            arithmetic_text=self.contract.allowance(self.data.dims["k"]).text,
            runs=self.runs,
            rests_on=self.rests_on,
            notes=tuple(self.notes),
        )

    def _family(self, number: int, family: Family) -> FamilyResult:
        data, values = self.data.family(family), None
        got = self.launch_family(number, data.stored, family.name)
        if got is not None:
            values = self.contract.values(got["c"])
            self.note(structure.check_finite(values, self._may_overflow(data)), family.name)
        self.check_rounding(self.contract.format, data.share, family.name)
        return measure(
            self.contract,
            data,
            self.data.spread(family),
            values,
            family.name,
            self.data.seed,
            self.data.dims["k"],
        )

    def _may_overflow(self, data: FamilyData) -> bool:
        """Whether a right answer (with twice the sampled |A||B|) could exceed the output."""
        row = self.contract.output_row
        if row is None:
            return False
        largest = max(float(patch.s.max()) for patch in data.reference.patches)
        return not 2 * largest < row.max_finite

    def _probe(self, one: ProbeData) -> ProbeResult:
        probe, reasons = one.probe, []
        got = self.launch(probe.inputs, probe.name)
        wrong = checked = 0
        if got is None:
            m, n, _ = self.data.mnk
            reasons.append(Reason("exact-probe", f"{probe.name}: no result to compare"))
            return ProbeResult(probe.name, probe.about, m * n, m * n, tuple(reasons))
        values = self.contract.values(got["c"])
        for patch in one.reference.patches:
            mine = np.asarray(patch.of(values))
            right = to_output(self.contract, patch.r1)
            if probe.finite:
                bad = ~(mine == right)
            else:
                self.note(structure.check_kinds(mine, right), probe.name)
                allowed = self.contract.allowance(self.data.dims["k"])
                d = allowed.relative * patch.s.astype(np.float64) + allowed.absolute
                bad = ~gates.interval(mine, patch.r1, d, self.contract.output_row).ok
            wrong, checked = wrong + int(bad.sum()), checked + bad.size
            at = structure.first_index(bad)
            if at is not None and not reasons:
                index = patch.index(at[0], at[1])
                text = f"{probe.name}{[*index]}: got {mine[at]:.9g}, exactly {right[at]:.9g}"
                if probe.name == "one_hot":
                    row = values[index[0]]
                    text += f"; {probes.locate(probe, self.contract.format, index[0], row)}"
                reasons.append(Reason("exact-probe", text, index, probe.name))
        if reasons and probe.name.startswith("exact"):
            self._looks_like(one, values)
        return ProbeResult(probe.name, probe.about, wrong, checked, tuple(reasons))

    def _looks_like(self, one: ProbeData, values: Floats) -> None:
        """Note the mutants whose bits on the probe are (nearly) the kernel's."""
        block = one.block
        mine = values[np.ix_(block.rows, block.cols)]
        for mutant in self.mutants:
            if mutant.refused(self.contract, block) is None:
                share = float(np.mean(mine == mutant.compute(self.contract, block)))
                if share >= _LOOKS_LIKE:
                    self.notes.append(
                        f"on {one.probe.name} {share:.0%} of the bits are those of the mutant "
                        f"{mutant.name} ({mutant.about})"
                    )

    def _power(self, found: Sequence[ProbeData]) -> tuple[Certificate, ...]:
        """The certificate of these inputs under this contract, computed once a run."""

        def make() -> tuple[Certificate, ...]:
            evidence = [self._evidence(family) for family in self.families]
            for one in found:
                if one.probe.name.startswith("exact"):
                    name = one.probe.name
                    evidence.append(power.probe_evidence(name, self.contract, one.block))
            thorough = self.effort == "full"
            return power.certify(self.contract, evidence, self.mutants, thorough)

        key = (self.contract, tuple(self.families), self.effort, self.rests_on)
        return self.data.cached("power", *key, make=make)

    def _evidence(self, family: Family) -> Evidence:
        block = self.data.block(family)
        if self.rests_on == "both":
            spread = self.data.spread(family)
            return power.family_evidence(family.name, self.contract, block, spread)
        data, k = self.data.family(family), self.data.dims["k"]
        r0 = self._block_r0(family, data, block)
        tolerance = gates.contract_tolerance(
            "matmul", self.contract.format, self.contract.output, k
        )

        def failed_by(values: Floats) -> list[str]:
            ok = gates.contract_gate(values, r0, data.largest, tolerance).ok
            return [] if ok.all() else ["contract"]

        return Evidence(family.name, block, failed_by)

    def _block_r0(self, family: Family, data: FamilyData, block: Block) -> Floats:
        """R0 on a block; for integers R1 as int32 holds it."""
        if self.contract.exact:
            return to_output(self.contract, block.r1)
        if data.reference.coverage == 1.0:
            r0: Floats = data.reference.patches[0].r0[np.ix_(block.rows, block.cols)]
            return r0
        original = self.data.op.make_inputs(
            self.data.dims, family, self.contract.format, self.data.seed
        )
        a0, b0 = original["a"][block.rows], original["b"][:, block.cols]
        return a0.astype(np.float64) @ b0.astype(np.float64)
