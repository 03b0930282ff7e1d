"""Everything ``gpulab explain`` says about one row of the lab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpulab import arch, ops
from gpulab.errors import UsageError
from gpulab.explain import claims as declared
from gpulab.explain import cost as costs
from gpulab.explain import resources, risks
from gpulab.explain import traffic as memory
from gpulab.explain.claims import Claim
from gpulab.explain.cost import Cost
from gpulab.explain.flow import Flow
from gpulab.explain.places import chains
from gpulab.explain.resources import Resources
from gpulab.explain.risks import Risk
from gpulab.explain.steps import Steps
from gpulab.explain.traffic import Traffic
from gpulab.numerics.contract import Contract
from gpulab.numerics.split import TF32_SPLIT
from gpulab.ops import formulas
from gpulab.ops.attention_contract import AttentionContract
from gpulab.ops.formulas import Line
from gpulab.ops.rows_formula import RowFormula
from gpulab.registry import Capability, Case
from gpulab.runtime.device import Device


@dataclass(frozen=True)
class Analysis:
    """What the compiled object shows.

    Args:
        claims: facts of the declaration, held against it.
        risks: the risk table.
    """

    claims: tuple[Claim, ...]
    risks: tuple[Risk, ...]


@dataclass(frozen=True)
class Explanation:
    """What is known of a row.

    Args:
        case: the row.
        capability: for which it was compiled.
        lines: its formula.
        bound: the arithmetic of the error it may have.
        analysis: of the compiled object; None for a library row.
        traffic: passes over memory; None where they cannot be counted.
        uncounted: why not.
        resources: per capability.
        costs: of each stabilisation.
        measured_on: the device of ``costs``.
    """

    case: Case
    capability: Capability
    lines: tuple[Line, ...]
    bound: str
    analysis: Analysis | None
    traffic: Traffic | None
    uncounted: str
    resources: tuple[Resources, ...]
    costs: tuple[Cost, ...]
    measured_on: str

    @property
    def amiss(self) -> tuple[str, ...]:
        """What the compiled kernel does that it should not; empty where it is as declared."""
        if self.analysis is None:
            return ()
        found = [
            f"{c.what}: declared {c.declared}, compiled {c.compiled}"
            for c in self.analysis.claims
            if not c.agrees
        ]
        found += [
            f"{r.step}: {r.risk} ({r.size}), and nothing against it, at "
            + ", ".join(map(str, r.places))
            for r in self.analysis.risks
            if r.taken
        ]
        return tuple(found)

    def to_record(self) -> dict[str, Any]:
        """The JSON object."""
        spec, v = self.case.spec, self.case.variant
        return {
            "schema": 1,
            "op": spec.op,
            "kernel": spec.name,
            "backend": spec.backend,
            "format": v.format,
            "accumulator": v.accumulator,
            "output": v.output,
            "contract": v.contract,
            "instruction": v.instruction(self.capability),
            "lesson": v.lesson,
            "capability": arch.dotted(self.capability),
            "idea": spec.idea,
            "note": v.note,
            "source": spec.source,
            "formula": [asdict(line) for line in self.lines],
            "bound": self.bound,
            "amiss": list(self.amiss),
            "uncounted": self.uncounted,
            "measured_on": self.measured_on,
            **self._measured(),
        }

    def _measured(self) -> dict[str, Any]:
        analysis, traffic = self.analysis, self.traffic
        return {
            "claims": [asdict(c) | {"agrees": c.agrees} for c in analysis.claims]
            if analysis
            else None,
            "risks": [
                asdict(r)
                | {"taken": r.taken, "places": [asdict(p) | {"text": p.text} for p in r.places]}
                for r in analysis.risks
            ]
            if analysis
            else None,
            "traffic": asdict(traffic) if traffic else None,
            "resources": [
                asdict(r) | {"capability": arch.dotted(r.capability)} for r in self.resources
            ],
            "stabilisations": [
                asdict(c) | {"ratio": {q: c.ratio(q) for q in c.right}} for c in self.costs
            ],
        }


def capability_for(case: Case, device: Device, asked: bool) -> Capability:
    """For which capability a row is compiled: the device's, or where it was not asked for the
    nearest that has the row.

    Raises:
        UsageError: the row does not run on the capability asked for.
    """
    refusal = case.refusal(device.target, "cuda")
    if refusal is None:
        return device.target
    if asked:
        raise UsageError(f"{case.label}: {refusal}", fix="leave --capability out")
    above = [c for c in arch.EMULATED if case.refusal(c, "cuda") is None]
    return min(above, key=lambda c: (c < device.target, c))


def analyse(case: Case, capability: Capability, lines: Sequence[Line]) -> Analysis:
    """Read the compiled object of a row.

    Raises:
        BuildError: it does not compile.
    """
    spec, variant = case.spec, case.variant
    params = spec.params(variant) if spec.own_params is None else spec.own_params(variant)
    code = resources.compiled(case, capability, formulas.sizes(spec.op).small)
    steps = Steps(Flow.of(code, params), chains(code))
    found = declared.claims(case, capability, lines, steps, params)
    # Of a split product the large sum is promoted; the one that tensor cores keep is the small one.
    promotion = None if variant.contract == TF32_SPLIT else variant.promotion
    table = risks.table(steps.shown, found, variant.format, promotion)
    return Analysis(found, table)


def explain(case: Case, device: Device, capability: Capability) -> Explanation:
    """Everything about a row; costs are measured on the device.

    Raises:
        GpulabError: a kernel does not build, or faults.
    """
    op = case.spec.op
    lines = formulas.of(op, case.variant, capability)
    compiles = case.spec.build is not None
    uncounted = _uncounted(case, capability)
    return Explanation(
        case,
        capability,
        lines,
        bound(case, capability),
        analyse(case, capability, lines) if compiles else None,
        None if uncounted else memory.traffic(case, modelled(capability)),
        uncounted,
        resources.table(case, formulas.sizes(op).small) if compiles else (),
        costs.costs(case, device),
        device.name,
    )


def _uncounted(case: Case, capability: Capability) -> str:
    if case.spec.build is None:
        return "a library's kernel is not the lab's to count"
    dims = formulas.sizes(case.spec.op).small
    return memory.anywhere(case).refusal(modelled(capability), "emulated", dims) or ""


def modelled(capability: Capability) -> Capability:
    """The emulated device that stands for a card: of its capability or the nearest lower one."""
    return max(c for c in arch.EMULATED if c <= capability)


def bound(case: Case, capability: Capability) -> str:
    """The arithmetic of the error that the contract of a row allows, at the small dims."""
    operation = ops.get(case.spec.op)
    dims = formulas.sizes(case.spec.op).small
    if isinstance(operation, RowFormula):
        return operation.explain(operation.contract(case.variant), dims["cols"])
    if case.spec.op == "attention":
        contract = AttentionContract.of(case.variant, capability)
        return contract.explain(dims["head_dim"], dims["seq_k"])
    return Contract.of(case.variant, capability).allowance(operation.terms(dims)).text
