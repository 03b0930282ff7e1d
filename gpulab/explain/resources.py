"""Registers, spills, shared memory and occupancy of a kernel, capability by capability."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpulab import arch
from gpulab.emulator.occupancy import occupancy
from gpulab.registry import Capability, Case, Dims
from gpulab.runtime import assembly
from gpulab.runtime.assembly import Code


@dataclass(frozen=True)
class Resources:
    """What one block takes of an SM.

    Args:
        capability: compiled for it.
        refusal: why there is nothing to say there; empty: there is.
        registers: per thread.
        spill_bytes: stored and loaded again per thread for want of registers.
        shared_bytes: per block, static and dynamic.
        threads: per block.
        blocks: resident on an SM.
        occupancy: resident warps over the most there can be.
        limited_by: the resources that allow no further block.
    """

    capability: Capability
    refusal: str = ""
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    threads: int = 0
    blocks: int = 0
    occupancy: float = 0.0
    limited_by: tuple[str, ...] = ()


def compiled(case: Case, capability: Capability, dims: Dims) -> Code:
    """A row's own kernel, compiled.

    Raises:
        BuildError: it does not compile.
        DeviceMissingError: a part of the toolchain is not installed.
    """
    spec, variant = case.spec, case.variant
    assert spec.build is not None, "a library row is compiled elsewhere"
    params = spec.params(variant) if spec.own_params is None else spec.own_params(variant)
    return assembly.prepare(spec.build(variant, capability, dims), params, capability)


def resources(case: Case, capability: Capability, dims: Dims) -> Resources:
    """What a row takes on one capability.

    Raises:
        BuildError: it does not compile.
    """
    refusal = case.refusal(capability, "cuda")
    if refusal is None:
        refusal = case.spec.supports(case.variant, capability, dims)
    if refusal is not None and not case.variant.lesson:
        return Resources(capability, refusal)
    if refusal is not None and capability < case.variant.min_capability:
        return Resources(capability, refusal)
    assert case.spec.plan is not None
    used = compiled(case, capability, dims).resources
    if used is None:
        return Resources(capability, "nothing here assembles its PTX")
    plan = case.spec.plan(case.variant, capability, dims)
    threads = math.prod(plan.block)
    shared = used.shared_bytes + plan.shared_bytes
    held = occupancy(arch.get(capability), threads, used.registers, shared)
    return Resources(
        capability,
        "",
        used.registers,
        used.spill_bytes,
        shared,
        threads,
        held.blocks_per_sm,
        held.fraction,
        held.limited_by,
    )


def table(case: Case, dims: Dims) -> tuple[Resources, ...]:
    """What a row takes on every capability that is modelled."""
    return tuple(resources(case, capability, dims) for capability in arch.EMULATED)
