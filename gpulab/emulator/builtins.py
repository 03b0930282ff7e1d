"""Functions that PTX declares but does not define, supplied by name: printf, assert, half math."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab.emulator.ops.registry import Env, Op, family, unsupported
from gpulab.emulator.ptx.nodes import Instr

Builtin = Callable[..., Any]
TABLE: dict[str, tuple[tuple[str, ...], tuple[str, ...], Builtin]] = {}
"""name -> (kinds of results, kinds of arguments, function(state, instr, mask, *arguments))."""
NAMES = TABLE


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
