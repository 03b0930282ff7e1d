"""What doing it right costs: every lesson of an operation against its twin, measured.

A lesson and its twin differ in the mistake and in nothing else, so that the difference in work is
what the stabilisation costs. Counted on the emulated device, timed with CUDA events on a card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpulab import registry
from gpulab.explain.traffic import anywhere
from gpulab.lab import evaluate, measure
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.cache import Cache
from gpulab.ops import formulas
from gpulab.registry import Case
from gpulab.runtime.device import Device

RUNS, WARMUP = 10, 3
COUNTED = {"instructions": "instructions", "global_sector_bytes": "bytes asked of L1"}
"""Counters that are compared, and what they count."""


@dataclass(frozen=True)
class Cost:
    """One stabilisation.

    Args:
        mistake: what the lesson does wrong.
        lesson: the lesson's label.
        twin: the label of the kernel without the mistake.
        wrong: measured of the lesson, by quantity.
        right: the same of its twin.
    """

    mistake: str
    lesson: str
    twin: str
    wrong: dict[str, float]
    right: dict[str, float]

    def ratio(self, quantity: str) -> float:
        """The twin's work over the lesson's: 1.1 is ten percent more for being right."""
        return self.right[quantity] / self.wrong[quantity]


def pairs(case: Case) -> Iterator[tuple[Case, Case]]:
    """The lessons that tell what this row does right (or wrong, if it is one), with their twins.

    A lesson of another kernel tells it where operation and contract are the same; of each kernel's
    rows the one of this format is taken, or the first.
    """
    for spec in registry.specs(case.spec.op):
        lessons = [v for v in spec.variants if v.lesson]
        if not lessons or (case.variant.lesson and spec is not case.spec):
            continue
        if case.variant.lesson:
            lessons = [case.variant]
        same = [v for v in lessons if v.format == case.variant.format] or lessons
        if same[0].contract not in ("", case.variant.contract):
            continue
        twin = _twin(Case(spec, same[0]))
        if twin is not None and (spec.twin or spec is case.spec):
            yield Case(spec, same[0]), twin


def _twin(lesson: Case) -> Case | None:
    """The row that a lesson is without its mistake."""
    v, spec = lesson.variant, lesson.spec
    if spec.twin:
        spec = next(
            s for s in registry.specs(spec.op) if (s.backend, s.name) == (spec.backend, spec.twin)
        )
    for other in spec.variants:
        if not other.lesson and (other.format, other.output) == (v.format, v.output):
            return Case(spec, other)
    return None


def costs(case: Case, device: Device) -> tuple[Cost, ...]:
    """Measure every pair of a row on a device.

    Raises:
        GpulabError: a kernel does not build, or faults.
    """
    size = formulas.sizes(case.spec.op)
    dims = size.timed if device.kind == "cuda" else size.small
    found = [
        (wrong, right)
        for wrong, right in pairs(case)
        if right.refusal(device.target, device.kind, dims) is None
    ]
    every = {c.label: anywhere(c) for pair in found for c in pair}
    ready = [
        (KernelRunner(c, device, dims), evaluate.identity(c, device, dims)) for c in every.values()
    ]
    if device.kind == "cuda":
        measure.time_rows(ready, seed=0, runs=RUNS, warmup=WARMUP, cache=Cache())
    else:
        measure.count_rows(ready, seed=0, cache=Cache())
    measured = dict(zip(every, (_quantities(record) for _, record in ready), strict=True))
    return tuple(
        Cost(
            wrong.spec.idea if wrong.spec.twin else wrong.variant.note,
            wrong.label,
            right.label,
            measured[wrong.label],
            measured[right.label],
        )
        for wrong, right in found
    )


def _quantities(record: evaluate.Record) -> dict[str, float]:
    if record["time_ms"] is not None:
        return {"milliseconds": float(record["time_ms"]["median"])}
    return {name: float(record["counters"][key]) for key, name in COUNTED.items()}
