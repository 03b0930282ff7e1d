"""What ncu_counters.py compares: kernels of the lab, and probes of one memory instruction each."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpulab import registry
from gpulab.formats import encode
from gpulab.registry import Capability, LaunchPlan, Param, RawBuild
from gpulab.runtime.device import POISONS, Device

PROBE_SOURCE = Path(__file__).resolve().parent / "counter_probes.cu"
LAB = (("raw", "simt"), ("numba", "simt"), ("raw", "blocked"), ("raw", "mma"))
SHAPE = {"m": 160, "n": 144, "k": 208}
PROBES = (
    *(("load_step", step) for step in (1, 2, 64)),
    *(("store_step", step) for step in (1, 2, 64)),
    *(("load_float4", step) for step in (1, 0)),
    *(("load_float2", step) for step in (1, 2)),
    *(("shared_step", step) for step in (1, 2, 32, 33, 0)),
    *(("shared_float2", step) for step in (1, 2, 16, 0)),
    *(("shared_float4", step) for step in (1, 2, 8, 0)),
    *(("shared_half", step) for step in (1, 2, 64)),
    *(("matrix_rows", step) for step in (16, 64, 128, 144)),
    *(("async_copy", step) for step in (1, 2, 3, 5, 8)),
    *(("async_rows", step) for step in (5, 6, 8)),
)
"""Kernels of counter_probes.cu with their run-time step."""


@dataclass(frozen=True)
class Work:
    """One launch: what to build, how to launch it, on what."""

    label: str
    lab: bool
    symbol: str
    build: Any
    params: tuple[Param, ...]
    plan: LaunchPlan
    arguments: dict[str, Any]


def _lab_work(capability: Capability) -> list[Work]:
    rng = np.random.default_rng(7)
    a = rng.standard_normal((SHAPE["m"], SHAPE["k"]))
    b = rng.standard_normal((SHAPE["k"], SHAPE["n"]))
    found = []
    for backend, name in LAB:
        for case in registry.cases("matmul", kernel=name, backend=backend):
            spec, variant = case.spec, case.variant
            if backend == "numba" and importlib.util.find_spec("numba") is None:
                continue
            if case.refusal(capability, "emulated", SHAPE) is not None or variant.lesson:
                continue
            assert spec.build is not None
            assert spec.plan is not None
            build = spec.build(variant, capability, SHAPE)
            symbol = build.entry if isinstance(build, RawBuild) else build.make().__name__
            stored = {"a": encode(variant.format, a), "b": encode(variant.format, b)}
            found.append(
                Work(
                    case.label,
                    True,
                    re.split(r"[<(]", symbol)[0].rpartition("::")[2],
                    build,
                    spec.params(variant),
                    spec.plan(variant, capability, SHAPE),
                    stored | SHAPE,
                )
            )
    return found


def _probe_work(capability: Capability) -> list[Work]:
    found = []
    for entry, step in PROBES:
        if capability < (8, 0) and entry.startswith("async"):
            continue
        # Global probes run two blocks of 96 threads, shared ones a single warp.
        plan = LaunchPlan((1, 1, 1), (32, 1, 1))
        if entry.startswith(("load", "store")):
            plan = LaunchPlan((2, 1, 1), (96, 1, 1))
        size = 192 * 64
        params = (
            Param("x", "in", "fp32", ("n",)),
            Param("y", "out", "fp32", ("m",)),
            *(Param(name, "dim", "int32") for name in ("n", "m", "step")),
        )
        arguments = {"x": np.arange(size, dtype=np.float32), "n": size, "m": size, "step": step}
        build = RawBuild(str(PROBE_SOURCE), entry)
        found.append(Work(f"probe/{entry} {step}", False, entry, build, params, plan, arguments))
    return found


def works(capability: Capability) -> list[Work]:
    """Every launch that is compared, in order."""
    return _lab_work(capability) + _probe_work(capability)


def launch(device: Device, work: Work) -> dict[str, Any] | None:
    """Run one; returns the emulated device's counters."""
    function = device.build(work.build, work.params)
    arguments: list[Any] = []
    for param in work.params:
        if param.role == "out":
            shape = tuple(work.arguments[d] for d in param.dims)
            arguments.append(device.empty(shape, param.dtype, POISONS[0], param.name))
        elif param.role == "in":
            arguments.append(device.upload(work.arguments[param.name], param.name))
        else:
            arguments.append(work.arguments[param.name])
    report = device.launch(function, work.plan, arguments)
    device.synchronize()
    device.free(
        *(a for a, p in zip(arguments, work.params, strict=True) if p.role in ("in", "out"))
    )
    return report.counters
