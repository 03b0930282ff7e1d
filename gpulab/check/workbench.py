"""What a worker does with a device: build, launch between guard bands, count, time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check.wire import Arrays, Message
from gpulab.errors import FaultError, GpulabError, UsageError
from gpulab.registry import LaunchPlan, Param
from gpulab.runtime.cache import Store
from gpulab.runtime.device import Device, DeviceArray, Function, LaunchReport
from gpulab.runtime.objects import PtxBuild

GUARD_BYTES = 4096
GUARD_BYTE = 0xC3
SCRAMBLES = (0xFF, 0x3B, 0x00)
"""Bytes that module variables are filled with where a launch left something in them."""


def open_mode(kind: str, capability: tuple[int, int], mode: str, store: Store) -> Device:
    """A device; ``mode`` (plain, races, counters) is for the emulated one."""
    if kind == "cuda":
        from gpulab.runtime.cuda import CudaDevice

        return CudaDevice(store=store)
    from gpulab.runtime.emulated import EmulatedDevice

    return EmulatedDevice(
        capability, sanitize=mode == "races", counters=mode == "counters", store=store
    )


class Workbench:
    """One submission on one device.

    Args:
        kind: ``cuda`` or ``emulated``.
        capability: of the emulated device.
        store: compile cache.
    """

    def __init__(self, kind: str, capability: tuple[int, int], store: Store) -> None:
        self.kind, self.capability, self.store = kind, capability, store
        self.devices: dict[str, Device] = {}
        self.request: tuple[PtxBuild, tuple[Param, ...]] | None = None
        self.functions: dict[str, Function] = {}
        self.device("plain")

    def device(self, mode: str) -> Device:
        """The device of a mode, opened once."""
        if mode not in self.devices:
            self.devices[mode] = open_mode(self.kind, self.capability, mode, self.store)
        return self.devices[mode]

    def describe(self) -> Message:
        """Name and capability."""
        device = self.device("plain")
        return {"name": device.name, "kind": device.kind, "capability": list(device.capability)}

    def build(self, message: Message) -> tuple[Message, Arrays]:
        """Load the module afresh: the state of earlier launches is gone."""
        from gpulab.check.worker import params_from

        params = params_from(message["params"])
        self.request = (PtxBuild(message["ptx"], message["entry"], message["abi"]), params)
        self.functions.clear()
        used = self._function("plain").resources
        shown = None if used is None else {
            "registers": used.registers, "spill_bytes": used.spill_bytes,
            "shared_bytes": used.shared_bytes,
        }  # fmt: skip
        return {"resources": shown}, {}

    def _function(self, mode: str) -> Function:
        if mode not in self.functions:
            if self.request is None:
                raise UsageError("nothing is built")
            self.functions[mode] = self.device(mode).build(*self.request)
        return self.functions[mode]

    def run(self, message: Message, inputs: Arrays) -> tuple[Message, Arrays]:
        """One launch on fresh memory between guard bands."""
        from gpulab.check.worker import PRINTED_BYTES, digest, plan_from

        mode = message.get("mode", "plain")
        device, function = self.device(mode), self._function(mode)
        if (budget := message.get("budget")) is not None and hasattr(device, "machine"):
            device.machine.budget = int(budget)
        held = _Held(device, function, inputs, message["dims"], int(message["poison"]))
        try:
            report = held.launch(plan_from(message["plan"]))
            outputs = {name: device.download(a) for name, a in held.outputs.items()}
            digests = {name: digest(device.download(a)) for name, a in held.inputs.items()}
            held.check_guards()
        except BaseException:
            with contextlib.suppress(GpulabError):  # the first fault is the one to tell
                held.free()
            raise
        held.free()
        answer: Message = {
            "inputs": digests,
            "counters": report.counters,
            "printed": report.printed[:PRINTED_BYTES],
            "state": self._changed(mode),
        }
        return answer, outputs

    # -- state that outlives a launch (emulated device) -----------------------------------------

    def _variables(self, mode: str) -> dict[str, tuple[int, bytes]]:
        """Address and initial bytes of the module's writable variables, by name."""
        function = self._function(mode)
        if self.kind == "cuda":
            return {}
        _, program = function.handle
        found = {}
        for name, address in program.addresses.items():
            variable = program.module.variables[name]
            if variable.space == "global" and not variable.relocations:
                initial = (variable.initial or b"").ljust(variable.nbytes, b"\0")
                found[name] = (address, initial)
        return found

    def _changed(self, mode: str) -> list[str]:
        machine = getattr(self.device(mode), "machine", None)
        return [
            name
            for name, (address, initial) in self._variables(mode).items()
            if machine is not None and machine.read(address, len(initial)).tobytes() != initial
        ]

    def scramble(self, message: Message) -> tuple[Message, Arrays]:
        """Fill the module's variables with a byte, as if an earlier launch had left it."""
        machine: Any = getattr(self.device("plain"), "machine", None)
        for address, initial in self._variables("plain").values():
            machine.write(address, np.full(len(initial), int(message["byte"]), np.uint8))
        return {}, {}

    # -- time (card) ----------------------------------------------------------------------------

    def time(self, message: Message, inputs: Arrays) -> tuple[Message, Arrays]:
        """Times of a freshly loaded module, and a digest of every timed output.

        In set i the arrays that ``moving`` names are shifted by i along the axis it gives, so that
        the right output is the judged one shifted; the judge compares the digests.
        """
        from gpulab.check.worker import digest, plan_from
        from gpulab.runtime import timing
        from gpulab.runtime.cuda_clock import clock_of

        device, plan = self.device("plain"), plan_from(message["plan"])
        assert self.request is not None
        function = device.build(*self.request)
        clock = clock_of(device)
        moving = message["moving"]
        set_bytes = int(message["set_bytes"])
        count = timing.rotation_sets(set_bytes, clock.l2_bytes)
        sets = [
            _Held(
                device,
                function,
                {n: np.roll(a, i, moving[n]) if n in moving else a for n, a in inputs.items()},
                message["dims"],
                0xA5,
            )
            for i in range(count)
        ]
        seen: list[list[Any]] = []

        def verify(i: int) -> str | None:
            sets[i].check_guards()
            for name, array in sets[i].outputs.items():
                seen.append([i, name, digest(device.download(array))])
            return None

        try:
            starts = [held.bind(plan) for held in sets]
            subject = timing.Subject(
                lambda i: starts[i](),
                count,
                set_bytes,
                lambda i: [device.refill(a, 0xA5) for a in sets[i].outputs.values()],
                verify,
            )
            taken = timing.time_kernel(
                clock, subject, runs=int(message["runs"]), warmup=int(message["warmup"])
            )
        finally:
            for held in sets:
                held.free()
        return {"time_ms": taken.time_ms(), "timing": taken.details(), "outputs": seen}, {}


class _Held:
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
                nothing = np.full(shape, 0, param.dtype)
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
            raw = self.device.download(whole)
            for side, band in (("before", raw[:GUARD_BYTES]), ("after", raw[-GUARD_BYTES:])):
                bad = np.nonzero(band != GUARD_BYTE)[0]
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
