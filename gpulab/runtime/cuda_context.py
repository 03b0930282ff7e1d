"""From a machine to a card that CuPy can use, or to the one thing that stands in the way."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpulab.errors import DeviceMissingError
from gpulab.runtime import driver as driver_facts
from gpulab.runtime import toolkit
from gpulab.runtime.driver import Card, Driver

EMULATED = "use --device emulated (not with bench: it measures time)"


@dataclass(frozen=True)
class Connection:
    """A usable card: CuPy, the driver and the card."""

    cupy: Any
    driver: Driver
    card: Card


def _import_cupy() -> Any:
    return importlib.import_module("cupy")


def libcuda() -> ctypes.CDLL:
    """The driver's library, whose functions act on the context that is current.

    Raises:
        DeviceMissingError: it is not installed.
    """
    found = driver_facts.load()
    if found is None:
        raise _no_driver()
    return found


def _no_driver() -> DeviceMissingError:
    return DeviceMissingError(
        "no NVIDIA driver is installed (libcuda.so.1 is not there)",
        fix=f"install the NVIDIA driver, or {EMULATED}",
    )


def cupy_version(cupy: Any) -> tuple[int, int]:
    """The CUDA version a CuPy is built for, (major, minor)."""
    number = int(cupy.cuda.runtime.runtimeGetVersion())
    return number // 1000, number % 1000 // 10


def connect(
    *,
    query: Callable[[], Driver | None] = driver_facts.query,
    import_cupy: Callable[[], Any] = _import_cupy,
) -> Connection:
    """The first usable card.

    Args:
        query: asks the driver.
        import_cupy: loads CuPy.

    Raises:
        DeviceMissingError: no driver, no card, a card below 7.5, no CuPy, or a CuPy built for a
            newer CUDA than the driver runs; each names what fixes it.
    """
    driver = query()
    if driver is None:
        raise _no_driver()
    if driver.problem:
        raise DeviceMissingError(
            f"{driver.label} gives no card: {driver.problem}",
            fix=f"see nvidia-smi and CUDA_VISIBLE_DEVICES, or {EMULATED}",
        )
    card = driver.usable()
    if card is None:
        have = ", ".join(f"{c.name} ({c.capability[0]}.{c.capability[1]})" for c in driver.cards)
        raise DeviceMissingError(
            f"{have}: the lab needs compute capability 7.5 or newer",
            fix=f"use a newer card, or {EMULATED}",
        )
    extra, reason = driver_facts.extra(driver)
    if extra is None:
        raise DeviceMissingError(reason, fix=f"update the NVIDIA driver, or {EMULATED}")
    install = toolkit.pip_extra(extra)
    try:
        cupy = import_cupy()
    except ImportError as error:
        # CuPy raises ImportError too when a library it needs is missing or cannot be loaded.
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        what = "is not installed" if missing else f"cannot be imported: {str(error).strip()}"
        raise DeviceMissingError(f"{card.name} is there, but CuPy {what}", fix=install) from None
    built = cupy_version(cupy)
    if built[0] > driver.cuda[0]:
        raise DeviceMissingError(
            f"{driver.label} is older than the CUDA {built[0]}.{built[1]} that CuPy "
            f"{cupy.__version__} is built for",
            fix=f"pip uninstall -y cupy-cuda{built[0]}x && {install}",
            driver_cuda=f"{driver.cuda[0]}.{driver.cuda[1]}",
            cupy_cuda=f"{built[0]}.{built[1]}",
        )
    try:
        cupy.cuda.Device(card.index).use()
        cupy.cuda.runtime.free(0)  # makes the context now, so that a failure is named here
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceMissingError(
            f"{card.name} cannot be used: {error}",
            fix=f"see nvidia-smi (another process, exclusive mode?), or {EMULATED}",
        ) from None
    return Connection(cupy, driver, card)
