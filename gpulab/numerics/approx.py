"""The approximate instructions, bit for bit, from the recordings of an H200 (capability 9.0).

The float32 ones interpolate (``_interpolate``) and these rules extend the table to every input.
``.ftz`` forms first replace a subnormal input by a zero of its sign, and flush a subnormal
result. NaN results are 0x7fffffff (0x7fff for 16-bit forms).

Correctly rounded forms (``sqrt.rn``, ``rcp.rn``, ``div.rn``) need no table: the float64 result,
rounded once to float32, is right, since float64 carries more than twice float32's digits.

>>> import numpy as np
>>> float(evaluate("ex2.approx.ftz.f32", np.float32([3.0]).view(np.uint32)).view(np.float32)[0])
8.0

Sources: recordings of an H200; PTX ISA, "ex2", "rcp", "rsqrt", "sqrt", "lg2", "div", "tanh".
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpulab.errors import UsageError
from gpulab.numerics._approx_rules import HALF, RULES, canonical, flushed
from gpulab.numerics._approx_upper import UPPER

Verified = Literal["recorded", "assumed"]

_CHUNK = 1 << 15  # elements a pass; the temporaries stay in the L2 cache
_NOT_RECORDED = {
    "tanh.approx.f32": "its values are not recorded",
    "sin.approx.f32": "its values are not recorded",
    "sin.approx.ftz.f32": "its values are not recorded",
    "cos.approx.f32": "its values are not recorded",
    "cos.approx.ftz.f32": "its values are not recorded",
}
_QUOTIENTS = ("div.approx.f32", "div.approx.ftz.f32", "div.full.f32", "div.full.ftz.f32")


def evaluate(instruction: str, x_bits: ArrayLike) -> NDArray[Any]:
    """The result's bits of a one-operand instruction.

    Args:
        instruction: PTX spelling, for example ``rsqrt.approx.ftz.f32``, ``ex2.approx.f16``.
            The packed ``x2`` forms act on each half alone: pass the halves, name the plain form
            or the packed one.
        x_bits: any shape; uint32 float32 bits, or uint16 codes of a 16-bit form. Arrays of
            float32 or float16 are taken as their bits.

    Returns:
        Bits of the same shape and width.

    Raises:
        UsageError: the instruction is unknown or was not recorded, or the width is wrong.
    """
    name = _plain(instruction)
    half = HALF.get(name)
    if half is not None:
        results: NDArray[np.uint16] = half()[_bits(x_bits, 2, name)]
        return results
    rule = RULES.get(name)
    if rule is None:
        raise _unknown(instruction, name, tuple(RULES) + tuple(HALF))
    x = _bits(x_bits, 4, name)
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            out[part] = rule(flat[part])
    return out.reshape(x.shape)


def evaluate2(instruction: str, a_bits: ArrayLike, b_bits: ArrayLike) -> NDArray[np.uint32]:
    """The result's bits of a quotient: a * rcp.approx.ftz(b), both scaled first for some b.

    ptxas makes a few instructions of each: without ``.ftz`` a subnormal b (a zero too) scales both
    by 2^24; ``.full`` scales both by 1/4 where |b| exceeds 2^126. ``.approx`` does not: there the
    reciprocal is subnormal, flushed, and the quotient zero.

    Args:
        instruction: ``div.approx.f32`` or ``div.full.f32``, either with ``.ftz``.
        a_bits: float32 bits, any shape.
        b_bits: likewise; the two are broadcast.

    Raises:
        UsageError: another instruction, or not 32-bit arrays.
    """
    if instruction not in _QUOTIENTS:
        raise _unknown(instruction, instruction, _QUOTIENTS)
    a, b = (_bits(x, 4, instruction) for x in (a_bits, b_bits))
    flush = ".ftz." in instruction
    if flush:
        a, b = flushed(a), flushed(b)
    with np.errstate(all="ignore"):
        scale = _quotient_scale(np.abs(b.view(np.float32)), ".full." in instruction, not flush)
        a, b = ((x.view(np.float32) * scale).view(np.uint32) for x in (a, b))
        if flush:
            a, b = flushed(a), flushed(b)
        inverse = evaluate("rcp.approx.ftz.f32", b).view(np.float32)
        quotient = np.asarray(a.view(np.float32) * inverse)
        if flush:
            # Flushed where 24 bits and any exponent would hold it below 2^-126, even where it
            # rounds to 2^-126: the product is looked at 2^64 times as large.
            raised = np.multiply(a.view(np.float32), inverse, dtype=np.float64) * 2.0**64
            tiny = np.abs(raised.astype(np.float32)) < np.float32(2.0 ** (64 - 126))
            quotient = np.where(tiny, np.copysign(np.float32(0), quotient), quotient)
    return canonical(quotient).view(np.uint32)


def _quotient_scale(divisor: NDArray[np.float32], full: bool, raises: bool) -> NDArray[np.float32]:
    """What numerator and denominator are multiplied by, from the size of the denominator."""
    one, quarter, up = np.float32(1), np.float32(0.25), np.float32(2.0**24)
    scale = np.where(divisor > np.float32(2.0**126), quarter if full else one, one)
    return np.where(divisor < np.float32(2.0**-126), up, scale) if raises else scale


def evaluate_upper(instruction: str, x_bits: ArrayLike) -> NDArray[np.uint64]:
    """The result's bits of ``rcp.approx.ftz.f64`` and ``rsqrt.approx.ftz.f64``.

    The upper word alone counts, in and out: its 20 fraction bits go through the tables of the
    float32 forms, and the 23 fraction bits that come out are cut to 20.

    Args:
        instruction: one of the two.
        x_bits: float64 bits, any shape.

    Raises:
        UsageError: another instruction, or not 64-bit arrays.
    """
    if instruction not in UPPER:
        raise _unknown(instruction, instruction, tuple(UPPER))
    return UPPER[instruction](_bits(x_bits, 8, instruction))


def status(instruction: str, capability: tuple[int, int]) -> tuple[Verified, str]:
    """What the result of an instruction rests on, in a word and in a few.

    Raises:
        UsageError: the instruction is not modelled.
    """
    name = _plain(instruction)
    if name not in modelled():
        raise _unknown(instruction, name, modelled())
    if capability != (9, 0):
        return "assumed", "recorded on capability 9.0 only, taken to be the same"
    return "recorded", "recorded on an H200"


def modelled() -> tuple[str, ...]:
    """Every instruction that ``evaluate``, ``evaluate2`` or ``evaluate_upper`` knows."""
    return (*RULES, *HALF, *_QUOTIENTS, *UPPER)


def _plain(instruction: str) -> str:
    """The scalar form of a packed instruction."""
    return instruction.removesuffix("x2") if instruction.endswith("16x2") else instruction


def _unknown(instruction: str, name: str, known: tuple[str, ...]) -> UsageError:
    why = _NOT_RECORDED.get(name, "there is no such approximate instruction here")
    return UsageError(
        f"{instruction} cannot be evaluated: {why}", fix="modelled: " + ", ".join(known)
    )


def _bits(array: ArrayLike, size: int, name: str) -> NDArray[Any]:
    bits = np.asarray(array)
    if bits.dtype.itemsize != size or bits.dtype.kind not in "uif":
        raise UsageError(
            f"{name} takes {8 * size}-bit codes, got an array of {bits.dtype}",
            fix=f"pass uint{8 * size}",
        )
    return bits.view(f"u{size}")
