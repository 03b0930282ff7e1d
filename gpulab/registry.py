"""What a kernel declares, and how the lab finds it.

A kernel is device code plus one declaration module under ``gpulab/kernels/<op>/``. Importing the
module registers it; nothing else is edited. The lab owns allocation, launch, stream, timing and
verdict: a declaration only says what the device code computes, for which formats, from which
capability, and with which launch shape.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gpulab.errors import UsageError
from gpulab.formats import storage_dtype

Capability = tuple[int, int]
Dims = Mapping[str, int]
Backend = Literal["raw", "numba", "library"]


@dataclass(frozen=True)
class Param:
    """One argument of the device function, in its order.

    Args:
        name: the argument's name; arrays are matched to inputs and outputs by it.
        role: ``in`` and ``out`` are device arrays, ``dim`` is an int32 taken from the dims,
            ``scalar`` is passed by value.
        format: number format of the elements (a row of ``gpulab.formats``, or ``int32``).
        dims: names of the dims that give the shape, row-major; empty for ``dim`` and ``scalar``.
    """

    name: str
    role: Literal["in", "out", "dim", "scalar"]
    format: str
    dims: tuple[str, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the stored codes (uint16 for bf16, uint8 for fp8, ...)."""
        return storage_dtype(self.format)


@dataclass(frozen=True)
class LaunchPlan:
    """Grid and block (x, y, z) and dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


@dataclass(frozen=True)
class RawBuild:
    """CUDA C++ to compile: file below ``raw_kernels/`` (or absolute) and the entry to instantiate.

    Args:
        source: path relative to ``raw_kernels/``, or an absolute path.
        entry: a C++ name expression such as ``matmul_simt<__half, float>``.
        defines: ``NAME=VALUE`` macros.
        feature_target: compile for the architecture-specific target (``sm_90a``).
        contract: let the compiler fuse ``a * b + c``; off, so that a kernel means what it says
            and the emulated device equals the card (write ``fmaf`` where a fused one is meant).
    """

    source: str
    entry: str
    defines: tuple[str, ...] = ()
    feature_target: bool = False
    contract: bool = False


@dataclass(frozen=True)
class NumbaBuild:
    """A Numba CUDA kernel: ``make()`` returns the plain Python function to compile.

    ``make`` runs only when Numba is installed; its types follow from the kernel's params.
    """

    make: Callable[[], Callable[..., None]]
    key: str


@dataclass(frozen=True)
class Variant:
    """One row of the ladder: a kernel at one combination of number formats.

    Args:
        format: storage format of the inputs.
        accumulator: format of the running sum (``fp32``, ``fp16``, ``int32``).
        output: format of the result as stored.
        min_capability: lowest capability that executes it.
        instructions: ``(capability, name)`` pairs, ascending: the tensor-core instruction used
            from that capability on, in the spelling of ``numerics.tensorcore``; empty = CUDA cores.
        contract: name of the rounding contract it declares, where the op has several
            (``fp32-sum``, ``rounded-sum``); empty: the op's only one.
        lesson: wrong on purpose; judged by the op's contract, which it must FAIL.
        caught_on: input families that show the lesson's mistake; it is judged on them too.
        note: one sentence shown with the row.
    """

    format: str
    accumulator: str
    output: str
    min_capability: Capability = (7, 5)
    instructions: tuple[tuple[Capability, str], ...] = ()
    contract: str = ""
    lesson: bool = False
    caught_on: tuple[str, ...] = ()
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


@dataclass(frozen=True)
class KernelSpec:
    """A kernel's declaration; see the module docstring.

    Args:
        op: name of the operation (``matmul``).
        name: the kernel's idea in one word (``simt``, ``blocked``, ``mma``).
        backend: who compiles it.
        idea: one sentence for ``gpulab list``.
        order: place in the ladder; lower is simpler.
        variants: its rows.
        params: the device function's parameter list for a variant.
        build: what to compile for (variant, capability, dims), so that an instantiation may follow
            from alignment; None for a library row.
        plan: launch shape for (variant, capability, dims).
        supports: the reason why (variant, capability, dims) cannot run, or None.
        run: library rows only: ``run(variant, arrays)`` with CuPy arrays by param name.
        atomics: results may differ in the last bits between runs.
        source: where the method is published.
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
    atomics: bool = False
    source: str = ""


@dataclass(frozen=True)
class Case:
    """One kernel at one variant: a row of the table."""

    spec: KernelSpec
    variant: Variant

    @property
    def label(self) -> str:
        """Short unique name: ``raw/mma fp16->fp32 (fp32 acc)``."""
        v = self.variant
        return f"{self.spec.backend}/{self.spec.name} {v.format}->{v.output} ({v.accumulator} acc)"

    def refusal(
        self, capability: Capability, device_kind: str, dims: Dims | None = None
    ) -> str | None:
        """Why this row cannot run there (at these dims, if given); None if it can."""
        if self.spec.backend == "library" and device_kind != "cuda":
            return "needs a card"
        lowest = self.variant.min_capability
        if capability < lowest:
            return f"needs sm_{lowest[0]}{lowest[1]}"
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
    op: str,
    *,
    kernel: str | None = None,
    backend: str | None = None,
    format: str | None = None,  # noqa: A002 - the field's word
) -> Iterator[Case]:
    """The rows of an op in ladder order, filtered by kernel name, backend and input format.

    Raises:
        UsageError: a filter names nothing; the message lists what there is.
    """
    known = specs(op)
    for wanted, options, what in (
        (kernel, {s.name for s in known}, "kernel"),
        (backend, {s.backend for s in known}, "backend"),
        (format, {v.format for s in known for v in s.variants}, "format"),
    ):
        if wanted is not None and wanted not in options:
            raise UsageError(
                f"{op} has no {what} {wanted!r}", fix=f"choose one of: {', '.join(sorted(options))}"
            )
    for spec in known:
        if kernel not in (None, spec.name) or backend not in (None, spec.backend):
            continue
        for variant in spec.variants:
            if format in (None, variant.format):
                yield Case(spec, variant)
