"""Functions that PTX declares but does not define, supplied by name.

``vprintf`` and ``__assertfail`` come with CUDA C++; the float16 functions are those that Numba
leaves to CUDA's header (see ``halfcalls``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import halfcalls, printf
from gpulab.emulator.faults import fault
from gpulab.emulator.ops.registry import Env, Op, family, unsupported
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import Array, Mask

Builtin = Callable[..., Any]


def _vprintf(state: Any, instr: Instr, mask: Mask | None, text: Array, arguments: Array) -> Array:
    """Print for each lane, lowest block and thread first; returns the number of arguments."""
    count = printf.run(state, instr, mask, text, arguments)
    return np.full((1, 1), count, np.uint32)


def _assertfail(
    state: Any,
    instr: Instr,
    mask: Mask | None,
    message: Array,
    file: Array,
    line: Array,
    function: Array,
    _size: Array,
) -> None:
    t, b = state.first(np.ones((1, 1), bool) if mask is None else mask)

    def of_lane(value: Array) -> int:
        return int(np.broadcast_to(value, state.shape)[t, b])

    text, source, name = (
        printf.string_at(state, instr, of_lane(p)) for p in (message, file, function)
    )
    raise fault(
        "trap",
        f"assertion `{text}` failed ({source}:{of_lane(line)}: {name})",
        instr,
        thread=state.thread_xyz(t),
        block=state.block_xyz(b),
        assertion=text,
    )


TABLE: dict[str, tuple[tuple[str, ...], tuple[str, ...], Builtin]] = {
    "vprintf": (("u32",), ("u64", "u64"), _vprintf),
    "__assertfail": ((), ("u64", "u64", "u32", "u64", "u64"), _assertfail),
    **halfcalls.TABLE,
}
"""name -> (kinds of results, kinds of arguments, function(state, instr, mask, *arguments))."""

NAMES = frozenset(TABLE)


def results_of(instr: Instr) -> int:
    """How many results a ``builtin.NAME`` instruction has."""
    return len(TABLE[instr.opcode.partition(".")[2]][0])


@family("builtin")
def _builtin(instr: Instr, env: Env) -> Op:
    writes, reads, function = TABLE[instr.opcode.partition(".")[2]]
    if len(instr.operands) != len(writes) + len(reads):
        raise unsupported(instr, "argument count")
    results: Any = instr.operands[: len(writes)]
    return Op(function, reads, writes, instr.operands[len(writes) :], results, context=True)
