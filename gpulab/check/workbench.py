"""What a worker does with a device: build, launch between guard bands, count, time."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from gpulab.check.held import Held
from gpulab.check.wire import Arrays, Message
from gpulab.errors import GpulabError, UsageError
from gpulab.registry import Param
from gpulab.runtime.cache import Store
from gpulab.runtime.device import Device, Function
from gpulab.runtime.objects import PtxBuild

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


def unload(device: Device) -> None:
    """Make the next build load its module afresh, with variables as the file has them.

    Emulated modules always do; CuPy keeps one module for each path until it is told to forget.
    """
    if device.kind == "cuda":
        device.cupy.clear_memo()  # type: ignore[attr-defined]


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
        unload(self.device("plain"))
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
            device.machine.budget, device.machine.blocks = int(budget), message.get("blocks")
            device.machine.unset = int(message["unset"])
        held = Held(device, function, inputs, message["dims"], int(message["poison"]))
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
        """Fill some of the module's variables with a byte, as if an earlier launch had left it."""
        machine: Any = getattr(self.device("plain"), "machine", None)
        variables = self._variables("plain")
        for address, initial in (variables[name] for name in message["names"]):
            machine.write(address, np.full(len(initial), int(message["byte"]), np.uint8))
        return {}, {}

    # -- time (card) ----------------------------------------------------------------------------

    def time(self, message: Message, inputs: Arrays) -> tuple[Message, Arrays]:
        """Times of a freshly loaded module, and a digest of every timed output."""
        from gpulab.check import timed

        if self.request is None:
            raise UsageError("nothing is built")
        return timed.take(self.device("plain"), self.request, message, inputs), {}
