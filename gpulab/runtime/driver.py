"""What the NVIDIA driver says of itself and of its cards, with the standard library alone.

``scripts/choose_extra.py`` runs this file before anything is installed, so it imports nothing
but the standard library and nothing of the lab.
"""

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

LOWEST = (7, 5)
"""The lowest compute capability the lab's kernels are compiled for."""

_FIRST_RELEASE = {13: 580, 12: 525}
"""The first driver release of each CUDA major version. Source: CUDA release notes, table
"CUDA Toolkit and Minimum Required Driver Version"."""

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@dataclass(frozen=True)
class Card:
    """One card the driver lists.

    Args:
        index: as CUDA counts.
        name: ``NVIDIA H200``.
        capability: (major, minor).
    """

    index: int
    name: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Driver:
    """The driver.

    Args:
        cuda: the CUDA version it runs, (major, minor).
        release: ``580.65.06`` where the kernel module tells it.
        cards: what it lists.
        problem: why there are no cards although the driver is there.
    """

    cuda: tuple[int, int]
    release: str | None
    cards: tuple[Card, ...]
    problem: str | None = None

    def usable(self) -> "Card | None":
        """The first card that is new enough, or None."""
        return next((card for card in self.cards if card.capability >= LOWEST), None)

    @property
    def label(self) -> str:
        """``driver 580.65.06 (CUDA 13.0)``."""
        return f"driver {self.release or 'of unknown release'} (CUDA {self.cuda[0]}.{self.cuda[1]})"


def release(path: Path = Path("/proc/driver/nvidia/version")) -> "str | None":
    """The release of the kernel module; None without one."""
    try:
        text = path.read_text()
    except OSError:
        return None
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


def load() -> "ctypes.CDLL | None":
    """libcuda, loaded here alone; None where it is not installed. Creates no context.

    Its functions declare no arguments: what is no ``int`` of C is passed as the ``ctypes`` value
    it is.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def query(libcuda: "ctypes.CDLL | None" = None) -> "Driver | None":
    """Ask libcuda; None where it is not installed. Creates no context."""
    libcuda = libcuda or load()
    if libcuda is None:
        return None
    number = ctypes.c_int()
    if libcuda.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    cuda = (number.value // 1000, number.value % 1000 // 10)
    code = libcuda.cuInit(0)
    if code != 0:
        text = ctypes.c_char_p()
        libcuda.cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else f"error {code}"
        return Driver(cuda, release(), (), f"cuInit: {reason}")
    libcuda.cuDeviceGetCount(ctypes.byref(number))
    cards = tuple(_card(libcuda, index) for index in range(number.value))
    return Driver(cuda, release(), cards, None if cards else "it lists no card")


def _card(libcuda: ctypes.CDLL, index: int) -> Card:
    device, value = ctypes.c_int(), ctypes.c_int()
    libcuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    libcuda.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        libcuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return Card(index, name.value.decode(errors="replace"), (capability[0], capability[1]))


def extra(driver: "Driver | None") -> "tuple[str | None, str]":
    """The extra whose CuPy runs on this driver, and the reason in words.

    Returns:
        ``("cuda13", ...)``, ``("cuda12", ...)``, or ``(None, ...)`` for the emulated device.
    """
    if driver is None:
        return None, "no NVIDIA driver"
    if driver.problem:
        return None, f"{driver.label}: {driver.problem}"
    if driver.usable() is None:
        have = ", ".join(f"{c.name} (sm_{c.capability[0]}{c.capability[1]})" for c in driver.cards)
        return None, f"{have}: too old, the lab needs sm_75 or newer"
    for major in sorted(_FIRST_RELEASE, reverse=True):
        if driver.cuda[0] >= major:
            return f"cuda{major}", driver.label
    return None, (
        f"{driver.label} is too old: update it to {_FIRST_RELEASE[12]} or newer (CUDA 12)"
    )
