"""Which device: what was asked for, or an error that names the fix; auto says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gpulab import arch
from gpulab.errors import DeviceMissingError, UsageError
from gpulab.runtime.cuda_context import Connection, connect
from gpulab.runtime.device import Device
from gpulab.runtime.emulated import EmulatedDevice
from gpulab.runtime.toolkit import Capability

Wanted = Literal["auto", "cuda", "emulated"]


def open_device(
    wanted: str = "auto",
    *,
    capability: Capability | None = None,
    sanitize: bool = False,
    counters: bool = False,
    target: Capability | None = None,
    budget: int | None = None,
    connect: Callable[[], Connection] = connect,
) -> Device:
    """Open the device that was asked for.

    ``auto`` takes the first usable card, else the emulated device; ``device.reason`` says why. A
    capability, ``sanitize`` or ``counters`` ask for something only the emulated device has, so
    ``auto`` takes it then.

    Args:
        wanted: ``auto``, ``cuda`` or ``emulated``.
        capability: of the emulated device (8.9 unless told); with ``cuda`` it must be the card's.
        sanitize: detect races (emulated device).
        counters: count instructions, sectors and conflicts (emulated device).
        target: compile for this lower capability.
        budget: instruction budget of a launch (emulated device).
        connect: reaches the card.

    Raises:
        DeviceMissingError: ``cuda`` was asked for and there is no usable card; names the fix.
        UsageError: an unknown device, or options that do not go together.
    """
    if wanted not in ("auto", "cuda", "emulated"):
        raise UsageError(f"no device {wanted!r}", fix="choose auto, cuda or emulated")
    if wanted == "cuda":
        return _card(connect(), capability, sanitize, counters, target, "")
    reason = ""
    if wanted == "auto":
        asked = _asks_for_emulation(capability, sanitize, counters)
        if asked is None:
            try:
                connection = connect()
            except DeviceMissingError as missing:
                reason = f"no usable card: {missing.message}"
            else:
                name = connection.card.name
                return _card(connection, None, False, False, target, f"a usable card: {name}")
        else:
            reason = f"{asked} is for the emulated device"
    return EmulatedDevice(
        capability or arch.DEFAULT_EMULATED,
        sanitize=sanitize,
        counters=counters,
        target=target,
        budget=budget,
        reason=reason,
    )


def _asks_for_emulation(
    capability: Capability | None, sanitize: bool, counters: bool
) -> str | None:
    if capability is not None:
        return f"--capability {arch.dotted(capability)}"
    if sanitize:
        return "--sanitize"
    return "--counters" if counters else None


def _card(
    connection: Connection,
    capability: Capability | None,
    sanitize: bool,
    counters: bool,
    target: Capability | None,
    reason: str,
) -> Device:
    from gpulab.runtime.cuda import CudaDevice

    card = connection.card
    if capability is not None and capability != card.capability:
        raise UsageError(
            f"--capability {arch.dotted(capability)}: {card.name} has "
            f"{arch.dotted(card.capability)}",
            fix="leave --capability out, or use --device emulated",
        )
    if sanitize or counters:
        option = "--sanitize" if sanitize else "--counters"
        raise UsageError(f"{option} needs the emulated device", fix=f"--device emulated {option}")
    return CudaDevice(target=target, reason=reason, connection=connection)
