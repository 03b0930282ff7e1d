"""Which code a kernel is on a capability, so that the same code need not be judged twice."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from gpulab.numerics import tensorcore
from gpulab.registry import Capability, Case, Dims, NumbaBuild, Param, RawBuild
from gpulab.runtime import assembly
from gpulab.runtime.device import Device
from gpulab.runtime.select import open_device


class Shared:
    """A build request as a key: of two Numba requests, those with the same key are the same."""

    def __init__(self, request: RawBuild | NumbaBuild) -> None:
        self.request = request
        self.key = request if isinstance(request, RawBuild) else request.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shared) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@cache
def device(capability: Capability, kind: str = "emulated") -> Device:
    """The device of a kind, opened once.

    Raises:
        DeviceMissingError: there is no usable card.
        UsageError: the card has another capability.
    """
    return open_device(kind, capability=capability)


@cache
def _program(build: Shared, params: tuple[Param, ...], capability: Capability) -> str:
    """The PTX without what names its version, its target and its source."""
    ptx = assembly.prepare(build.request, params, capability, kit=device(capability).kit).ptx
    lines = (re.sub(r"//.*", "", line).strip() for line in ptx.splitlines())
    return "\n".join(s for s in lines if s and not s.startswith((".version", ".target")))


def path(case: Case, capability: Capability, dims: Dims) -> tuple[Any, ...]:
    """What decides the bits of a result: programs, launch shapes, tensor-core arithmetic."""
    spec, variant = case.spec, case.variant
    assert spec.build is not None
    assert spec.plan is not None
    own = spec.own_params(variant) if spec.own_params is not None else spec.params(variant)
    launches = [
        (_program(Shared(s.build), s.params, capability), s.plan)
        for s in spec.steps(variant, capability, dims)
    ]
    program = _program(Shared(spec.build(variant, capability, dims)), own, capability)
    launches.append((program, spec.plan(variant, capability, dims)))
    name = variant.instruction(capability)
    model = None if name is None else tensorcore.model(name, capability)
    if model is not None:  # what it rests on changes no bit
        model = replace(model, capability=(0, 0), verified="assumed", note="")
    return (*launches, model)
