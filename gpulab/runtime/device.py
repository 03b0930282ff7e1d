"""The interface that the card and the emulated device share.

A device allocates, uploads, builds and launches. ``bind`` of this base class checks all arguments
before any device code runs, so that both devices refuse the same mistakes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.numerics.structure import POISONS, same_bits
from gpulab.registry import Capability, LaunchPlan, Param
from gpulab.runtime.checks import check_arguments, check_maps, check_plan
from gpulab.runtime.objects import (
    Build,
    DeviceArray,
    Function,
    LaunchReport,
    PtxBuild,
)
from gpulab.runtime.toolkit import Toolkit

__all__ = [
    "POISONS",
    "Build",
    "Device",
    "DeviceArray",
    "Function",
    "LaunchReport",
    "PtxBuild",
]


class Device(ABC):
    """A place where kernels run.

    Attributes:
        kind: ``cuda`` or ``emulated``.
        name: shown to users: ``NVIDIA H200``, ``emulated sm_89``.
        capability: compute capability, which determines its arithmetic and limits.
        target: capability that code is compiled for; lower than ``capability`` only where code for
            an older card is run for comparison.
        kit: the compiler of its kernels.
        driver: release of the card's driver: ``driver 580.65.06 (CUDA 13.0)``; None without one.
        reason: why this device was chosen, where the lab chose it; else empty.
        multiprocessors: number of multiprocessors of the card; None where kernels are emulated.
    """

    kind: str
    name: str
    capability: Capability
    target: Capability
    kit: Toolkit
    driver: str | None = None
    reason: str = ""
    multiprocessors: int | None = None

    @abstractmethod
    def upload(self, host: NDArray[Any], name: str = "", rows: int | None = None) -> DeviceArray:
        """Copy a C-contiguous host array to the device.

        Args:
            host: what to copy.
            name: the array's name in messages.
            rows: number of rows of the device array, which repeats the rows of ``host``; None: as
                many as ``host`` has.

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
    def part(self, array: DeviceArray, first: int, last: int) -> DeviceArray:
        """A view of rows ``first`` to ``last - 1`` of an array."""

    def holds(self, array: DeviceArray, host: NDArray[Any]) -> bool:
        """Whether an array holds the bits of ``host``, whose rows it may repeat."""
        rows, step = array.shape[0] if array.shape else 1, len(host) if host.shape else 1
        if rows == step:
            return self.equals(array, host)
        return self.equals(self.part(array, 0, step), host) and self.repeats(array, step)

    def equals(self, array: DeviceArray, host: NDArray[Any]) -> bool:
        """Whether an array holds the bits of a host array of the same shape and type."""
        return same_bits(self.download(array), host)

    def repeats(self, array: DeviceArray, step: int) -> bool:
        """Whether every row holds the bits of the row ``step`` rows before it."""
        rows = array.shape[0]
        return self.same(self.part(array, step, rows), self.part(array, 0, rows - step))

    def same(self, one: DeviceArray, other: DeviceArray) -> bool:
        """Whether two arrays of one shape and type hold the same bits, NaN included."""
        return same_bits(self.download(one), self.download(other))

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
        """What launches the kernel on these arguments, which have been checked."""

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
        """Check once, and return what launches the kernel, any number of times; see ``launch``."""
        check_arguments(function.entry, function.params, args)
        check_plan(function.entry, plan, self.name, self.capability, function.resources)
        check_maps(function.entry, plan, function.params, args, self.capability)
        if min(plan.grid) == 0:
            return lambda: LaunchReport(notes=["empty grid: nothing launched"])
        return self._bind(function, plan, args)

    def bind_library(
        self, label: str, start: Callable[[], None], arrays: Sequence[DeviceArray]
    ) -> Callable[[], LaunchReport]:
        """What launches a library call; it keeps ``arrays`` alive.

        Raises:
            UsageError: the device runs no libraries.
        """
        raise UsageError(f"{label} is a library row: {self.name} runs no libraries")
