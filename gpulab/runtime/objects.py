"""What a device and its users exchange: arrays, kernels, reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gpulab.registry import NumbaBuild, Param, RawBuild
from gpulab.runtime.resources import Resources


@dataclass(frozen=True)
class DeviceArray:
    """A row-major array in device memory; ``handle`` belongs to the device that made it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    handle: Any
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class PtxBuild:
    """PTX from elsewhere, to be launched as it is.

    Args:
        ptx: the text.
        entry: the kernel's name in it.
        abi: how arrays are passed: ``c`` as pointers, ``numba`` as Numba's array structures.
    """

    ptx: str
    entry: str
    abi: Literal["c", "numba"] = "c"


Build = RawBuild | NumbaBuild | PtxBuild


@dataclass(frozen=True)
class Function:
    """A built kernel.

    Args:
        entry: its name in messages.
        params: its parameter list.
        handle: belongs to the device that built it.
        build: what it was built from.
        resources: registers, spills, shared memory; None where nothing here assembles the PTX.
        ptx: the PTX that it was assembled from.
    """

    entry: str
    params: tuple[Param, ...]
    handle: Any
    build: Build
    resources: Resources | None
    ptx: str


@dataclass
class LaunchReport:
    """What a launch reports besides its outputs: counters (emulated), printf text, and notes."""

    counters: dict[str, Any] | None = None
    printed: str = ""
    notes: list[str] = field(default_factory=list)
