"""Registers, spills, shared memory, barriers and warnings, read from what ptxas -v said."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gpulab.errors import BuildError

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")
_WARNING = re.compile(r"^.*(?:warning\s*:|\(C7\d{3}\)).*$", re.MULTILINE)
_MAX_THREADS = re.compile(r"^\s*\.(?:max|req)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", re.M)


@dataclass(frozen=True)
class Resources:
    """What one kernel takes, in ptxas' words.

    Args:
        registers: per thread.
        stack_bytes: local memory per thread (arrays indexed at run time, and spills).
        spill_store_bytes: written per thread for want of registers.
        spill_load_bytes: read again.
        shared_bytes: static shared memory per block.
        barriers: named barriers used.
        max_threads_per_block: what ``__launch_bounds__`` promised, if it did.
        warnings: ptxas' warnings and advisories, among them C7510 and C7511 (wgmma serialised).
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    barriers: int
    max_threads_per_block: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def spill_bytes(self) -> int:
        """Bytes stored and loaded again for want of registers."""
        return self.spill_store_bytes + self.spill_load_bytes


def parse(log: str, lowered: str, ptx: str = "") -> Resources:
    """Read the figures of one entry.

    Args:
        log: of a compilation with ``--ptxas-options=-v``.
        lowered: the mangled name of the kernel.
        ptx: for the launch bounds, which the log does not tell.

    Raises:
        BuildError: the log does not hold them (another ptxas than the ones known).
    """
    starts = list(_ENTRY.finditer(log))
    for index, start in enumerate(starts):
        if start[1] != lowered:
            continue
        end = starts[index + 1].start() if index + 1 < len(starts) else len(log)
        part = log[start.end() : end]
        spill, used = _SPILL.search(part), _USED.search(part)
        if spill is None or used is None:
            break
        barriers = _BARRIERS.search(part)
        return Resources(
            registers=int(used[1]),
            stack_bytes=int(spill[1]),
            spill_store_bytes=int(spill[2]),
            spill_load_bytes=int(spill[3]),
            shared_bytes=_static_shared(part, start[2]),
            barriers=int(barriers[1]) if barriers else 0,
            max_threads_per_block=_launch_bounds(ptx, lowered),
            warnings=tuple(m[0].strip() for m in _WARNING.finditer(log)),
        )
    raise BuildError(f"ptxas said nothing about {lowered}", log=log)


def _static_shared(part: str, target: str) -> int:
    """Shared memory of one entry, without what the system reserves.

    ptxas names arrays declared inside the kernel; those at module scope (Numba's) are placed by the
    linker, whose line counts the reserved KiB in on sm_90, and there alone.
    """
    by_ptxas, _, by_linker = part.partition("\ninfo ")
    if found := _SHARED.search(by_ptxas):
        return sum(int(n) for n in found.groups() if n)
    found = _SHARED.search(by_linker)
    total = sum(int(n) for n in found.groups() if n) if found else 0
    reserved = 1024 if target.startswith("sm_90") else 0
    return max(0, total - reserved)


def _launch_bounds(ptx: str, lowered: str) -> int | None:
    """Threads of ``.maxntid`` or ``.reqntid``, which stand between the head and its body."""
    head = re.search(rf"\.entry\s+{re.escape(lowered)}\b[^{{]*", ptx)
    bounds = _MAX_THREADS.search(head[0]) if head else None
    return math.prod(int(n) for n in bounds.groups() if n) if bounds else None
