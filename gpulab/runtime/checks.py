"""Checks of arguments and launch shapes that every device makes before any device code runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab import arch
from gpulab.emulator.occupancy import SUB_PARTITIONS, occupancy
from gpulab.errors import UsageError
from gpulab.registry import Capability, LaunchPlan, Param, TensorBox
from gpulab.runtime.objects import DeviceArray
from gpulab.runtime.resources import Resources

_RAW_KINDS = "uif"  # what a host array may hold; ml_dtypes types are of kind V


def check_host_array(host: NDArray[Any], name: str) -> None:
    """Refuse a host array that cannot be copied to a device as it is.

    Raises:
        UsageError: not C-contiguous, or elements that are not plain numbers.
    """
    what = f"array {name or '(unnamed)'}"
    if host.dtype.kind not in _RAW_KINDS or not host.dtype.isnative:
        raise UsageError(
            f"{what} holds {host.dtype}: devices take raw codes",
            fix="pass array.view(numpy.uint16) or .view(numpy.uint8)",
        )
    if not host.flags.c_contiguous:
        raise UsageError(f"{what} is not C-contiguous", fix="numpy.ascontiguousarray(array)")


def check_arguments(entry: str, params: Sequence[Param], args: Sequence[Any]) -> None:
    """Refuse a wrong number of arguments, and a wrong kind, dtype or shape of one of them.

    Args:
        entry: the kernel, for messages.
        params: its parameter list.
        args: device arrays and numbers, in that order; the dims among them determine the shapes.

    Raises:
        UsageError: names the kernel, the argument, what was passed and what is needed.
    """
    if len(params) != len(args):
        names = ", ".join(p.name for p in params)
        raise UsageError(f"{entry} takes {len(params)} arguments ({names}), got {len(args)}")
    dims = {p.name: a for p, a in zip(params, args, strict=True) if p.role == "dim"}
    for param, arg in zip(params, args, strict=True):
        what = f"{entry}: argument {param.name}"
        if param.role in ("in", "out"):
            continue
        if isinstance(arg, bool | np.bool_) or not isinstance(arg, int | float | np.number):
            raise UsageError(f"{what} must be a number, got {type(arg).__name__}")
        # A dim is exactly integral, and representable in the int the kernel takes.
        limits = _integer_limits(param)
        if limits and (not isinstance(arg, int | np.integer) or not _within(arg, limits)):
            raise UsageError(f"{what} is {arg}, must be an integer in {limits[0]} .. {limits[1]}")
    for param, arg in zip(params, args, strict=True):
        if param.role in ("in", "out"):
            _check_array(f"{entry}: argument {param.name}", param, arg, dims)


def _integer_limits(param: Param) -> tuple[int, int] | None:
    if param.role == "dim":
        return 0, 2**31 - 1
    if not param.format.startswith("int"):
        return None
    info = np.iinfo(param.dtype)
    return int(info.min), int(info.max)


def _within(value: Any, limits: tuple[int, int]) -> bool:
    return limits[0] <= int(value) <= limits[1]


def _check_array(what: str, param: Param, arg: Any, dims: dict[str, Any]) -> None:
    if not isinstance(arg, DeviceArray):
        raise UsageError(f"{what} must be a device array, got {type(arg).__name__}")
    if arg.dtype != param.dtype:
        raise UsageError(f"{what} holds {arg.dtype}, needs {param.dtype} ({param.format})")
    # A dim that the kernel does not take is free, but the number of dims is not.
    want = tuple(int(dims[d]) if d in dims else None for d in param.dims)
    if len(arg.shape) != len(want) or any(
        w is not None and w != got for w, got in zip(want, arg.shape, strict=True)
    ):
        shown = ", ".join(f"{d}={dims[d]}" if d in dims else d for d in param.dims)
        raise UsageError(f"{what} has shape {arg.shape}, needs ({shown})")


def check_plan(
    entry: str,
    plan: LaunchPlan,
    name: str,
    capability: Capability,
    resources: Resources | None = None,
) -> None:
    """Refuse a launch shape that no card of this capability accepts.

    Args:
        entry: the kernel, for messages.
        plan: the launch shape.
        name: the device, for messages.
        capability: the capability whose limits apply.
        resources: what the compiled kernel itself uses, if it is known.

    Raises:
        UsageError: names the limit.
    """
    x, y, z = plan.block
    threads = x * y * z
    if min(plan.block) < 1 or threads > 1024 or z > 64:
        raise UsageError(f"{entry}: block {plan.block} is outside 1 .. 1024 threads (z to 64)")
    gx, gy, gz = plan.grid
    if min(plan.grid) < 0 or gx >= 2**31 or gy > 65535 or gz > 65535:
        raise UsageError(f"{entry}: grid {plan.grid} exceeds (2^31 - 1, 65535, 65535)")
    if plan.cluster < 1 or gx % plan.cluster:
        raise UsageError(f"{entry}: {gx} blocks are not whole clusters of {plan.cluster}")
    limits = arch.get(capability)
    static = resources.shared_bytes if resources else 0
    where = f"{name} ({arch.sm(capability)})"
    if plan.shared_bytes < 0 or plan.shared_bytes + static > limits.shared_per_block_bytes:
        raise UsageError(
            f"{entry}: {plan.shared_bytes + static} bytes of shared memory; "
            f"{where} allows {limits.shared_per_block_bytes}",
            fix="use a smaller tile or fewer stages",
        )
    if resources is None:
        return
    most = resources.max_threads_per_block
    if most is not None and threads > most:
        raise UsageError(
            f"{entry}: a block of {threads} threads; it is compiled for at most {most}",
            fix="launch the block size that __launch_bounds__ names",
        )
    held = occupancy(limits, threads, resources.registers, plan.shared_bytes + static)
    if held.limits["registers"] == 0:
        raise UsageError(
            f"{entry}: {threads} threads of {resources.registers} registers; "
            f"{where} has {limits.registers_per_sm} an SM, in "
            f"{SUB_PARTITIONS} parts that take warps in turns",
            fix="use smaller blocks, or __launch_bounds__",
        )


_TENSOR_MAPS_FROM: Capability = (9, 0)
_GRAIN_BYTES = 16
"""The rows of a matrix and of a box that TMA copies must be multiples of this."""
_MOST_IN_BOX = 256
_SWIZZLES = (0, 32, 64, 128)


def check_maps(
    entry: str,
    plan: LaunchPlan,
    params: Sequence[Param],
    args: Sequence[Any],
    capability: Capability,
) -> None:
    """Refuse arrays and boxes that cannot be encoded as tensor maps.

    Args:
        entry: the kernel, for messages.
        plan: launch plan, whose ``maps`` are checked.
        params: the kernel's parameter list.
        args: its arguments, which ``check_arguments`` has accepted.
        capability: the capability whose limits apply.

    Raises:
        UsageError: names the argument and the limit.

    Source: CUDA Driver API, ``cuTensorMapEncodeTiled``.
    """
    if plan.maps and capability < _TENSOR_MAPS_FROM:
        raise UsageError(f"{entry}: tensor maps need sm_90")
    arrays = {p.name: a for p, a in zip(params, args, strict=True) if p.role in ("in", "out")}
    for box in plan.maps:
        array = arrays.get(box.param)
        what = f"{entry}: tensor map of {box.param}"
        if array is None or len(array.shape) != 2:
            raise UsageError(f"{what}: not a two-dimensional array of its parameters")
        _check_box(what, box, array)


def _check_box(what: str, box: TensorBox, array: DeviceArray) -> None:
    size = array.dtype.itemsize
    row, inner = array.shape[1] * size, box.columns * size
    if row == 0 or row % _GRAIN_BYTES:
        raise UsageError(
            f"{what}: rows of {row} bytes; TMA takes multiples of {_GRAIN_BYTES}",
            fix="pad the rows, or use a kernel that takes any",
        )
    if not 1 <= box.rows <= _MOST_IN_BOX or not 1 <= box.columns <= _MOST_IN_BOX:
        raise UsageError(f"{what}: a box of {box.rows} x {box.columns} exceeds {_MOST_IN_BOX}")
    if inner % _GRAIN_BYTES or box.swizzle_bytes not in _SWIZZLES:
        raise UsageError(f"{what}: box rows of {inner} bytes, swizzle of {box.swizzle_bytes}")
    if box.swizzle_bytes and inner > box.swizzle_bytes:
        raise UsageError(f"{what}: box rows of {inner} bytes, a swizzle spans {box.swizzle_bytes}")
