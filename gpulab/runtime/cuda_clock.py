"""A card as ``timing`` sees it: events, graphs and the L2 flush, on the device's stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.errors import FaultError, GpulabError, UsageError
from gpulab.runtime import cuda_context, cuda_errors, telemetry
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.device import Device
from gpulab.runtime.telemetry import Telemetry
from gpulab.runtime.timing import CaptureError

_BYTE = np.dtype(np.uint8)
_SUCCESS, _NOT_SUPPORTED = 0, 801  # CUresult
_ATTRIBUTES = {
    "sm_khz": "ClockRate",
    "multiprocessors": "MultiProcessorCount",
    "memory_khz": "MemoryClockRate",
    "memory_bits": "GlobalMemoryBusWidth",
}


class CudaClock:
    """See ``timing.Clock``.

    Args:
        device: the card.
        reset: stands for the driver's ``cuCtxResetPersistingL2Cache``.

    Raises:
        FaultError: the driver does not tell how large the L2 is, so that none can be flushed.
    """

    def __init__(self, device: CudaDevice, reset: Callable[[], int] | None = None) -> None:
        self.device = device
        cuda = device.cupy.cuda
        card = cuda.Device(device.connection.card.index)
        self.l2_bytes = int(card.attributes.get("L2CacheSize", 0))
        if self.l2_bytes <= 0:
            raise FaultError(
                f"the driver does not tell the L2 size of {device.name}: what is timed could not "
                "be flushed from it",
                fix="without times: gpulab run",
                fault="driver_refusal",
            )
        self.flush_bytes = 2 * self.l2_bytes
        self._buffer: Any = device.empty((self.flush_bytes,), _BYTE, 0, "L2 flush").handle
        self._read = telemetry.reader(str(card.pci_bus_id))
        self._pattern = 0
        self._reset = reset

    def flush(self) -> None:
        """Queue overwriting twice the L2, each time with another byte."""
        self._pattern = (self._pattern + 1) % 256
        self._buffer.data.memset_async(self._pattern, self.flush_bytes, self.device.stream)

    def reset_persisting(self) -> None:
        """Make the lines of the L2 that outlive a flush because they persist normal ones.

        Raises:
            FaultError: the driver refuses, and not because the card knows no such lines.
        """
        reset = self._reset or cuda_context.libcuda().cuCtxResetPersistingL2Cache
        status = int(reset())
        if status not in (_SUCCESS, _NOT_SUPPORTED):
            raise FaultError(f"cuCtxResetPersistingL2Cache: error {status}", fault="cuda")

    def peaks(self) -> dict[str, int]:
        """What the driver says of the card: clocks in kHz, the width of its memory bus in bits."""
        card = self.device.cupy.cuda.Device(self.device.connection.card.index)
        known = {name: int(card.attributes.get(key, 0)) for name, key in _ATTRIBUTES.items()}
        return {name: value for name, value in known.items() if value > 0}

    def record(self) -> Any:
        """Queue an event on the device's stream."""
        event = self.device.cupy.cuda.Event()
        event.record(self.device.stream)
        return event

    def passed(self, event: Any) -> bool:
        """Whether the card has reached an event."""
        return bool(event.done)

    def elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two events."""
        return float(self.device.cupy.cuda.get_elapsed_time(start, stop))

    def synchronize(self) -> None:
        """Wait for the whole device."""
        self.device.synchronize()

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Capture the device's stream while ``body`` runs."""
        stream = self.device.stream
        stream.begin_capture()
        try:
            body()
        except (GpulabError, RuntimeError) as error:
            with contextlib.suppress(RuntimeError):  # ends the capture; its graph is void
                stream.end_capture()
            raise CaptureError(str(error)) from None
        try:
            graph = stream.end_capture()
            graph.upload(stream)
        except RuntimeError as error:
            if cuda_errors.kills_context(cuda_errors.status(error) or 0):
                raise cuda_errors.translate(error, "capturing a graph") from None
            raise CaptureError(str(error)) from None
        return lambda: graph.launch(stream)

    def telemetry(self) -> Telemetry:
        """Clocks and power now."""
        return self._read()

    def host_ms(self) -> float:
        """The host's performance counter."""
        return time.perf_counter() * 1e3


def clock_of(device: Device) -> CudaClock:
    """The clock of a card.

    Raises:
        UsageError: the emulated device has no time that would be a GPU's.
    """
    if not isinstance(device, CudaDevice):
        raise UsageError(f"{device.name} has no GPU time: it counts work instead", fix="--counters")
    return CudaClock(device)
