"""Instructions that compute nothing: traps, fences, hints. Branches belong to the executor.

Source: PTX ISA, sections "Control Flow", "membar/fence", "Miscellaneous".
"""

from __future__ import annotations

from typing import Any

from gpulab.emulator.faults import fault, place_of
from gpulab.emulator.ops.registry import Env, Op, effect, family, only, stop
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import Mask


@family("trap", "brkpt")
def _trap(instr: Instr, env: Env) -> Op:
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


def _nothing(state: Any, _instr: Instr, mask: Mask | None, *values: Any) -> None:
    return None


@family("nanosleep", "prefetch", "prefetchu", "pmevent", "griddepcontrol", "setmaxnreg")
def _hint(instr: Instr, env: Env) -> Op:
    """Time, caches and scheduling: no value changes."""
    return effect(instr, _nothing, (), ())
