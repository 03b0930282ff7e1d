"""The .approx and .full instructions, through ``gpulab.numerics.approx``.

What each instruction's results rest on: ``approx.status``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulab.emulator.ops import half
from gpulab.emulator.ops.registry import Env, Op, only, simple, stop
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import Array
from gpulab.errors import UsageError


def unary(instr: Instr, env: Env) -> Op:
    """ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh in their .approx forms."""
    words = instr.modifiers
    if words[-1] == "f64":
        return _upper_half(instr)
    function = _recorded(instr)
    if half.is_half(instr):
        _, pair = half.form_of(instr)
        kind = "u32" if pair else "u16"
        return simple(instr, half.pairwise(function) if pair else function, (kind,), kind)
    if words[-1] != "f32":
        stop(instr)
    return simple(instr, function, ("u32",), "u32")


def _recorded(instr: Instr) -> Callable[[Array], Array]:
    from gpulab.numerics import approx

    name = instr.opcode.replace("f16x2", "f16").replace("bf16x2", "bf16")
    sample = np.zeros((1, 1), np.uint16 if half.is_half(instr) else np.uint32)
    try:
        approx.evaluate(name, sample)
    except UsageError as error:
        stop(instr, error.message)

    def run(a: Array) -> Array:
        return np.asarray(approx.evaluate(name, a)).reshape(a.shape)

    return run


def quotient(instr: Instr, env: Env) -> Op:
    """div.approx and div.full."""
    from gpulab.numerics import approx

    words = instr.modifiers
    only(instr, words, "approx", "full", "ftz", "f32")
    name = instr.opcode
    one = np.full((1, 1), 0x3F800000, np.uint32)
    try:
        approx.evaluate2(name, one, one)
    except UsageError as error:
        stop(instr, error.message)

    def run(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        return np.asarray(approx.evaluate2(name, a, b)).reshape(a.shape)

    return simple(instr, run, ("u32", "u32"), "u32")


def _upper_half(instr: Instr) -> Op:
    only(instr, instr.modifiers, "approx", "ftz", "f64")
    if instr.base not in ("rcp", "rsqrt"):
        stop(instr)
    from gpulab.numerics import approx

    name = instr.opcode
    return simple(instr, lambda a: approx.evaluate_upper(name, a), ("u64",), "u64")
