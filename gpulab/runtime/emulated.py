"""The emulated device: the card's PTX, run on the CPU with a chosen capability's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab import arch
from gpulab.emulator.machine import Machine, Program
from gpulab.emulator.observe import Observer
from gpulab.emulator.tensormap import TensorMap
from gpulab.errors import FaultError, UsageError
from gpulab.numerics.repeat import repeated
from gpulab.registry import LaunchPlan, Param, TensorBox
from gpulab.runtime import assembly, packing, toolkit
from gpulab.runtime.cache import Store
from gpulab.runtime.checks import check_host_array
from gpulab.runtime.device import (
    POISONS,
    Build,
    Device,
    DeviceArray,
    Function,
    LaunchReport,
)
from gpulab.runtime.targets import check_target
from gpulab.runtime.toolkit import Capability, Toolkit


class EmulatedDevice(Device):
    """A device without a card; every access is checked and every fault has a name and a line.

    Args:
        capability: whose arithmetic it has, one of ``arch.EMULATED``.
        sanitize: detect races too (slower).
        counters: count instructions, sectors, bank conflicts (slower).
        target: compile for this lower capability, as an older card would get it.
        budget: instructions (of a whole block) after which a launch stops; None for the default.
        kit: the compiler; ``toolkit.default()`` unless told.
        store: the compile cache; the user's by default.
        reason: why the lab chose it.
        observers: who else watches every launch.

    Raises:
        UsageError: a capability that is not modelled, or a target above it.
    """

    kind = "emulated"

    def __init__(
        self,
        capability: Capability = arch.DEFAULT_EMULATED,
        *,
        sanitize: bool = False,
        counters: bool = False,
        target: Capability | None = None,
        budget: int | None = None,
        kit: Toolkit | None = None,
        store: Store | None = None,
        reason: str = "",
        observers: Sequence[Observer] = (),
    ) -> None:
        arch.check_emulated(capability)
        self.capability = capability
        self.target = check_target(target, capability)
        self.name = f"emulated {arch.sm(capability)}"
        if self.target != capability:
            self.name += f" running {arch.sm(self.target)} code"
        self.reason = reason
        self.kit = kit or toolkit.default()
        self._store = store
        self.machine = Machine(
            capability=capability, sanitize=sanitize, counters=counters, budget=budget
        )
        self._observers = tuple(observers)
        self._stateless: dict[str, Program] = {}

    def upload(self, host: NDArray[Any], name: str = "", rows: int | None = None) -> DeviceArray:
        """Copy a C-contiguous host array to the machine."""
        check_host_array(host, name)
        host = host if rows is None else repeated(host, rows)
        array = self._allocate(host.shape, host.dtype, name)
        if host.nbytes:
            self.machine.write(array.handle, host)
        return array

    def empty(
        self, shape: Sequence[int], dtype: np.dtype[Any], poison: int = POISONS[0], name: str = ""
    ) -> DeviceArray:
        """Allocate an output; reading it before writing is a fault."""
        array = self._allocate(tuple(shape), np.dtype(dtype), name)
        self.refill(array, poison)
        return array

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> DeviceArray:
        nbytes = DeviceArray(shape, dtype, None).nbytes
        # An array without elements has no memory: its address is null, as on a card.
        return DeviceArray(
            shape, dtype, self.machine.alloc(nbytes, name=name) if nbytes else 0, name
        )

    def refill(self, array: DeviceArray, poison: int) -> None:
        """Fill with ``poison`` again; it counts as unwritten."""
        if array.nbytes:
            self.machine.fill(array.handle, array.nbytes, poison)

    def download(self, array: DeviceArray) -> NDArray[Any]:
        """Copy back to a new host array."""
        if not array.nbytes:
            return np.zeros(array.shape, array.dtype)
        raw = self.machine.read(array.handle, array.nbytes)
        return raw.view(array.dtype).reshape(array.shape)

    def part(self, array: DeviceArray, first: int, last: int) -> DeviceArray:
        """Some rows, in the same memory."""
        row = array.nbytes // array.shape[0]
        shape = (last - first, *array.shape[1:])
        return DeviceArray(shape, array.dtype, array.handle + first * row, array.name)

    def free(self, *arrays: DeviceArray) -> None:
        """Release memory; a broken guard zone is a fault."""
        fault: FaultError | None = None
        for array in arrays:
            try:
                if array.nbytes:
                    self.machine.free(array.handle)
            except FaultError as error:  # a broken guard zone: release the others all the same
                fault = fault or error
        if fault is not None:
            raise fault

    def build(self, request: Build, params: tuple[Param, ...]) -> Function:
        """Compile for the target and parse the PTX."""
        code = assembly.prepare(request, params, self.target, kit=self.kit, store=self._store)
        program = self._stateless.get(code.ptx)
        if program is None:
            program = self.machine.load(code.ptx)
            if not program.referenced:  # a module with variables starts afresh, as on a card
                self._stateless[code.ptx] = program
        return Function(
            entry=code.label,
            params=params,
            handle=(code, program),
            build=request,
            resources=code.resources,
            ptx=code.ptx,
        )

    def synchronize(self) -> None:
        """Launches have ended when they return."""

    def _bind(
        self, function: Function, plan: LaunchPlan, args: Sequence[Any]
    ) -> Callable[[], LaunchReport]:
        code, program = function.handle
        packed = packing.pack(
            function.params, args, lambda array: int(array.handle), code.abi,
            {box.param: partial(_map_of, box=box) for box in plan.maps},
        )  # fmt: skip

        def launch() -> LaunchReport:
            report = self.machine.launch(
                program, code.entry, plan.grid, plan.block, packed,
                shared_bytes=plan.shared_bytes, observers=self._observers,
            )  # fmt: skip
            return LaunchReport(counters=report.counters, printed=report.printed)

        return launch


def _map_of(array: DeviceArray, box: TensorBox) -> bytes:
    """The tensor map of a row-major matrix; arguments were checked by ``check_maps``."""
    rows, columns = array.shape
    size, row = array.dtype.itemsize, box.columns * array.dtype.itemsize
    if box.swizzle_bytes not in (0, row):
        raise UsageError(
            f"a box of {row} bytes a row in a swizzle of {box.swizzle_bytes} is not emulated",
            fix="take boxes as wide as the swizzle, or run it on a card: --device cuda",
        )
    return TensorMap(
        int(array.handle), rows, columns, size, box.rows, box.columns, box.swizzle_bytes
    ).encode()
