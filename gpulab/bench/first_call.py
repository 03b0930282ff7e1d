"""What a kernel costs the host: its first call, which compiles, and every later one.

The first call begins with an empty compile cache and ends with the result on the host; the cached
one is a new device that finds the code on disk. Later calls are what queueing a launch takes, with
nothing waited for, and what it takes when the arguments are new and must be checked again.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpulab import ops
from gpulab.lab.evaluate import identity
from gpulab.lab.runner import KernelRunner
from gpulab.ops.base import RunResult
from gpulab.registry import Case, Dims
from gpulab.runtime.cache import Store
from gpulab.runtime.device import Device
from gpulab.runtime.summary import summarize

Record = dict[str, Any]
_QUEUED = 20
"""Launches queued before the card is waited for: fewer than it takes to fill its queue."""


def measure(
    open_device: Callable[[Store], Device],
    case: Case,
    dims: Dims,
    *,
    seed: int = 0,
    rounds: int = 10,
    host_ms: Callable[[], float] = lambda: time.perf_counter() * 1e3,
) -> Record:
    """One record: ``first_ms``, ``cached_ms``, ``launch_us`` and ``call_us``.

    Args:
        open_device: a device that compiles into the given cache.
        case: the row.
        dims: of the problem.
        seed: of the inputs.
        rounds: of launches and of calls.
        host_ms: the host's clock.

    Raises:
        UsageError: the row cannot run there.
        GpulabError: it does not build, or faults.
    """
    inputs = ops.get(case.spec.op).stored_inputs(case.variant, dims, "normal", seed)
    with tempfile.TemporaryDirectory(prefix="gpulab-first-call-") as folder:
        store, took, results = Store(Path(folder)), [], []
        for _ in range(2):
            device = open_device(store)
            begun = host_ms()
            runner = KernelRunner(case, device, dims)
            results.append(runner(inputs))
            took.append(host_ms() - begun)
        launch_us, call_us = _later(runner, inputs, rounds, host_ms)
    same = _equal(*results)
    return identity(case, device, dims) | {
        "kind": "first_call",
        "inputs": {"family": "normal", "seed": seed},
        "verdict": "PASS" if same else "FAIL",
        "reason": None if same else "the second call gave other bits than the first",
        "first_ms": took[0],
        "cached_ms": took[1],
        "launch_us": asdict(summarize(launch_us)),
        "call_us": asdict(summarize(call_us)),
    }


def _later(
    runner: KernelRunner, inputs: dict[str, Any], rounds: int, host_ms: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Microseconds of a bound launch, and of binding and launching."""
    arrays = {**runner.upload(inputs), **runner.outputs()}
    launch = runner.bind(arrays)
    queued, called = [], []
    try:
        for _ in range(rounds):
            runner.device.synchronize()
            begun = host_ms()
            for _ in range(_QUEUED):
                launch()
            queued.append((host_ms() - begun) * 1e3 / _QUEUED)
            runner.device.synchronize()
            taken = []
            for _ in range(_QUEUED):
                begun = host_ms()
                runner.bind(arrays)()
                taken.append((host_ms() - begun) * 1e3)
            called.append(statistics.median(taken))
        runner.device.synchronize()
    finally:
        runner.device.free(*arrays.values())
    return queued, called


def _equal(one: RunResult, other: RunResult) -> bool:
    return all(
        np.array_equal(one.outputs[name].view(np.uint8), other.outputs[name].view(np.uint8))
        for name in one.outputs
    )
