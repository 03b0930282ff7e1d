"""dp4a and dp2a: dot products of packed bytes.

Source: PTX ISA, sections "dp4a", "dp2a".
"""

from __future__ import annotations

import numpy as np

from gpulab.emulator.ops.registry import Env, Op, family, only, simple
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.values import DTYPE, S64, U32, U64, Array


@family("dp4a", "dp2a")
def _dot(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    half = words[0] if instr.base == "dp2a" else ""
    left, right = words[-2:]
    only(instr, words, "lo", "hi", "u32", "s32")
    result = "u32" if (left, right) == ("u32", "u32") else "s32"
    a_bits = 8 if instr.base == "dp4a" else 16
    shift0 = 16 if half == "hi" else 0

    def piece(x: Array, at: int, bits: int, signed: bool) -> Array:
        wide = x.astype(S64)
        wide = (wide >> at) & ((1 << bits) - 1)
        return np.where(wide >> (bits - 1), wide - (1 << bits), wide) if signed else wide

    def function(a: Array, b: Array, c: Array) -> Array:
        total = c.astype(S64)
        for i in range(32 // a_bits):
            one = piece(a, i * a_bits, a_bits, left == "s32")
            total = total + one * piece(b, shift0 + 8 * i, 8, right == "s32")
        return total.astype(U64).astype(U32).view(DTYPE[result])

    return simple(instr, function, ("u32", "u32", result), result)
