"""The one interface behind which the card and the emulated device stand.

A device allocates, uploads, builds and launches; every argument check happens in ``launch`` of
this base class before any device code runs, so both devices refuse the same mistakes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.registry import Capability, LaunchPlan, NumbaBuild, Param, RawBuild

POISONS = (0xA5, 0x5A)
"""The two byte patterns outputs are filled with before a run (two colours, both finite)."""


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
class Resources:
    """What the compiled object uses, read from the cubin (None where it is not known)."""

    registers: int | None
    spill_bytes: int | None
    shared_bytes: int | None
    max_threads_per_block: int | None = None


@dataclass(frozen=True)
class Function:
    """A built kernel: its entry, parameters and a device-specific ``handle``."""

    entry: str
    params: tuple[Param, ...]
    handle: Any
    build: RawBuild | NumbaBuild
    resources: Resources | None = None


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
    """

    kind: str
    name: str
    capability: Capability
    target: Capability

    @abstractmethod
    def upload(self, host: NDArray[Any], name: str = "") -> DeviceArray:
        """Copy a C-contiguous host array to the device.

        Raises:
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
    def build(self, request: RawBuild | NumbaBuild, params: tuple[Param, ...]) -> Function:
        """Compile and load.

        Raises:
            BuildError: the compiler refuses it; carries the log, file and line.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything launched."""

    @abstractmethod
    def _launch(self, function: Function, plan: LaunchPlan, args: Sequence[Any]) -> LaunchReport:
        """Run; arguments were checked."""

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
        check_arguments(function.entry, function.params, args)
        check_plan(function.entry, plan, self)
        if min(plan.grid) == 0:
            return LaunchReport(notes=["empty grid: nothing launched"])
        return self._launch(function, plan, args)


def check_arguments(entry: str, params: Sequence[Param], args: Sequence[Any]) -> None:
    """Refuse wrong argument count, kind, dtype or shape (dims are read from the arguments).

    Raises:
        UsageError: names the kernel, the argument, what it got and what it needs.
    """
    if len(params) != len(args):
        raise UsageError(f"{entry} takes {len(params)} arguments, got {len(args)}")
    dims = {p.name: a for p, a in zip(params, args, strict=True) if p.role == "dim"}
    for param, arg in zip(params, args, strict=True):
        what = f"{entry}: argument {param.name}"
        if param.role in ("in", "out"):
            if not isinstance(arg, DeviceArray):
                raise UsageError(f"{what} must be a device array, got {type(arg).__name__}")
            if arg.dtype != param.dtype:
                raise UsageError(f"{what} holds {arg.dtype}, needs {param.dtype} ({param.format})")
            want = tuple(int(dims.get(d, -1)) for d in param.dims)
            if -1 not in want and arg.shape != want:
                raise UsageError(
                    f"{what} has shape {arg.shape}, needs {want} = ({', '.join(param.dims)})"
                )
        elif isinstance(arg, bool) or not isinstance(arg, int | float | np.number):
            raise UsageError(f"{what} must be a number, got {type(arg).__name__}")
        elif param.role == "dim" and (
            # Exactly integral, and representable in the int the kernel takes.
            not isinstance(arg, int | np.integer) or not 0 <= int(arg) < 2**31
        ):
            raise UsageError(f"{what} is {arg}, must be an integer in 0 .. 2^31 - 1")


def check_plan(entry: str, plan: LaunchPlan, device: Device) -> None:
    """Refuse a launch shape that no card of this capability accepts.

    Raises:
        UsageError: names the limit.
    """
    from gpulab.arch import get as get_arch

    x, y, z = plan.block
    if min(plan.block) < 1 or x * y * z > 1024 or x > 1024 or y > 1024 or z > 64:
        raise UsageError(f"{entry}: block {plan.block} is outside 1 .. 1024 threads")
    gx, gy, gz = plan.grid
    if min(plan.grid) < 0 or gx >= 2**31 or gy > 65535 or gz > 65535:
        raise UsageError(f"{entry}: grid {plan.grid} exceeds (2^31 - 1, 65535, 65535)")
    limit = get_arch(device.capability).shared_per_block_bytes
    if not 0 <= plan.shared_bytes <= limit:
        raise UsageError(
            f"{entry}: {plan.shared_bytes} bytes of shared memory; "
            f"{device.name} (sm_{device.capability[0]}{device.capability[1]}) allows {limit}",
            fix="use a smaller tile or fewer stages",
        )
