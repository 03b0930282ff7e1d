"""Instructions that compute nothing: traps, fences, hints. What branches and barriers do belongs
to the executor; which of their spellings there are is said here.

Source: PTX ISA, sections "Control Flow", "bar, barrier", "barrier.cluster", "membar/fence",
"Miscellaneous".
"""

from __future__ import annotations

import re
from typing import Any

from gpulab.emulator.faults import fault, place_of
from gpulab.emulator.ops.registry import Env, Op, effect, family, only, spelled, stop
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import Mask


@family("trap", "brkpt")
def _trap(instr: Instr, env: Env) -> Op:
    spelled(instr, instr.base)

    def function(state: Any, _instr: Instr, mask: Mask | None) -> None:
        import numpy as np

        t, b = state.first(np.ones((1, 1), bool) if mask is None else mask)
        raise fault(
            "trap",
            f"the kernel executed {instr.base}",
            instr,
            thread=state.thread_xyz(t),
            block=state.block_xyz(b),
        )

    return effect(instr, function, (), ())


_SCOPES = {"cta": "cta", "gl": "gpu", "gpu": "gpu", "sys": "sys", "cluster": "gpu"}


@family("membar", "fence")
def _fence(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    if "proxy" in words and words[1:2] not in (("alias",), ("async",), ("async::generic",)):
        if not words[1].startswith("async"):
            stop(instr)
    elif "proxy" not in words:
        only(instr, words, "sc", "acq_rel", "acquire", "release", "mbarrier_init", *_SCOPES)
    scope: Any = next((_SCOPES[w] for w in words if w in _SCOPES), "cta")

    def function(state: Any, _instr: Instr, mask: Mask | None) -> None:
        if state.observers:
            lanes = state.lanes(mask)
            for observer in state.observers:
                observer.fence(lanes, scope, place_of(instr.location))

    return effect(instr, function, (), ())


_HINTS = {
    "nanosleep": r"nanosleep\.u32",
    "prefetch": r"prefetch((\.global|\.local)?\.L[12](::evict_last|::evict_normal)?|\.tensormap)",
    "prefetchu": r"prefetchu\.L1",
    "pmevent": r"pmevent(\.mask)?",
    "griddepcontrol": r"griddepcontrol\.(launch_dependents|wait)",
    "setmaxnreg": r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32",
}


def _nothing(state: Any, _instr: Instr, mask: Mask | None, *values: Any) -> None:
    return None


@family("nanosleep", "prefetch", "prefetchu", "pmevent", "griddepcontrol", "setmaxnreg")
def _hint(instr: Instr, env: Env) -> Op:
    """Time, caches and scheduling: no value changes."""
    spelled(instr, _HINTS[instr.base])
    return effect(instr, _nothing, (), ())


_BLOCK = r"bar(rier)?(\.cta)?\."
_ENDS: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"bra(\.uni)?", (0,)),
    (r"brx\.idx(\.uni)?", (1,)),
    (r"ret(\.uni)?|exit", (0,)),
    (_BLOCK + r"sync(\.aligned)?", (1, 2)),
    (_BLOCK + r"arrive(\.aligned)?", (2,)),
    (_BLOCK + r"red(\.aligned)?\.(popc\.u32|(and|or)\.pred)", (3, 4)),
    (r"barrier\.cluster\.arrive(\.release|\.relaxed)?(\.aligned)?", (0,)),
    (r"barrier\.cluster\.wait(\.acquire)?(\.aligned)?", (0,)),
)
"""Instructions at which the lanes of a group may part or wait, and how many operands each has."""


def check_end(instr: Instr) -> None:
    """Refuse a branch, a barrier or a return that the executor does not know.

    Raises:
        BuildError: its spelling or number of operands is another.
    """
    for pattern, operands in _ENDS:
        if re.fullmatch(pattern, instr.opcode) and len(instr.operands) in operands:
            return
    stop(instr, "form")
