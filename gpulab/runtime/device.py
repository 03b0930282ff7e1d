"""The one interface behind which the card and the emulated device stand.

A device allocates, uploads, builds and launches; every argument check happens in ``launch`` of
this base class before any device code runs, so both devices refuse the same mistakes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.registry import Capability, LaunchPlan, NumbaBuild, Param, RawBuild
from gpulab.runtime.resources import Resources

POISONS = (0xA5, 0x5A)
"""The two byte patterns outputs are filled with before a run (two colours, both finite)."""

_RAW_KINDS = "uif"  # what a host array may hold; ml_dtypes types are of kind V


@dataclass(frozen=True)
class DeviceArray:
    """A row-major array in device memory; ``handle`` belongs to the device that made it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    handle: Any
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class PtxBuild:
    """PTX made elsewhere, to be launched as it is.

    Args:
        ptx: the text.
        entry: the kernel's name in it.
        abi: how arrays are passed: ``c`` as pointers, ``numba`` as Numba's array structures.
    """

    ptx: str
    entry: str
    abi: Literal["c", "numba"] = "c"


Build = RawBuild | NumbaBuild | PtxBuild


@dataclass(frozen=True)
class Function:
    """A built kernel: its entry, parameters and a device-specific ``handle``.

    Args:
        entry: the name people know it by.
        params: its parameter list.
        handle: belongs to the device that built it.
        build: what it was built from.
        measure: finds out what it uses; asked at most once.
        ptx: the PTX that it was assembled from.
    """

    entry: str
    params: tuple[Param, ...]
    handle: Any
    build: Build
    measure: Callable[[], Resources | None]
    ptx: str

    @cached_property
    def resources(self) -> Resources | None:
        """Registers, spills, shared memory; None where nothing here can assemble the PTX."""
        return self.measure()


@dataclass
class LaunchReport:
    """What a launch tells beside its outputs: counters (emulated) and printf text."""

    counters: dict[str, Any] | None = None
    printed: str = ""
    notes: list[str] = field(default_factory=list)


class Device(ABC):
    """A place where kernels run.

    Attributes:
        kind: ``cuda`` or ``emulated``.
        name: for people: ``NVIDIA H200``, ``emulated sm_89``.
        capability: whose arithmetic it has.
        target: for which capability code is compiled; below ``capability`` only where code for an
            older card is run for comparison.
        reason: why this device was taken, where the choice was the lab's.
    """

    kind: str
    name: str
    capability: Capability
    target: Capability
    reason: str = ""

    @abstractmethod
    def upload(self, host: NDArray[Any], name: str = "") -> DeviceArray:
        """Copy a C-contiguous host array to the device.

        Raises:
            UsageError: not contiguous, or not plain numbers (pass the codes of ml_dtypes arrays).
            DeviceMissingError: out of memory; says how much was needed and how much was free.
        """

    @abstractmethod
    def empty(
        self, shape: Sequence[int], dtype: np.dtype[Any], poison: int = POISONS[0], name: str = ""
    ) -> DeviceArray:
        """Allocate an output whose every byte is ``poison``; reading it before writing is a fault
        on the emulated device."""

    @abstractmethod
    def refill(self, array: DeviceArray, poison: int) -> None:
        """Fill an output with ``poison`` again, as if freshly allocated."""

    @abstractmethod
    def download(self, array: DeviceArray) -> NDArray[Any]:
        """Copy back to a new host array of the same shape and dtype."""

    @abstractmethod
    def free(self, *arrays: DeviceArray) -> None:
        """Release memory (checks guard zones first on the emulated device)."""

    @abstractmethod
    def build(self, request: Build, params: tuple[Param, ...]) -> Function:
        """Compile and load.

        Raises:
            BuildError: the compiler refuses it; carries the log, file and line.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything launched.

        Raises:
            FaultError: something launched before did something illegal (on a card only now).
        """

    @abstractmethod
    def _bind(
        self, function: Function, plan: LaunchPlan, args: Sequence[Any]
    ) -> Callable[[], LaunchReport]:
        """What launches these arguments, which were checked."""

    def launch(
        self, function: Function, plan: LaunchPlan, args: Sequence[DeviceArray | int | float]
    ) -> LaunchReport:
        """Check everything that can be checked, then run the kernel.

        An empty grid launches nothing. Arrays are checked for count, role, dtype and the shape
        that the dims imply; dims for int32 range; the plan for the device's limits.

        Raises:
            UsageError: an argument or the launch shape is wrong; names it and the limit.
            FaultError: the kernel did something illegal.
            KernelTimeoutError: it ran past its budget.
        """
        return self.bind(function, plan, args)()

    def bind(
        self, function: Function, plan: LaunchPlan, args: Sequence[DeviceArray | int | float]
    ) -> Callable[[], LaunchReport]:
        """Check once; what is returned launches, as often as it is called. See ``launch``."""
        check_arguments(function.entry, function.params, args)
        check_plan(function.entry, plan, self, function.resources)
        if min(plan.grid) == 0:
            return lambda: LaunchReport(notes=["empty grid: nothing launched"])
        return self._bind(function, plan, args)

    def bind_library(
        self, label: str, start: Callable[[], None], arrays: Sequence[DeviceArray]
    ) -> Callable[[], LaunchReport]:
        """A library call as something to launch; ``arrays`` live as long as it can be called.

        Raises:
            UsageError: the device runs no libraries.
        """
        raise UsageError(f"{label} is a library row: {self.name} runs no libraries")


