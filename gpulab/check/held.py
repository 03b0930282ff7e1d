"""A kernel's arguments on a device: inputs and poisoned outputs, each between guard bands."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check.wire import Arrays
from gpulab.errors import FaultError
from gpulab.registry import LaunchPlan
from gpulab.runtime.device import Device, DeviceArray, Function, LaunchReport

GUARD_BYTES = 4096
GUARD_BYTE = 0xC3


class Held:
    """Device copies of inputs and poisoned outputs, each between guard bands on a card."""

    def __init__(
        self,
        device: Device,
        function: Function,
        inputs: Arrays,
        dims: Mapping[str, Any],
        poison: int,
    ) -> None:
        self.device, self.function, self.dims = device, function, dims
        self.whole: list[DeviceArray] = []
        self.inputs: dict[str, DeviceArray] = {}
        self.outputs: dict[str, DeviceArray] = {}
        for param in function.params:
            if param.role == "in":
                self.inputs[param.name] = self._place(param.name, inputs[param.name], None)
            elif param.role == "out":
                shape = tuple(int(dims[d]) for d in param.dims)
                nothing = np.zeros(shape, param.dtype)
                self.outputs[param.name] = self._place(param.name, nothing, poison)

    def _place(self, name: str, values: NDArray[Any], poison: int | None) -> DeviceArray:
        """The array on the device; on a card inside a larger one whose ends hold a pattern."""
        values = np.ascontiguousarray(values)
        if self.device.kind != "cuda":  # the emulated device has guard zones of its own
            if poison is None:
                array = self.device.upload(values, name)
            else:
                array = self.device.empty(values.shape, values.dtype, poison, name)
            self.whole.append(array)
            return array
        size = values.nbytes
        padded = np.full(size + 2 * GUARD_BYTES, GUARD_BYTE, np.uint8)
        middle = slice(GUARD_BYTES, GUARD_BYTES + size)
        padded[middle] = values.reshape(-1).view(np.uint8) if poison is None else poison
        whole = self.device.upload(padded, name)
        self.whole.append(whole)
        inner = whole.handle[middle].view(values.dtype).reshape(values.shape)
        return DeviceArray(values.shape, values.dtype, inner, name)

    def _arguments(self) -> list[DeviceArray | int | float]:
        arrays = {**self.inputs, **self.outputs}
        return [
            arrays[p.name] if p.role in ("in", "out") else self.dims[p.name]
            for p in self.function.params
        ]

    def bind(self, plan: LaunchPlan) -> Any:
        """What starts one launch."""
        return self.device.bind(self.function, plan, self._arguments())

    def launch(self, plan: LaunchPlan) -> LaunchReport:
        """Launch and wait."""
        report: LaunchReport = self.bind(plan)()
        self.device.synchronize()
        return report

    def check_guards(self) -> None:
        """The bands beside every array are as they were.

        Raises:
            FaultError: something wrote outside an array.
        """
        if self.device.kind != "cuda":
            return
        for whole in self.whole:
            size = whole.nbytes
            for side, part in (
                ("before", slice(0, GUARD_BYTES)), ("after", slice(size - GUARD_BYTES, size)),
            ):  # fmt: skip
                band = DeviceArray((GUARD_BYTES,), whole.dtype, whole.handle[part], whole.name)
                bad = np.nonzero(self.device.download(band) != GUARD_BYTE)[0]
                if bad.size:
                    away = GUARD_BYTES - bad[-1] if side == "before" else bad[0] + 1
                    raise FaultError(
                        f"the kernel wrote {away} bytes {side} the array {whole.name}",
                        fault="out_of_bounds",
                        space="global",
                    )

    def free(self) -> None:
        """Release; on the emulated device this checks its guard zones."""
        with contextlib.ExitStack() as stack:
            for array in self.whole:
                stack.callback(self.device.free, array)
