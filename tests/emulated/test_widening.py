"""add, sub and fma of halves and a float32, which code for 10.0 and later uses."""

from fractions import Fraction

import numpy as np
import pytest
from ptxcase import instruction
from roundings import BF16, F16, F32

from gpulab import registry
from gpulab.lab import evaluate
from gpulab.runtime.emulated import EmulatedDevice

FORMS = {"f16": F16, "bf16": BF16}
EXACT = {
    "add": lambda a, c: a + c,
    "sub": lambda a, c: a - c,
    "fma": lambda a, b, c: a * b + c,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("base", EXACT)
def test_the_exact_result_is_rounded_once_to_float32(base, form):
    rng = np.random.default_rng(7)
    binary, count = FORMS[form], 400
    finite = [b for b in range(1 << 16) if isinstance(binary.value(b), Fraction)]
    halves = [
        rng.choice(np.array(finite, np.uint16), count) for _ in range(2 if base == "fma" else 1)
    ]
    scale = np.ldexp(1.0, rng.integers(-40, 20, count))
    last = (rng.standard_normal(count) * scale).astype(np.float32)
    got = instruction(f"{base}.rn.f32.{form}", [*halves, last], np.uint32, capability=(10, 0))
    for i in range(count):
        operands = [binary.value(int(h[i])) for h in halves] + [Fraction(float(last[i]))]
        want = EXACT[base](*operands)
        if want:  # the sign of an exact zero is another test's
            assert int(got[i]) == F32.round(want, "rn"), (base, operands)


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
