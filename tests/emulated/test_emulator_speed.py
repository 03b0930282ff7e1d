"""The device is fast enough to be used: processor time of whole kernels, best of three."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gpulab import registry
from gpulab.formats import encode, storage_dtype
from gpulab.runtime.emulated import EmulatedDevice

CAPABILITY = (8, 9)


def seconds(kernel: str, form: str, size: int, repeats: int) -> float:
    device = EmulatedDevice(CAPABILITY)
    dims = {"m": size, "n": size, "k": size}
    case = next(
        c for c in registry.cases("matmul", kernel=kernel, backend="raw", format=form)
        if c.variant.accumulator == "fp32"
    )  # fmt: skip
    assert case.spec.build is not None
    assert case.spec.plan is not None
    params = case.spec.params(case.variant)
    function = device.build(case.spec.build(case.variant, CAPABILITY, dims), params)
    rng = np.random.default_rng(0)
    arrays = {n: device.upload(encode(form, rng.standard_normal((size, size))), n) for n in "ab"}
    arrays["c"] = device.empty((size, size), storage_dtype(case.variant.output), name="c")
    arguments = [{**arrays, **dims}[p.name] for p in params]
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        device.launch(function, case.spec.plan(case.variant, CAPABILITY, dims), arguments)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "form", "size", "limit"),
    [
        ("simt", "fp32", 256, 0.25),
        ("mma", "fp16", 256, 1.0),
        pytest.param("mma", "fp16", 1024, 20.0, marks=pytest.mark.whole),
    ],
)
def test_time(kernel: str, form: str, size: int, limit: float) -> None:
    assert seconds(kernel, form, size, 3 if size < 1024 else 1) < limit
