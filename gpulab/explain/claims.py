"""What a kernel declares, held against what it was compiled to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.explain import arithmetic
from gpulab.explain.flow import Flow
from gpulab.explain.steps import Step, Steps
from gpulab.ops import formulas
from gpulab.ops.formulas import Line
from gpulab.registry import Capability, Case, Param

_WGMMA_N = re.compile(r"^(wgmma\.m\d+)n\d+")
CUDA_CORES = "CUDA cores"


@dataclass(frozen=True)
class Claim:
    """One fact of the declaration.

    Args:
        what: the fact.
        declared: by the row, or by the operation for its contract.
        compiled: what the instructions show.
    """

    what: str
    declared: str
    compiled: str

    @property
    def agrees(self) -> bool:
        """Whether the compiled kernel keeps it."""
        return self.declared == self.compiled


def claims(
    case: Case, capability: Capability, lines: Sequence[Line], steps: Steps, params: Sequence[Param]
) -> tuple[Claim, ...]:
    """Every fact that both sides name."""
    return (
        _sums(case, steps),
        _instruction(case, capability, steps.flow),
        *_stored(params, steps.found),
        _reused(lines, steps),
        _arithmetic(case, steps.found),
    )


def _joined(names: set[str], otherwise: str) -> str:
    return ", ".join(sorted(names)) or otherwise


def _sums(case: Case, steps: Steps) -> Claim:
    kept = {s.format for s in steps.found if s.kind in ("sum", "lanes")}
    return Claim("running sums kept in", case.variant.accumulator, _joined(kept, "none found"))


def _instruction(case: Case, capability: Capability, flow: Flow) -> Claim:
    """The tensor-core instruction; of wgmma any tile's width, which dims decide."""

    def plain(name: str) -> str:
        return _WGMMA_N.sub(r"\1", name)

    found = {plain(arithmetic.matrix_name(i)) for i in flow.code if arithmetic.is_matrix(i)}
    declared = case.variant.instruction(capability)
    return Claim(
        "products by", CUDA_CORES if declared is None else plain(declared),
        _joined(found, CUDA_CORES),
    )  # fmt: skip


def _stored(params: Sequence[Param], steps: Sequence[Step]) -> list[Claim]:
    """The rounding of every output that is narrower than float32."""
    found = []
    for p in params:
        if p.role != "out" or not formulas.narrow(p.format):
            continue
        formats = {s.format for s in steps if s.kind == "rounding" and p.name in _outputs(s)}
        found.append(Claim(f"{p.name} rounded to", p.format, _joined(formats, "never rounded")))
    return found


def _outputs(step: Step) -> list[str]:
    return [part.removeprefix("stored in ") for part in step.what.split(", ")]


def _reused(lines: Sequence[Line], steps: Steps) -> Claim:
    """Roundings that are computed with again: how many in a row, and to which formats."""
    sides = (formulas.reused_casts(lines), steps.reused)
    declared, compiled = (
        f"{count} in a row, to {', '.join(formats)}" if count else "none"
        for count, formats in sides
    )
    return Claim("rounded and used again", declared, compiled)


def _arithmetic(case: Case, steps: Sequence[Step]) -> Claim:
    """In which formats numbers are computed outside sums."""
    narrow = {s.format for s in steps if s.kind == "arithmetic"}
    return Claim("computed in", "fp32", _joined(narrow | {"fp32"}, ""))
