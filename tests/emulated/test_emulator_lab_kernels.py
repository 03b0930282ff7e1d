"""Every kernel of the lab, compiled for every capability: no instruction is without an emulation.

A kernel with an instruction that is not implemented fails here by its name and line, before any
user meets it.
"""

from __future__ import annotations

import pytest

from gpulab import registry
from gpulab.arch import EMULATED
from gpulab.runtime.emulated import EmulatedDevice

SIZE = 64
OPS = sorted({spec.op for spec in registry.specs()})
CASES = [case for op in OPS for case in registry.cases(op) if case.spec.build is not None]


def name(case: registry.Case) -> str:
    variant = case.variant
    words = (case.spec.op, case.spec.backend, case.spec.name, variant.format, variant.accumulator)
    return "-".join((*words, variant.output, variant.contract)).rstrip("-")


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_kernel_loads_wherever_it_runs(case: registry.Case) -> None:
    """One kernel a test: what Numba lowers for one capability serves the others."""
    assert case.spec.build is not None
    for capability in _runs_on(case):
        device = EmulatedDevice(capability)
        build = case.spec.build(case.variant, capability, _dims(case))
        device.build(build, case.spec.params(case.variant))  # BuildError names what is missing


@pytest.mark.parametrize("capability", EMULATED, ids=lambda c: f"{c[0]}.{c[1]}")
@pytest.mark.parametrize("op", OPS)
def test_every_op_runs_on_every_capability(op: str, capability: tuple[int, int]) -> None:
    assert any(case.spec.op == op and capability in _runs_on(case) for case in CASES)


def _runs_on(case: registry.Case) -> list[tuple[int, int]]:
    return [c for c in EMULATED if not case.refusal(c, "emulated", _dims(case))]


def _dims(case: registry.Case) -> dict[str, int]:
    """A size for every dim that the kernel's parameters name."""
    params = case.spec.params(case.variant)
    named = {p.name for p in params if p.role == "dim"}
    return dict.fromkeys(named | {d for p in params for d in p.dims}, SIZE)
