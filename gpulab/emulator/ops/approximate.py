"""placeholder"""

from gpulab.emulator.ops.registry import stop


def unary(i, e):
    stop(i)


quotient = unary
