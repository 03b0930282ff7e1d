"""Compute capabilities, one row each: names, compile targets and the limits of one SM.

Sources: ``cuda_occupancy.h`` of the CUDA 13 toolkit (blocks an SM, allocation units of registers
and shared memory, shared memory an SM); CUDA Programming Guide, appendix "Compute Capabilities"
(warps, registers, shared memory a block and the kilobyte reserved of it) and its table of
arithmetic throughput (fp32 multiply-adds a clock).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpulab.errors import UsageError

Capability = tuple[int, int]
KIB = 1024
PORTABLE_CLUSTER = 8
"""Blocks of a cluster that every card with clusters takes."""
LOWEST: Capability = (7, 5)
WARP_SIZE = 32
EMULATED: tuple[Capability, ...] = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
"""The capabilities whose arithmetic the emulated device models."""
DEFAULT_EMULATED: Capability = (8, 9)
"""The one it has unless told: the lowest on which every mma.sync format of the lab runs."""


@dataclass(frozen=True)
class Arch:
    """One compute capability.

    Args:
        capability: (major, minor).
        name: the architecture's name.
        examples: cards that have it.
        feature_specific: there is an ``sm_XXa`` target with instructions of its own.
        max_warps_per_sm: resident warps of one SM.
        max_blocks_per_sm: resident blocks of one SM.
        shared_per_sm_bytes: shared memory of one SM.
        shared_reserved_bytes: shared memory the system takes from each resident block.
        shared_allocation_unit: bytes; a block's shared memory is rounded up to it.
        fp32_fma_per_clock_per_sm: float32 fused multiply-adds an SM can issue in a clock.
    """

    capability: Capability
    name: str
    examples: tuple[str, ...]
    feature_specific: bool
    max_warps_per_sm: int
    max_blocks_per_sm: int
    shared_per_sm_bytes: int
    shared_reserved_bytes: int
    shared_allocation_unit: int
    fp32_fma_per_clock_per_sm: int
    registers_per_sm: int = 64 * 1024
    register_allocation_unit: int = 256
    max_registers_per_thread: int = 255
    banks: int = 32

    @property
    def target(self) -> str:
        """Compile target: ``sm_90``."""
        return sm(self.capability)

    @property
    def feature_target(self) -> str | None:
        """Architecture-specific compile target (``sm_90a``), or None."""
        return self.target + "a" if self.feature_specific else None

    @property
    def max_threads_per_sm(self) -> int:
        """Resident threads of one SM."""
        return self.max_warps_per_sm * WARP_SIZE

    @property
    def shared_per_block_bytes(self) -> int:
        """Most shared memory of one block, dynamic with opt-in."""
        return self.shared_per_sm_bytes - self.shared_reserved_bytes


def _row(
    capability: Capability,
    name: str,
    examples: tuple[str, ...],
    *,
    warps: int,
    blocks: int,
    shared_kib: int,
    fma: int,
) -> Arch:
    """A row whose remaining fields follow from the generation."""
    turing = capability < (8, 0)
    return Arch(
        capability,
        name,
        examples,
        feature_specific=capability >= (9, 0),
        max_warps_per_sm=warps,
        max_blocks_per_sm=blocks,
        shared_per_sm_bytes=shared_kib * KIB,
        shared_reserved_bytes=0 if turing else KIB,
        shared_allocation_unit=256 if turing else 128,
        fp32_fma_per_clock_per_sm=fma,
    )


ARCHES: dict[Capability, Arch] = {
    row.capability: row
    for row in (
        _row((7, 5), "Turing", ("T4", "RTX 2080"), warps=32, blocks=16, shared_kib=64, fma=64),
        _row((8, 0), "Ampere", ("A100", "A30"), warps=64, blocks=32, shared_kib=164, fma=64),
        _row((8, 6), "Ampere", ("A40", "RTX 3090"), warps=48, blocks=16, shared_kib=100, fma=128),
        _row((8, 7), "Ampere", ("Jetson Orin",), warps=48, blocks=16, shared_kib=164, fma=128),
        _row(
            (8, 9), "Ada", ("L4", "L40S", "RTX 4090"), warps=48, blocks=24, shared_kib=100, fma=128
        ),
        _row((9, 0), "Hopper", ("H100", "H200"), warps=64, blocks=32, shared_kib=228, fma=128),
        _row((10, 0), "Blackwell", ("B200",), warps=64, blocks=32, shared_kib=228, fma=128),
        _row((10, 3), "Blackwell", ("B300",), warps=64, blocks=32, shared_kib=228, fma=128),
        _row((11, 0), "Blackwell", ("Jetson Thor",), warps=48, blocks=24, shared_kib=228, fma=128),
        _row(
            (12, 0),
            "Blackwell",
            ("RTX 5090", "RTX PRO 6000"),
            warps=48,
            blocks=24,
            shared_kib=100,
            fma=128,
        ),
        _row((12, 1), "Blackwell", ("DGX Spark",), warps=48, blocks=24, shared_kib=100, fma=128),
    )
}


def dotted(capability: Capability) -> str:
    """``8.9``, as users write it and records hold it."""
    return "{}.{}".format(*capability)


def sm(capability: Capability) -> str:
    """``sm_89``, as compilers name it."""
    return "sm_{}{}".format(*capability)


def get(capability: Capability) -> Arch:
    """The row of a capability; an unknown minor takes the nearest lower row of its major.

    Raises:
        UsageError: below 7.5, or a generation without a row.
    """
    if capability < LOWEST:
        raise UsageError(
            f"compute capability {dotted(capability)} is too old: the lab needs {sm(LOWEST)} or "
            "newer",
            fix=f"give --capability {dotted(LOWEST)} or newer; beside an older card, "
            "--device emulated",
        )
    below = [c for c in ARCHES if c[0] == capability[0] and c <= capability]
    if not below:
        known = ", ".join(map(dotted, ARCHES))
        raise UsageError(
            f"compute capability {dotted(capability)} is not known", fix=f"known: {known}"
        )
    return ARCHES[max(below)]


def check_emulated(capability: Capability) -> None:
    """Refuse a capability that the emulated device does not have.

    Raises:
        UsageError: lists those that it has.
    """
    if capability not in EMULATED:
        raise UsageError(
            f"the emulated device has no capability {dotted(capability)}",
            fix=f"choose one of: {', '.join(map(dotted, EMULATED))}",
        )


def parse(text: str) -> Capability:
    """``"8.9"`` (also ``sm_89``) as (8, 9), checked to be one the lab supports.

    Raises:
        UsageError: not a capability, too old, or of an unknown generation.
    """
    match = re.fullmatch(r"(\d{1,3})\.(\d)|sm_(\d{1,3})(\d)a?", text.strip().lower())
    if match is None:
        raise UsageError(
            f"{text!r} is not a compute capability", fix="write MAJOR.MINOR, for example 8.9"
        )
    major, minor = (part for part in match.groups() if part is not None)
    capability = int(major), int(minor)
    get(capability)
    return capability
