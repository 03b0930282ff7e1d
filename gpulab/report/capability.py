"""Which number formats the tensor cores of a capability multiply, with instruction and reason.

A yes means that the lab's kernels reach it there: by ``mma.sync``, and on sm_90 by ``wgmma`` too.
On a device the yes is proven by ``gpulab.report.probe``; without one it rests on the format rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpulab import arch
from gpulab.formats import Format, Path, get
from gpulab.numerics import tensorcore
from gpulab.registry import Capability
from gpulab.report.probe import ProbeResult

FAMILIES: dict[str, tuple[str, ...]] = {
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "tf32": ("tf32",),
    "fp8": ("e4m3", "e5m2"),
    "fp4": ("e2m1",),
}
"""A line of the report -> the formats it stands for."""

PROBED = tuple(name for names in FAMILIES.values() for name in names)
"""The formats whose product is executed on a device."""


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Args:
        name: ``fp16``, ``bf16``, ``tf32``, ``fp8`` or ``fp4``.
        supported: whether the lab's tensor-core kernels multiply it there.
        instructions: what does, by family; for a no, what would elsewhere.
        reason: why, in words.
        accumulator: how the sums are kept, one text an instruction; empty for a no.
        proof: results of the executed products; empty where nothing was executed.
    """

    name: str
    supported: bool
    instructions: tuple[str, ...]
    reason: str
    accumulator: tuple[str, ...] = ()
    proof: tuple[ProbeResult, ...] = ()

    @property
    def status(self) -> str:
        """``executed``, ``emulated``, ``mismatch``, ``not run``; ``table`` without a device."""
        for worst in ("mismatch", "not run", "executed", "emulated"):
            if any(result.status == worst for result in self.proof):
                return worst
        return "table"

    def to_json(self, capability: Capability) -> dict[str, Any]:
        """The line as JSON-able data."""
        return {
            "schema": 1,
            "kind": "capability",
            "capability": arch.dotted(capability),
            "format": self.name,
            "supported": self.supported,
            "instructions": list(self.instructions),
            "reason": self.reason,
            "accumulator": list(self.accumulator),
            "status": self.status,
            "proof": [result.to_json() for result in self.proof],
        }


def capability_report(
    capability: Capability, executed: Mapping[str, ProbeResult] | None = None
) -> list[Line]:
    """A line a format family.

    Args:
        capability: of the card, or of the emulated device.
        executed: results of ``run_probes`` on a device of that capability, by format name.

    Raises:
        UsageError: a capability the lab does not know.
    """
    arch.get(capability)
    return [
        _line(name, [get(f) for f in formats], capability, executed or {})
        for name, formats in FAMILIES.items()
    ]


def _line(
    name: str, rows: list[Format], capability: Capability, executed: Mapping[str, ProbeResult]
) -> Line:
    first = rows[0]
    path = first.path("mma.sync", capability)
    if path is None:
        return _refusal(name, first, capability)
    wgmma = first.path("wgmma", capability)
    paths = [p for p in (path, wgmma) if p is not None]
    every = [row.path(p.family, capability) for p in paths for row in rows]
    reason = f"mma.sync has it from {first.paths[0].target}"
    model = _model(path, capability)
    through_fp16 = model is not None and model.route == "through_fp16"
    if through_fp16:
        reason += (
            f"; {arch.sm(capability)} emulates mma.sync {name} through fp16 (operands widened, two "
            "fp16 blocks)"
        )
    if wgmma is not None:
        native = "native " if through_fp16 else ""
        reason += f"; {native}wgmma on {wgmma.target}"
    elif first.path("tcgen05", capability) is not None:
        reason += "; tcgen05.mma has it too, which the lab does not run"
    if first.container_shift:
        reason += f"; the low {first.container_shift} bits of the 32-bit operands are ignored"
    proof = tuple(executed[row.name] for row in rows if row.name in executed)
    return Line(
        name,
        True,
        tuple(p.instruction for p in every if p is not None),
        reason,
        accumulators(paths, capability),
        proof,
    )


def _refusal(name: str, row: Format, capability: Capability) -> Line:
    lowest = row.paths[0]
    needs = f"needs {lowest.target} or newer"
    other = row.path("tcgen05", capability)
    if other is None:
        return Line(name, False, (lowest.instruction,), needs)
    reason = (
        f"no mma.sync for it on {arch.sm(capability)}: the card reaches {name} through another "
        f"instruction family, {other.instruction}, which the lab does not run; mma.sync {needs}"
    )
    return Line(name, False, (other.instruction,), reason)


def accumulators(paths: list[Path], capability: Capability) -> tuple[str, ...]:
    """How the instructions keep their sums there, from the arithmetic model, and the evidence.

    One text each, or one for several that do the same.
    """
    families: dict[str, list[str]] = {}
    for path in paths:
        families.setdefault(_accumulator(path, capability), []).append(path.family)
    return tuple(f"{', '.join(names)}: {text}" for text, names in families.items())


def _accumulator(path: Path, capability: Capability) -> str:
    model = _model(path, capability)
    if model is None:
        return f"accumulator width of {arch.sm(capability)} is not known"
    block = f"blocks of {model.block} products cut to {model.fraction_bits} fraction bits"
    if model.route == "through_fp16":
        text = f"fp32 accumulator (fp16 {block}; C added once, rounded to nearest)"
    elif model.result == "rz_e8m13":
        kept = model.fraction_bits + 1
        text = f"{kept}-bit accumulator (e8m{model.fraction_bits}, truncated; {block})"
    else:
        text = f"fp32 accumulator (truncated; {block})"
    known = model.note.startswith(model.verified)
    return f"{text} [{model.note if known else f'{model.verified}: {model.note}'}]"


def _model(path: Path, capability: Capability) -> tensorcore.DotModel | None:
    if capability not in tensorcore.CAPABILITIES:
        return None
    return tensorcore.model(path.instruction, capability)
