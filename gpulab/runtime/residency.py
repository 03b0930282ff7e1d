"""How many blocks of a persistent kernel a card holds at once, and how many of them to launch."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

from gpulab import arch
from gpulab.device_code import LaunchPlan
from gpulab.errors import FaultError
from gpulab.runtime import cuda_context

_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: the value is a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_uint * 16),
    )


class _Configuration(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def allow_cluster(function: int, plan: LaunchPlan) -> None:
    """Ask the driver for clusters of more blocks than every card takes, where a plan has them.

    Args:
        function: the ``CUfunction``.
        plan: its launch.

    Raises:
        FaultError: the driver refuses.
    """
    if plan.cluster <= arch.PORTABLE_CLUSTER:
        return
    allow = cuda_context.libcuda().cuFuncSetAttribute
    status = allow(ctypes.c_void_p(function), _LARGE_CLUSTERS, 1)
    if status != 0:
        raise FaultError(
            f"the driver refuses clusters of {plan.cluster} blocks: status {status}",
            fault="driver_refusal",
        )


def clusters_at_once(function: int, plan: LaunchPlan) -> int:
    """Clusters of a kernel that the whole card holds at once; no cluster spans two GPCs.

    Args:
        function: the ``CUfunction``.
        plan: its launch.

    Returns:
        The number of clusters, at least 1.

    Raises:
        FaultError: the driver refuses the question, or the card holds no such cluster.
    """
    attribute = _Attribute(id=_CLUSTER_DIMENSION)
    attribute.value[0:3] = (plan.cluster, 1, 1)
    wanted = _Configuration(
        grid=(plan.cluster, 1, 1),
        block=plan.block,
        shared_bytes=plan.shared_bytes,
        attributes=ctypes.pointer(attribute),
        attribute_count=1,
    )
    count = ctypes.c_int()
    ask = cuda_context.libcuda().cuOccupancyMaxActiveClusters
    status = ask(ctypes.byref(count), ctypes.c_void_p(function), ctypes.byref(wanted))
    if status != 0 or count.value < 1:
        threads = math.prod(plan.block)
        raise FaultError(
            f"the card holds no cluster of {plan.cluster} blocks of {threads} threads and "
            f"{plan.shared_bytes} bytes of shared memory"
            if status == 0
            else f"cuOccupancyMaxActiveClusters refuses clusters of {plan.cluster} blocks of "
            f"{threads} threads and {plan.shared_bytes} bytes of shared memory: status {status}",
            fault="driver_refusal",
        )
    return count.value


def blocks_along_x(plan: LaunchPlan, multiprocessors: int, clusters: Callable[[], int]) -> int:
    """Blocks to launch along x.

    Args:
        plan: launch plan of the kernel.
        multiprocessors: number of multiprocessors of the card.
        clusters: asks how many clusters the card holds at once; called for clusters of more than
            one block only.

    Returns:
        The grid's x of an ordinary kernel. For a persistent kernel at most the blocks that the
        card holds at once, and with ``equal_shares`` fewer, if each of them then takes the same
        number of turns.
    """
    if not plan.persistent:
        return plan.grid[0]
    wanted = plan.grid[0] // plan.cluster
    held = multiprocessors * plan.blocks_an_sm // plan.cluster
    if plan.cluster > 1:
        held = min(held, clusters())
    if plan.equal_shares and wanted > held:
        turns = -(-wanted // held)
        held = wanted // turns if wanted % turns == 0 else held
    return min(wanted, held) * plan.cluster
