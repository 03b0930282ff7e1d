"""Digests of output bits, by which the emulated device is held to equal the card.

A digest line is made on a card and committed; a test computes the same line on the emulated
device and compares. Inputs are hashed too, so that a difference of inputs is never mistaken for
one of arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab import registry
from gpulab.formats import encode
from gpulab.lab.runner import KernelRunner
from gpulab.registry import Case, Dims
from gpulab.runtime.device import Device

MATMUL_SIZES: tuple[dict[str, int], ...] = (
    {"m": 1, "n": 1, "k": 1},
    {"m": 17, "n": 33, "k": 65},
    {"m": 64, "n": 64, "k": 64},
    {"m": 130, "n": 70, "k": 200},
    {"m": 96, "n": 257, "k": 48},
)
"""Tails in every dim, one element, whole tiles, more than one tile, an odd row length."""


SIZES: dict[str, tuple[dict[str, int], ...]] = {"matmul": MATMUL_SIZES}
"""Sizes by op."""


def digest(array: NDArray[Any]) -> str:
    """SHA-256 of the raw bytes, first 16 hex digits."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def seeded_inputs(case: Case, dims: Dims, seed: int) -> dict[str, NDArray[Any]]:
    """Stored inputs: sign times lognormal, so that exponents spread and alignment matters."""
    rng = np.random.Generator(np.random.PCG64(seed))
    stored = {}
    for param in case.spec.params(case.variant):
        if param.role == "in":
            shape = tuple(dims[d] for d in param.dims)
            if param.format.startswith("int"):
                values = rng.integers(-128, 128, shape).astype(np.float64)
            else:
                values = rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(-6, 2, shape))
            stored[param.name] = encode(param.format, values, saturate=True)
    return stored


def digests(
    device: Device, op: str, sizes: Sequence[Mapping[str, int]], seed: int = 0
) -> Iterator[dict[str, Any]]:
    """One line for each kernel, variant and size that ``device`` (with its target) can run.

    Kernels that only a card runs are left out: there is nothing to hold to it.
    """
    for case in registry.cases(op):
        if case.spec.backend == "library" or case.spec.needs_card:
            continue
        if case.refusal(device.target, device.kind) is not None:
            continue
        for dims in sizes:
            if case.refusal(device.target, device.kind, dims) is None:
                yield digest_line(case, device, dims, seed)


def digest_line(case: Case, device: Device, dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Run once and hash: identity of the run, ``input_digest`` and ``output_digest``."""
    inputs = seeded_inputs(case, dims, seed)
    result = KernelRunner(case, device, dims)(inputs)
    v = case.variant
    return {
        "schema": 1,
        "op": case.spec.op,
        "kernel": case.spec.name,
        "backend": case.spec.backend,
        "format": v.format,
        "accumulator": v.accumulator,
        "output": v.output,
        "target": f"{device.target[0]}.{device.target[1]}",
        "dims": dict(dims),
        "seed": seed,
        "input_digest": digest(np.concatenate([a.view(np.uint8).ravel() for a in inputs.values()])),
        "output_digest": digest(
            np.concatenate([a.view(np.uint8).ravel() for a in result.outputs.values()])
        ),
    }
