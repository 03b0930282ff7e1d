"""placeholder"""

from gpulab.emulator.ops.registry import stop


def is_half(instr):
    return any(w in ("f16", "f16x2", "bf16", "bf16x2") for w in instr.modifiers)


binary = fused = unary = compared = stop
