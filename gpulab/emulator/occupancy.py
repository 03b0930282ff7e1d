"""How many blocks of a kernel an SM holds at once, and which resource says so.

The rules are those of the CUDA occupancy calculator: warps get registers in whole units from one
of four sub-partitions, a block gets shared memory in whole units plus what the system reserves.
Source: ``cuda_occupancy.h`` of the CUDA toolkit (the rules) and ``gpulab.arch`` (the numbers).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.arch import WARP_SIZE, Arch
from gpulab.errors import UsageError

SUB_PARTITIONS = 4
"""Schedulers of an SM, each with its own quarter of the register file (every sm_75 and later)."""
MAX_THREADS_PER_BLOCK = 1024
RESOURCES = ("warps", "blocks", "registers", "shared memory")


@dataclass(frozen=True)
class Occupancy:
    """What an SM can hold.

    Args:
        blocks_per_sm: resident blocks; 0 means the kernel cannot be launched at all.
        warps_per_sm: resident warps.
        max_warps_per_sm: the most the architecture holds.
        limited_by: the resources that allow no further block, in the order of ``RESOURCES``; not
            one that the kernel does not use.
        limits: blocks that each resource alone would allow (ncu's ``launch__occupancy_limit_*``).
    """

    blocks_per_sm: int
    warps_per_sm: int
    max_warps_per_sm: int
    limited_by: tuple[str, ...]
    limits: dict[str, int]

    @property
    def fraction(self) -> float:
        """Resident warps over the most there can be (ncu's theoretical occupancy), 0 to 1."""
        return self.warps_per_sm / self.max_warps_per_sm


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(arch: Arch, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Occupancy of a kernel on one SM.

    Args:
        arch: the architecture's row.
        threads: threads of a block.
        registers: registers of a thread, as the compiled object says.
        shared_bytes: static and dynamic shared memory of a block; the carve-out between L1 and
            shared memory is taken to be the largest.

    Raises:
        UsageError: a block no architecture can have, or a negative resource.
    """
    if not 1 <= threads <= MAX_THREADS_PER_BLOCK:
        raise UsageError(f"a block of {threads} threads is outside 1 .. {MAX_THREADS_PER_BLOCK}")
    if registers < 0 or shared_bytes < 0:
        raise UsageError(f"{registers} registers and {shared_bytes} shared bytes: below zero")
    warps = -(-threads // WARP_SIZE)
    limits = {
        "warps": arch.max_warps_per_sm // warps,
        "blocks": arch.max_blocks_per_sm,
        "registers": _by_registers(arch, warps, registers),
        "shared memory": _by_shared(arch, shared_bytes),
    }
    blocks = min(limits.values())
    unused = {
        name
        for name, taken in (
            ("registers", registers),
            ("shared memory", shared_bytes + arch.shared_reserved_bytes),
        )
        if taken == 0
    }
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        max_warps_per_sm=arch.max_warps_per_sm,
        limited_by=tuple(n for n in RESOURCES if limits[n] == blocks and n not in unused),
        limits=limits,
    )


def _by_registers(arch: Arch, warps: int, registers: int) -> int:
    """Blocks the register file allows."""
    if registers == 0:
        return arch.max_blocks_per_sm
    per_warp = _up(registers * WARP_SIZE, arch.register_allocation_unit)
    # The hardware's launch check counts warps in whole rounds over the sub-partitions.
    if (
        registers > arch.max_registers_per_thread
        or per_warp * _up(warps, SUB_PARTITIONS) > arch.registers_per_sm
    ):
        return 0
    warps_per_partition = arch.registers_per_sm // SUB_PARTITIONS // per_warp
    return warps_per_partition * SUB_PARTITIONS // warps


def _by_shared(arch: Arch, shared_bytes: int) -> int:
    """Blocks the shared memory allows (the reserved part counts even where a block asks none)."""
    if shared_bytes > arch.shared_per_block_bytes:
        return 0
    taken = _up(shared_bytes + arch.shared_reserved_bytes, arch.shared_allocation_unit)
    return arch.shared_per_sm_bytes // taken if taken else arch.max_blocks_per_sm
