"""What the instructions of a kernel do to numbers: sums, roundings, exponentials, constants."""

from __future__ import annotations

import math
import re
import struct
from functools import lru_cache

from gpulab.emulator.ptx.nodes import Imm, Instr, Operand

FORMATS = {
    "f64": "fp64", "f32": "fp32", "tf32": "tf32", "f16": "fp16", "f16x2": "fp16",
    "bf16": "bf16", "bf16x2": "bf16", "e4m3": "e4m3", "e4m3x2": "e4m3", "e5m2": "e5m2",
    "e5m2x2": "e5m2", "s32": "int32",
}  # fmt: skip
"""PTX types as rows of ``gpulab.formats``."""
BITS = {"fp64": 53, "fp32": 24, "tf32": 11, "fp16": 11, "bf16": 8, "e4m3": 4, "e5m2": 3}
"""Significand bits, the leading one included."""

LOG2_E = math.log2(math.e)
_BF16_BY_INTEGERS = {"add": ("s32", "u32"), "selp": ("b16",)}
"""Rounding to bf16 where no instruction does it: half an ulp less one, 0x7fff, is added to the bits
of the float32; or the upper half is taken, NaN as 0x7fff, and one added where it rounds up."""
_7FFF = 0x7FFF
_TF32_BITS = 0xFFFFE000
"""What is left of a float32 that is made one of tf32 by integers: all but the low 13 bits."""
_NEAR = 1e-4
_FLOAT_BASES = frozenset(("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt"))
_MATRIX = re.compile(r"(?:mma\.sync|wgmma\.mma_async)")
_SHAPE = re.compile(r"m\d+n\d+k\d+")


@lru_cache(maxsize=8192)
def types(opcode: str) -> tuple[str, ...]:
    """The number formats an opcode names, in its order."""
    return tuple(FORMATS[part] for part in opcode.split(".") if part in FORMATS)


def is_float(instr: Instr) -> bool:
    """Whether it computes in floating point (conversions and matrix products apart)."""
    found = types(instr.opcode)
    return instr.base in _FLOAT_BASES and bool(found) and found[-1] != "int32"


def result_format(instr: Instr) -> str | None:
    """The format of what it computes, which an opcode names first (``fma.rn.f32.f16``)."""
    found = types(instr.opcode)
    return found[0] if found else None


def is_matrix(instr: Instr) -> bool:
    """Whether it multiplies matrices on the tensor cores."""
    return _MATRIX.match(instr.opcode) is not None


def matrix_name(instr: Instr) -> str:
    """Its name as declarations spell it: ``mma.sync.m16n8k16.f32.f16.f16.f32``."""
    parts = instr.opcode.split(".")
    shape = next(p for p in parts if _SHAPE.fullmatch(p))
    start = "mma.sync" if parts[0] == "mma" else "wgmma"
    at = parts.index(shape)
    kept = [p for p in parts[at + 1 :] if p not in ("row", "col", "satfinite")]
    return ".".join((start, shape, *kept))


def rounds_to(instr: Instr) -> str | None:
    """The narrower format that it rounds a number to, or None."""
    if instr.base == "cvt":
        found = types(instr.opcode)
        if len(found) == 2 and BITS.get(found[0], 99) < BITS.get(found[1], 0):
            return found[0]
        return None
    by_integers = instr.modifiers[-1:] and instr.modifiers[-1] in _BF16_BY_INTEGERS.get(
        instr.base, ()
    )
    if by_integers and any(isinstance(o, Imm) and o.bits == _7FFF for o in instr.operands):
        return "bf16"
    if instr.base == "and" and any(
        isinstance(o, Imm) and o.bits & 0xFFFFFFFF == _TF32_BITS for o in instr.operands
    ):
        return "tf32"
    if instr.base in ("add", "sub", "mul") and is_float(instr):
        # Of two narrow numbers: as if taken in float32, then rounded, since 24 >= 2 * 11 + 2 bits.
        return narrow_result(instr)
    return None


def narrow_result(instr: Instr) -> str | None:
    """The format of what it computes, where that is a narrow one."""
    fmt = result_format(instr)
    return fmt if fmt in ("fp16", "bf16") else None


def value(operand: Operand, fmt: str = "fp32") -> float | None:
    """The number a literal stands for in an instruction of a format."""
    if not isinstance(operand, Imm):
        return None
    if operand.float_bits == 64:
        return float(struct.unpack("<d", operand.bits.to_bytes(8, "little"))[0])
    if operand.float_bits == 32 or fmt == "fp32":
        return float(struct.unpack("<f", (operand.bits & 0xFFFFFFFF).to_bytes(4, "little"))[0])
    return None


def has_constant(instr: Instr, wanted: float) -> bool:
    """Whether a literal is about ``wanted``, whatever its sign."""
    found = (value(o) for o in instr.operands if isinstance(o, Imm) and o.float_bits)
    return any(v is not None and abs(abs(v) - wanted) < _NEAR for v in found)


def shrinks_by(instr: Instr) -> int | None:
    """The exponent of a literal that is a very small power of two (2^-32 and below)."""
    for operand in instr.operands:
        if isinstance(operand, Imm) and operand.float_bits:
            number = value(operand)
            if number and math.isfinite(number):
                fraction, exponent = math.frexp(abs(number))
                if fraction == 0.5 and -126 < exponent - 1 <= -32:
                    return exponent - 1
    return None
