"""Every kernel of the lab under race detection: no alarm, at sizes that leave tails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpulab import registry
from gpulab.formats import encode
from gpulab.runtime.device import POISONS
from gpulab.runtime.emulated import EmulatedDevice

CAPABILITY = (8, 9)
SIZES = {"m": 70, "n": 67, "k": 45, "batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 37} | {
    "seq_k": 70, "head_dim": 40, "causal": 1, "window": 0, "bias_planes": 2, "mask_planes": 1,
    "rows": 5, "cols": 301,
}  # fmt: skip
SCALARS = {"eps": np.float32(1e-5), "ignore_index": np.int32(-100)}
LABELS = 40


def kernels() -> Iterator[registry.Case]:
    """The first variant of each kernel that runs here, lessons left out."""
    seen = set()
    for op in sorted({spec.op for spec in registry.specs()}):
        for case in registry.cases(op):
            spec, variant = case.spec, case.variant
            name = (op, spec.backend, spec.name)
            if name in seen or variant.lesson or spec.build is None or not dims(case):
                continue
            if case.refusal(CAPABILITY, "emulated", dims(case)) is None:
                seen.add(name)
                yield case


def dims(case: registry.Case) -> dict[str, int]:
    params = case.spec.params(case.variant)
    named = {p.name for p in params if p.role == "dim"} | {d for p in params for d in p.dims}
    return {name: SIZES[name] for name in named if name in SIZES}


def inputs(param: registry.Param, storage: str, rng: np.random.Generator) -> Any:
    shape = tuple(SIZES[d] for d in param.dims)
    if param.dtype == np.int32:
        return rng.integers(0, LABELS, shape).astype(np.int32)
    if param.dtype == np.int8 and storage != "int8":
        return rng.integers(0, 2, shape).astype(np.int8)
    values = rng.standard_normal(shape)
    return values.astype(np.float32) if param.dtype == np.float32 else encode(storage, values)


def test_every_op_is_among_them() -> None:
    assert {case.spec.op for case in kernels()} == {spec.op for spec in registry.specs()}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(kernels()), ids=lambda case: f"{case.spec.op}-{case.label}")
def test_no_alarm(case: registry.Case) -> None:
    device = EmulatedDevice(CAPABILITY, sanitize=True)
    spec, variant, rng = case.spec, case.variant, np.random.default_rng(0)
    assert spec.build is not None
    assert spec.plan is not None
    here = dims(case)
    function = device.build(spec.build(variant, CAPABILITY, here), spec.params(variant))
    arguments: list[Any] = []
    for param in spec.params(variant):
        shape = tuple(SIZES[d] for d in param.dims)
        if param.role == "out":
            arguments.append(device.empty(shape, param.dtype, POISONS[0], param.name))
        elif param.role == "in":
            arguments.append(device.upload(inputs(param, variant.format, rng), param.name))
        else:
            arguments.append(SIZES[param.name] if param.role == "dim" else SCALARS[param.name])
    device.launch(function, spec.plan(variant, CAPABILITY, here), arguments)
    device.free(*(a for a in arguments if hasattr(a, "handle")))
