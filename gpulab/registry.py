"""What a kernel declares, and how the lab finds it.

A kernel is device code plus one declaration module under ``gpulab/kernels/<op>/``. Importing the
module registers the kernel; no other file is edited. The lab owns allocation, launch, stream,
timing and verdict. A declaration only says what the device code computes, in which formats, from
which capability on, and with which launch shape.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpulab import arch
from gpulab.arch import Capability
from gpulab.device_code import LaunchPlan, NumbaBuild, Param, RawBuild, Step, TensorBox
from gpulab.errors import UsageError

__all__ = [
    "Backend",
    "Capability",
    "Case",
    "Dims",
    "KernelSpec",
    "LaunchPlan",
    "NumbaBuild",
    "Param",
    "RawBuild",
    "Step",
    "TensorBox",
    "Variant",
    "cases",
    "register",
    "specs",
]

Dims = Mapping[str, int]
Backend = Literal["raw", "numba", "library"]


@dataclass(frozen=True)
class Variant:
    """One row of the ladder: a kernel with one combination of number formats.

    Args:
        format: storage format of the inputs.
        accumulator: format of the running sum (``fp32``, ``fp16``, ``int32``).
        output: storage format of the result.
        min_capability: lowest capability that executes it.
        instructions: ``(capability, name)`` pairs, ascending: the tensor-core instruction used
            from that capability on, in the spelling of ``numerics.tensorcore``; empty: CUDA cores.
        contract: name of the rounding contract that it declares, where the op has several
            (``fp32-sum``, ``rounded-sum``); empty where the op has only one.
        lesson: wrong on purpose; judged by the op's contract, which it must FAIL.
        caught_on: input families that show the lesson's mistake; it is judged on them too.
        shown_by: reasons, besides the arithmetic ones, for which the lesson may fail
            (``unwritten``, where the mistake is in where it writes).
        promotion: number of terms after which a tensor-core sum is added to a float32 sum; None:
            never.
        note: one sentence, shown with the row.
    """

    format: str
    accumulator: str
    output: str
    min_capability: Capability = (7, 5)
    instructions: tuple[tuple[Capability, str], ...] = ()
    contract: str = ""
    lesson: bool = False
    caught_on: tuple[str, ...] = ()
    shown_by: tuple[str, ...] = ()
    promotion: int | None = None
    note: str = ""

    def instruction(self, capability: Capability) -> str | None:
        """The tensor-core instruction on ``capability``; None for CUDA cores."""
        best = None
        for lowest, name in self.instructions:
            if lowest <= capability:
                best = name
        return best


def _any_dims(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    return None


def _no_steps(variant: Variant, capability: Capability, dims: Dims) -> tuple[Step, ...]:
    return ()


@dataclass(frozen=True)
class KernelSpec:
    """A kernel's declaration; see the module docstring.

    Args:
        op: name of the operation (``matmul``).
        name: the kernel's idea in one word (``simt``, ``blocked``, ``mma``).
        backend: who compiles it.
        idea: one sentence for ``gpulab list``.
        order: position in the ladder; simpler kernels have lower numbers.
        variants: its rows.
        params: for a variant, the op's arrays and dims as this kernel takes them. Without steps
            this is the device function's parameter list.
        own_params: the device function's parameter list where it differs because of the steps.
        build: what to compile for (variant, capability, dims): the instantiation may depend on
            alignment, for example. None for a library row.
        plan: launch shape for (variant, capability, dims).
        supports: why (variant, capability, dims) cannot run, or None if it can.
        run: library rows only: ``run(variant, arrays)`` with CuPy arrays by parameter name.
        steps: launches that precede the kernel's own.
        for_card: (declaration, number of multiprocessors) -> the declaration for such a card,
            where build and plan depend on that number. Without it they assume the usual card of
            the capability.
        only_capability: the only capability that it runs on, because of architecture-specific
            instructions (``sm_90a``) or because its tiles were tuned for that capability; None: it
            runs from the variant's lowest capability on.
        study: an intermediate step towards another kernel: measured by name or in a ladder, but
            not listed in the op's table.
        atomics: results may differ in their last bits from run to run.
        source: where the method is published.
        twin: lessons only: the kernel of this op and backend that is the same but for the mistake.
    """

    op: str
    name: str
    backend: Backend
    idea: str
    order: int
    variants: tuple[Variant, ...]
    params: Callable[[Variant], tuple[Param, ...]]
    build: Callable[[Variant, Capability, Dims], RawBuild | NumbaBuild] | None = None
    plan: Callable[[Variant, Capability, Dims], LaunchPlan] | None = None
    supports: Callable[[Variant, Capability, Dims], str | None] = _any_dims
    run: Callable[[Variant, Mapping[str, Any]], None] | None = None
    steps: Callable[[Variant, Capability, Dims], tuple[Step, ...]] = _no_steps
    own_params: Callable[[Variant], tuple[Param, ...]] | None = None
    for_card: Callable[[KernelSpec, int], KernelSpec] | None = None
    only_capability: Capability | None = None
    study: bool = False
    atomics: bool = False
    source: str = ""
    twin: str = ""


@dataclass(frozen=True)
class Case:
    """One kernel at one variant: a row of the table."""

    spec: KernelSpec
    variant: Variant

    @property
    def label(self) -> str:
        """Short unique name: ``raw/mma fp16->fp32 (fp32 acc)``, with the contract if it has one."""
        v = self.variant
        sums = f"{v.accumulator} acc" + (f", {v.contract}" if v.contract else "")
        return f"{self.spec.backend}/{self.spec.name} {v.format}->{v.output} ({sums})"

    def on(self, multiprocessors: int | None) -> Case:
        """The row as it is built and launched on a card with that many multiprocessors."""
        if self.spec.for_card is None or multiprocessors is None:
            return self
        return replace(self, spec=self.spec.for_card(self.spec, multiprocessors))

    def refusal(
        self, capability: Capability, device_kind: str, dims: Dims | None = None
    ) -> str | None:
        """Why this row cannot run on such a device (at these dims, if given); None if it can."""
        if self.spec.backend == "library" and device_kind != "cuda":
            return "needs a card"
        lowest, only = self.variant.min_capability, self.spec.only_capability
        if capability < lowest:
            return f"needs {arch.sm(lowest)}"
        if only is not None and capability != only:
            return f"made for {arch.sm(only)} alone"
        if dims is None:
            return None
        return self.spec.supports(self.variant, capability, dims)


@dataclass
class _Registry:
    specs: dict[tuple[str, str, str], KernelSpec] = field(default_factory=dict)
    loaded: bool = False


_REGISTRY = _Registry()


def register(spec: KernelSpec) -> KernelSpec:
    """Add a declaration; called once at the bottom of each kernel module.

    Raises:
        ValueError: two declarations share op, backend and name.
    """
    key = (spec.op, spec.backend, spec.name)
    if key in _REGISTRY.specs:
        raise ValueError(f"kernel {key} is declared twice")
    _REGISTRY.specs[key] = spec
    return spec


def _load_all() -> None:
    if _REGISTRY.loaded:
        return
    package = importlib.import_module("gpulab.kernels")
    for module in pkgutil.walk_packages(package.__path__, "gpulab.kernels."):
        importlib.import_module(module.name)
    _REGISTRY.loaded = True


def specs(op: str | None = None) -> list[KernelSpec]:
    """All declarations (of one op), in ladder order."""
    _load_all()
    found = [s for s in _REGISTRY.specs.values() if op is None or s.op == op]
    return sorted(found, key=lambda s: (s.op, s.order, s.backend, s.name))


def cases(
    op: str | None,
    *,
    kernel: str | None = None,
    backend: str | None = None,
    format: str | None = None,
    studies: bool = False,
) -> Iterator[Case]:
    """The rows of an op, or of all, in ladder order, filtered by kernel, backend, input format.

    A filter is one name, or several separated by commas.

    Args:
        op: the operation; None: every one.
        kernel: only the kernels with these names.
        backend: only the kernels of these backends.
        format: only rows with these input formats.
        studies: include studies (``KernelSpec.study``); naming one in ``kernel`` finds it anyway.

    Raises:
        UsageError: a filter matches nothing; the message lists the choices.
    """
    known = specs(op)
    kernels = _chosen(op, "kernel", kernel, {s.name for s in known})
    backends = _chosen(op, "backend", backend, {str(s.backend) for s in known})
    formats = _chosen(op, "format", format, {v.format for s in known for v in s.variants})
    for spec in known:
        if kernels is not None and spec.name not in kernels:
            continue
        if backends is not None and spec.backend not in backends:
            continue
        if spec.study and not studies and kernels is None:
            continue
        for variant in spec.variants:
            if formats is None or variant.format in formats:
                yield Case(spec, variant)


def _chosen(op: str | None, what: str, text: str | None, options: set[str]) -> list[str] | None:
    """The names of a filter, all of which exist; None where there is no filter."""
    names = None if text is None else text.split(",")
    for name in names or ():
        if name not in options:
            raise UsageError(
                f"{op or 'the lab'} has no {what} {name!r}",
                fix=f"choose one of: {', '.join(sorted(options))}",
            )
    return names
