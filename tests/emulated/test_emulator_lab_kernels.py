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


@pytest.mark.slow
@pytest.mark.parametrize("capability", EMULATED, ids=lambda c: f"{c[0]}.{c[1]}")
@pytest.mark.parametrize("op", OPS)
def test_every_kernel_loads(op: str, capability: tuple[int, int]) -> None:
    device = EmulatedDevice(capability)
    loaded = 0
    for case in registry.cases(op):
        dims = _dims(case)
        if case.spec.build is None or case.refusal(capability, "emulated", dims):
            continue
        build = case.spec.build(case.variant, capability, dims)
        device.build(build, case.spec.params(case.variant))  # BuildError names what is missing
        loaded += 1
    assert loaded, "nothing of this op runs on this capability"


def _dims(case: registry.Case) -> dict[str, int]:
    """A size for every dim that the kernel's parameters name."""
    params = case.spec.params(case.variant)
    named = {p.name for p in params if p.role == "dim"}
    return dict.fromkeys(named | {d for p in params for d in p.dims}, SIZE)
