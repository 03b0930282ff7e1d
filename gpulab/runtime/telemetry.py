"""Clocks, power and throttling of a card while it is being timed.

NVIDIA's Python binding is used where it is installed, else nvidia-smi, which answers the same
questions more slowly. Where neither is there the record says so; a figure is never made up.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

THROTTLE_BITS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock",
}
"""Reasons why clocks are below what was asked for. Source: NVML API reference,
``nvmlClocksEventReasons`` (0x1 idle and 0x2 application clocks are no throttling)."""

_FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)


@dataclass(frozen=True)
class Telemetry:
    """One reading; None where the card or the driver does not tell.

    Args:
        sm_clock_mhz: of the SMs.
        memory_clock_mhz: of the memory.
        power_w: drawn by the board.
        temperature_c: of the chip.
        throttle: why clocks are held down; empty = they are not.
        unavailable: why there is no reading at all.
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] = ()
    unavailable: str | None = None

    def to_record(self) -> dict[str, Any]:
        """JSON-able fields."""
        return {**asdict(self), "throttle": list(self.throttle)}


def throttle_names(bits: int) -> tuple[str, ...]:
    """The reasons in a bit mask, in words."""
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def reader(pci_bus_id: str) -> Callable[[], Telemetry]:
    """What reads a card's telemetry; found out once, since loading the binding takes time.

    Args:
        pci_bus_id: ``0000:1b:00.0``, as CUDA names the card.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
    except Exception as error:  # not installed, no library, no permission: all the same here
        why = f"pynvml: {type(error).__name__}: {error}"
    else:
        return lambda: _from_nvml(nvml, handle)
    program = shutil.which("nvidia-smi")
    if program is None:
        nothing = Telemetry(unavailable=f"{why}; nvidia-smi is not there")
        return lambda: nothing
    return lambda: _from_smi(program, pci_bus_id)


def _from_nvml(nvml: Any, handle: Any) -> Telemetry:
    def ask(name: str, *args: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *args)
        except (nvml.NVMLError, AttributeError):
            return None  # this card or driver does not tell

    power = ask("nvmlDeviceGetPowerUsage")
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return Telemetry(
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        power_w=None if power is None else power / 1000,
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttle=throttle_names(bits or 0),
    )


def _from_smi(program: str, pci_bus_id: str) -> Telemetry:
    command = [program, f"--id={pci_bus_id}", f"--query-gpu={','.join(_FIELDS)}"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Telemetry(unavailable=f"nvidia-smi: {error}")
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        return Telemetry(unavailable=f"nvidia-smi: {said[0] if said else done.returncode}")
    return parse_smi(done.stdout)


def parse_smi(line: str) -> Telemetry:
    """Read the line that nvidia-smi prints for the fields asked; ``[N/A]`` becomes None."""
    parts = [part.strip() for part in line.strip().split(",")]
    if len(parts) != len(_FIELDS):
        return Telemetry(unavailable=f"nvidia-smi said {line.strip()!r}")

    def number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:
            return None

    sm, memory, power, temperature = (number(part) for part in parts[:4])
    reading = Telemetry(
        sm_clock_mhz=None if sm is None else int(sm),
        memory_clock_mhz=None if memory is None else int(memory),
        power_w=power,
        temperature_c=None if temperature is None else int(temperature),
    )
    try:
        return replace(reading, throttle=throttle_names(int(parts[4], 16)))
    except ValueError:
        return reading
