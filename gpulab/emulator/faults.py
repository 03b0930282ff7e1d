"""Faults with everything a reader needs: what, where in the source, which thread and block."""

from __future__ import annotations

from typing import Any

from gpulab.emulator.ptx.nodes import Instr, Location
from gpulab.errors import FaultError

_SYSTEM_FOLDERS = ("/nvidia/cu", "/include/cuda", "/cuda/include", "/numba_cuda/", "/numba/")


def place_of(location: Location | None) -> tuple[str, int] | None:
    """File and line to name: the innermost one outside the toolkit's own headers."""
    if location is None:
        return None
    chain = ((location.file, location.line), *location.inlined_at)
    for file, line in chain:
        if not any(part in file.replace("\\", "/") for part in _SYSTEM_FOLDERS):
            return file, line
    return chain[0]


def fault(
    kind: str,
    message: str,
    instr: Instr | None,
    *,
    thread: tuple[int, ...] | None = None,
    block: tuple[int, ...] | None = None,
    **details: Any,
) -> FaultError:
    """A FaultError; the text names kind, source line, thread and block."""
    place = place_of(instr.location) if instr is not None else None
    parts = [message]
    if place is not None:
        parts.append(f"at {place[0]}:{place[1]}")
    if thread is not None and block is not None:
        parts.append(f"by thread {tuple(thread)} of block {tuple(block)}")
    if instr is not None:
        details["instruction"] = instr.text
        details["ptx_line"] = instr.ptx_line
        if instr.location is not None and instr.location.inlined_at:
            details["inlined_at"] = [list(x) for x in instr.location.inlined_at]
    return FaultError(
        " ".join(parts),
        fault=kind,
        file=place[0] if place else None,
        line=place[1] if place else None,
        thread=list(thread) if thread is not None else None,
        block=list(block) if block is not None else None,
        **details,
    )
