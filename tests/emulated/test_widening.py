"""add, sub and fma of halves and a float32, which code for 10.0 and later uses."""

import pytest

from gpulab import registry
from gpulab.lab import evaluate
from gpulab.runtime.emulated import EmulatedDevice


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_layernorm_of_halves_in_numba_is_judged_right(capability):
    """Its PTX there holds ``add.rn.f32.f16``; the judge knows nothing of how it was added."""
    case = next(
        c for c in registry.cases("layernorm", backend="numba", format="fp16")
        if not c.variant.lesson
    )  # fmt: skip
    (record,) = evaluate.evaluate_all(
        [case], EmulatedDevice(capability), {"rows": 3, "cols": 100}, measured=False
    )
    assert record["verdict"] == "PASS", record["reason"]
