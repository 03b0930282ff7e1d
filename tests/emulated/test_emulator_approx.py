"""The .approx instructions reach the tables of ``gpulab.numerics.approx``, bits in, bits out."""

from __future__ import annotations

import numpy as np
import pytest
from ptxcase import floats, instruction, run

from gpulab.errors import BuildError
from gpulab.numerics import approx

SINGLE = [
    "ex2.approx.f32", "ex2.approx.ftz.f32", "lg2.approx.f32", "lg2.approx.ftz.f32",
    "rcp.approx.ftz.f32", "rsqrt.approx.f32", "rsqrt.approx.ftz.f32", "sqrt.approx.ftz.f32",
]  # fmt: skip


@pytest.mark.parametrize("opcode", SINGLE)
def test_float32(opcode: str) -> None:
    a = floats(np.random.default_rng(1), 32, 2000).view(np.uint32)
    want = approx.evaluate(opcode, a)
    assert np.array_equal(instruction(opcode, [a], np.uint32), want)


def test_quotient() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(2000).astype(np.float32).view(np.uint32) for _ in range(2))
    got = instruction("div.approx.f32", [a, b], np.uint32)
    assert np.array_equal(got, approx.evaluate2("div.approx.f32", a, b))


@pytest.mark.parametrize("opcode", ["ex2.approx", "tanh.approx"])
def test_half_pairs(opcode: str) -> None:
    a = np.random.default_rng(3).integers(0, 1 << 32, 2000).astype(np.uint32)
    one = instruction(f"{opcode}.f16", [a.astype(np.uint16)], np.uint16)
    both = instruction(f"{opcode}.f16x2", [a], np.uint32)
    assert np.array_equal(both & 0xFFFF, one)
    assert np.array_equal(
        both >> 16, instruction(f"{opcode}.f16", [(a >> 16).astype(np.uint16)], np.uint16)
    )


def test_double_reciprocals_keep_the_upper_word() -> None:
    a = np.abs(floats(np.random.default_rng(4), 64, 1000))
    a = a[np.isfinite(a) & (a > 1e-300) & (a < 1e300)]
    for opcode, model in (("rcp", lambda x: 1 / x), ("rsqrt", lambda x: 1 / np.sqrt(x))):
        got = instruction(f"{opcode}.approx.ftz.f64", [a], np.float64)
        assert np.all(got.view(np.uint64) & np.uint64(0xFFFFFFFF) == 0)
        assert np.allclose(got, model(a), rtol=2.0**-19, atol=0)


def test_what_was_never_recorded_is_refused() -> None:
    with pytest.raises(BuildError, match=r"sin\.exact\.f32"):
        run("sin.exact.f32 %d, %a0;", [np.zeros(1, np.uint32)], np.uint32)
