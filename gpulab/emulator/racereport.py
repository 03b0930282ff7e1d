"""How a race is told: both threads, both lines, what to do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.observe import Access, LaunchInfo, Location
from gpulab.errors import FaultError


class Event(NamedTuple):
    """What an earlier access was."""

    kind: str
    opcode: str
    location: Location


def stored_bytes(
    access: Access, thread: NDArray[np.int64], column: NDArray[np.int64]
) -> NDArray[np.uint8] | None:
    """The bytes that lanes (thread[n], column[n]) store, uint8[n, nbytes]; None if unknown."""
    if access.values is None or len(thread) == 0:
        return None
    width = access.nbytes // len(access.values)
    parts = []
    for value in access.values:
        bits = np.broadcast_to(value, access.lanes.shape)[thread, column]
        if bits.dtype.kind == "f":
            bits = bits.view(f"u{bits.dtype.itemsize}")
        narrow = np.ascontiguousarray(bits.astype(f"<u{width}"))
        parts.append(narrow.view(np.uint8).reshape(len(thread), width))
    return np.concatenate(parts, axis=1)


def _where(location: Location) -> str:
    return "an unknown line" if location is None else f"{location[0]}:{location[1]}"


def _verb(event: Event) -> str:
    if event.opcode.startswith("cp.async"):
        return "asynchronous copy"
    return event.kind


_ORDER = {"load": "read", "store": "write", "atomic": "atomic"}


def _place(info: LaunchInfo, space: str, address: int) -> tuple[str, str | None]:
    """A byte as a reader finds it, and the name of the buffer that it is in (if known)."""
    if space == "global":
        for a in info.allocations:
            if a.address <= address < a.address + a.nbytes:
                return f"byte {address - a.address} of {a.name or 'a buffer'}", a.name
    return f"shared byte {address}", None


def _missing(thread: tuple[int, int], other: tuple[int, int], pending: bool) -> tuple[str, str]:
    """What does not order two accesses of (thread, block), and what would."""
    if pending:
        return (
            "the copy has not been waited for",
            "wait for the copy (cp.async.wait_group), then meet at __syncthreads()",
        )
    if thread[1] != other[1]:
        return (
            "nothing orders the two blocks",
            "give each block its own place, use an atomic, or split the kernel in two",
        )
    if thread[0] // 32 == other[0] // 32:
        return (
            "nothing orders the two lanes",
            "put __syncwarp() or __syncthreads() between the two, or use an atomic",
        )
    return (
        "no barrier lies between",
        "put __syncthreads() between the two, or use an atomic",
    )


def race_fault(
    info: LaunchInfo,
    access: Access,
    *,
    address: int,
    thread: tuple[int, int],
    other: tuple[int, int],
    earlier: Event,
    pending: bool,
) -> FaultError:
    """The fault for a race.

    Args:
        info: the launch.
        access: the second access.
        address: first racing byte (device address, or offset in the block's shared window).
        thread: linear (thread, block) of the second access.
        other: the same of the first.
        earlier: the first access.
        pending: it is a copy that has not been waited for.
    """
    t, b = info.thread_index(thread[0]), info.block_index(thread[1])
    u, c = info.thread_index(other[0]), info.block_index(other[1])
    later = Event(access.kind, access.opcode, access.location)
    place, buffer = _place(info, access.space, address)
    between, fix = _missing(thread, other, pending)
    second = f" of block {c}" if c != b else ""
    message = (
        f"race in {info.kernel} on {place}: {_verb(earlier)} by thread {u}{second} at "
        f"{_where(earlier.location)}, {_verb(later)} by thread {t} of block {b} at "
        f"{_where(later.location)}; {between}"
    )
    file, line = later.location or (None, None)
    other_file, other_line = earlier.location or (None, None)
    return FaultError(
        message,
        fix=fix,
        fault="race",
        space=access.space,
        hazard=f"{_ORDER[later.kind]}-after-{_ORDER[earlier.kind]}",
        file=file,
        line=line,
        thread=t,
        block=b,
        other_file=other_file,
        other_line=other_line,
        other_thread=u,
        other_block=c,
        address=address,
        buffer=buffer,
    )
