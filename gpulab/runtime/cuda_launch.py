"""Launches through CuPy, and those of blocks that wait for each other.

CuPy's own cooperative launch makes a grid smaller that does not fit, with a warning; a team would
lose members and wait for them for ever. So the driver is called as it is: it refuses.

Source: CUDA Driver API, ``cuLaunchCooperativeKernel``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from gpulab.device_code import LaunchPlan
from gpulab.runtime import card_arrays


def starter(
    cupy: Any, kernel: Any, plan: LaunchPlan, packed: Sequence[bytes], stream: int
) -> Callable[[], None]:
    """What launches a kernel on the stream, which is CuPy's current one then.

    Args:
        cupy: the module.
        kernel: CuPy's.
        plan: its grid is launched as it stands.
        packed: the parameters, each of exactly its bytes.
        stream: its address.
    """
    if plan.team > 1:
        return _together(cupy, kernel.kernel.ptr, plan, packed, stream)
    values = tuple(card_arrays.by_value(part) for part in packed)
    return lambda: kernel(plan.grid, plan.block, values, shared_mem=plan.shared_bytes)


def _together(
    cupy: Any, function: int, plan: LaunchPlan, packed: Sequence[bytes], stream: int
) -> Callable[[], None]:
    """All blocks at once, or the driver's error 720."""
    parts = [ctypes.create_string_buffer(part, len(part)) for part in packed]
    table = (ctypes.c_void_p * len(parts))(*map(ctypes.addressof, parts))
    start = cupy.cuda.driver.launchCooperativeKernel
    shape = (*plan.grid, *plan.block, plan.shared_bytes)

    def launch(parts: Any = parts) -> None:
        # The default keeps alive what the table points to.
        start(function, *shape, stream, ctypes.addressof(table))

    return launch