def check_host_array(host: NDArray[Any], name: str) -> None:
    """Refuse a host array that cannot be copied as it stands.

    Raises:
        UsageError: not C-contiguous, or elements that are not plain numbers.
    """
    what = f"array {name or '(unnamed)'}"
    if host.dtype.kind not in _RAW_KINDS or not host.dtype.isnative:
        raise UsageError(
            f"{what} holds {host.dtype}: devices take raw codes",
            fix="pass array.view(numpy.uint16) or .view(numpy.uint8)",
        )
    if not host.flags.c_contiguous:
        raise UsageError(f"{what} is not C-contiguous", fix="numpy.ascontiguousarray(array)")


def check_arguments(entry: str, params: Sequence[Param], args: Sequence[Any]) -> None:
    """Refuse wrong argument count, kind, dtype or shape (dims are read from the arguments).

    Raises:
        UsageError: names the kernel, the argument, what it got and what it needs.
    """
    if len(params) != len(args):
        names = ", ".join(p.name for p in params)
        raise UsageError(f"{entry} takes {len(params)} arguments ({names}), got {len(args)}")
    dims = {p.name: a for p, a in zip(params, args, strict=True) if p.role == "dim"}
    for param, arg in zip(params, args, strict=True):
        what = f"{entry}: argument {param.name}"
        if param.role in ("in", "out"):
            continue
        if isinstance(arg, bool | np.bool_) or not isinstance(arg, int | float | np.number):
            raise UsageError(f"{what} must be a number, got {type(arg).__name__}")
        # A dim is exactly integral, and representable in the int the kernel takes.
        limits = _integer_limits(param)
        if limits and (not isinstance(arg, int | np.integer) or not _within(arg, limits)):
            raise UsageError(f"{what} is {arg}, must be an integer in {limits[0]} .. {limits[1]}")
    for param, arg in zip(params, args, strict=True):
        if param.role in ("in", "out"):
            _check_array(f"{entry}: argument {param.name}", param, arg, dims)


def _integer_limits(param: Param) -> tuple[int, int] | None:
    if param.role == "dim":
        return 0, 2**31 - 1
    if not param.format.startswith("int"):
        return None
    info = np.iinfo(param.dtype)
    return int(info.min), int(info.max)


def _within(value: Any, limits: tuple[int, int]) -> bool:
    return limits[0] <= int(value) <= limits[1]


def _check_array(what: str, param: Param, arg: Any, dims: dict[str, Any]) -> None:
    if not isinstance(arg, DeviceArray):
        raise UsageError(f"{what} must be a device array, got {type(arg).__name__}")
    if arg.dtype != param.dtype:
        raise UsageError(f"{what} holds {arg.dtype}, needs {param.dtype} ({param.format})")
    # A dim that the kernel does not take is free, but the number of dims is not.
    want = tuple(int(dims[d]) if d in dims else None for d in param.dims)
    if len(arg.shape) != len(want) or any(
        w is not None and w != got for w, got in zip(want, arg.shape, strict=True)
    ):
        shown = ", ".join(f"{d}={dims[d]}" if d in dims else d for d in param.dims)
        raise UsageError(f"{what} has shape {arg.shape}, needs ({shown})")


def check_plan(
    entry: str, plan: LaunchPlan, device: Device, resources: Resources | None = None
) -> None:
    """Refuse a launch shape that no card of this capability accepts.

    Args:
        entry: the kernel, for the message.
        plan: the launch shape.
        device: whose limits hold.
        resources: what the kernel uses beside the plan, where it is known.

    Raises:
        UsageError: names the limit.
    """
    from gpulab.arch import get as get_arch

    x, y, z = plan.block
    threads = x * y * z
    if min(plan.block) < 1 or threads > 1024 or z > 64:
        raise UsageError(f"{entry}: block {plan.block} is outside 1 .. 1024 threads (z to 64)")
    gx, gy, gz = plan.grid
    if min(plan.grid) < 0 or gx >= 2**31 or gy > 65535 or gz > 65535:
        raise UsageError(f"{entry}: grid {plan.grid} exceeds (2^31 - 1, 65535, 65535)")
    arch = get_arch(device.capability)
    static = (resources.shared_bytes or 0) if resources else 0
    where = f"{device.name} (sm_{device.capability[0]}{device.capability[1]})"
    if plan.shared_bytes < 0 or plan.shared_bytes + static > arch.shared_per_block_bytes:
        raise UsageError(
            f"{entry}: {plan.shared_bytes + static} bytes of shared memory; "
            f"{where} allows {arch.shared_per_block_bytes}",
            fix="use a smaller tile or fewer stages",
        )
    if resources is None:
        return
    limit = resources.max_threads_per_block
    if limit is not None and threads > limit:
        raise UsageError(
            f"{entry}: a block of {threads} threads; it is compiled for at most {limit}",
            fix="launch the block size that __launch_bounds__ names",
        )
    if resources.registers is not None:
        # A warp gets registers in units; the whole block must fit into one SM.
        unit = arch.register_allocation_unit
        per_warp = -(-resources.registers * 32 // unit) * unit
        if per_warp * -(-threads // 32) > arch.registers_per_sm:
            raise UsageError(
                f"{entry}: {threads} threads of {resources.registers} registers; "
                f"{where} has {arch.registers_per_sm} an SM",
                fix="use smaller blocks, or __launch_bounds__",
            )
