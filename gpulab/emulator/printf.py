"""Device printf: the format string and the argument buffer of ``vprintf`` to text.

Source: CUDA C++ Programming Guide, "Formatted Output": C conversions, at most 32 arguments, output
in a buffer of bounded size.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gpulab.emulator.faults import fault
from gpulab.emulator.ops.memory import load_from
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.spaces import GLOBAL_BASE
from gpulab.emulator.values import Array, Mask

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXeEfFgGaAcsp%])"
)
BUFFER_BYTES = 1 << 20
"""Text kept of one launch, the default size of the device's buffer."""


def string_at(state: Any, instr: Instr, address: int) -> str:
    """The zero-terminated string at a device address.

    Raises:
        FaultError: it lies in no allocation.
    """
    memory = state.memory
    block = memory.find(address - GLOBAL_BASE)
    if block is None:
        raise fault("out_of_bounds", f"no string at {address:#x}", instr, space="global")
    raw = memory.data[address - GLOBAL_BASE : block.end].tobytes()
    return str(raw.partition(b"\0")[0].decode("utf-8", "replace"))


def _layout(form: str) -> list[tuple[int, int]]:
    """(offset, bytes) of each argument in the buffer, stars included."""
    found, at = [], 0
    for match in _CONVERSION.finditer(form):
        kind, length = match["kind"], match["length"]
        widths = [4 for star in (match["width"], match["precision"]) if star == "*"]
        if kind != "%":
            wide = kind in "eEfFgGaAsp" or length in ("l", "ll", "j", "z", "t")
            widths.append(8 if wide else 4)
        for width in widths:
            at = -(-at // width) * width
            found.append((at, width))
            at += width
    return found


def run(state: Any, instr: Instr, mask: Mask | None, text: Array, arguments: Array) -> int:
    """Append the output of the lanes to the launch's text; returns the argument count.

    Raises:
        FaultError: a bad format or argument address.
    """
    chosen = np.broadcast_to(True if mask is None else mask, state.shape)
    if state.live is not None:
        chosen = chosen & state.live
    forms = np.broadcast_to(text, state.shape)
    count = 0
    for address in np.unique(forms[chosen]):
        form = string_at(state, instr, int(address))
        who = chosen & (forms == address)
        layout = _layout(form)
        count = len(layout)
        lanes = None if bool(who.all()) else who
        values = [
            np.broadcast_to(
                load_from(state, "generic", instr, lanes, arguments, at, width, 1)[0], state.shape
            )
            for at, width in layout
        ]
        columns, threads = np.nonzero(who.T)
        for b, t in zip(columns.tolist(), threads.tolist(), strict=True):
            if state.launch.printed and sum_of(state.launch.printed) > BUFFER_BYTES:
                break
            raw = [int(v[t, b]) for v in values]
            state.launch.printed.append(_formatted(state, instr, form, raw))
    return count


def sum_of(parts: list[str]) -> int:
    """Characters in all parts (exact while short, an upper estimate of calls else)."""
    return sum(map(len, parts)) if len(parts) < 4096 else len(parts) * 256


def _formatted(state: Any, instr: Instr, form: str, raw: list[int]) -> str:
    queue = list(raw)

    def one(match: re.Match[str]) -> str:
        kind, length = match["kind"], match["length"]
        if kind == "%":
            return "%"
        spec = "%" + match["flags"]
        for part, dot in ((match["width"], ""), (match["precision"], ".")):
            if part == "*":
                spec += dot + str(_signed(queue.pop(0), 32))
            elif part is not None:
                spec += dot + part
        bits = queue.pop(0)
        if kind in "eEfFgG":
            return (spec + kind) % np.uint64(bits).view(np.float64)
        if kind in "aA":
            return float(np.uint64(bits).view(np.float64)).hex()
        if kind == "c":
            return (spec + "c") % chr(bits & 0xFF)
        if kind == "s":
            return (spec + "s") % string_at(state, instr, bits)
        if kind == "p":
            return (spec + "s") % hex(bits)
        size = {"hh": 8, "h": 16, "l": 64, "ll": 64, "j": 64, "z": 64, "t": 64}.get(
            length or "", 32
        )
        bits &= (1 << size) - 1
        return (spec + ("d" if kind in "diu" else kind)) % (
            _signed(bits, size) if kind in "di" else bits
        )

    return _CONVERSION.sub(one, form)


def _signed(bits: int, size: int) -> int:
    return bits - (1 << size) if bits >> (size - 1) & 1 else bits
