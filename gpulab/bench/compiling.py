"""Compiling everything a measurement needs before it begins, on all cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpulab.errors import GpulabError
from gpulab.registry import Param, RawBuild
from gpulab.runtime import assembly
from gpulab.runtime.device import Device


def compile_ahead(device: Device, wanted: Sequence[tuple[RawBuild, tuple[Param, ...]]]) -> None:
    """Into the cache; an error is left for each kernel's own build to report."""

    def one(pair: tuple[RawBuild, tuple[Param, ...]]) -> None:
        with contextlib.suppress(GpulabError):
            assembly.prepare(*pair, device.target, kit=device.kit)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, wanted))
