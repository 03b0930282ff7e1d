"""What surrounds an operation on floats: flushing, clamping, and the NaN that comes out.

float32 results that are NaN are one pattern (see ``values``). float64 results carry an operand's
payload, quiet bit set: which operand's, depends on the operation. Recorded on an H200.

Source: PTX ISA, section "Floating Point Instructions"; recordings of an H200.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.emulator import exact
from gpulab.emulator.values import F64, U64, Array

F64_NAN = np.uint64(0xFFF8000000000000)
"""What an invalid operation (inf - inf, 0 * inf, the root of a negative number) gives."""
QUIET64 = np.uint64(1 << 51)
_TINY = np.float32(2.0**-126)
_RAISE = 2.0**64


def flush(x: Array) -> Array:
    """Subnormal float32 to the zero of its sign."""
    small = np.abs(x) < _TINY
    return np.where(small, np.copysign(np.float32(0), x), x)


def saturate(x: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes +0."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    clamped: Array = np.where(x > zero, np.minimum(x, one), zero)
    return clamped


def wrapped(
    function: Callable[..., Array],
    words: tuple[str, ...],
    unrounded: Callable[..., Array] | None = None,
) -> Callable[..., Array]:
    """``function`` with the .ftz and .sat that ``words`` ask for.

    Args:
        function: of float32 arrays (float64 where there is nothing to wrap).
        words: the instruction's modifiers.
        unrounded: the result as float64, exact or rounded to odd. A result that 24 bits and any
            exponent would hold below 2^-126 is flushed, even where it rounds to 2^-126.
    """
    if not {"ftz", "sat"} & set(words):
        return function
    ftz, sat = "ftz" in words, "sat" in words
    mode = next((w for w in words if w in ("rz", "rm", "rp")), "rn")

    def run(*inputs: Array) -> Array:
        if ftz:
            inputs = tuple(flush(x) for x in inputs)
        out = function(*inputs)
        if ftz:
            out = flush(out)
            edge = np.abs(out) == _TINY
            if unrounded is not None and edge.any():
                wide = unrounded(*(x.astype(F64) for x in inputs)) * _RAISE
                below = edge & (np.abs(exact.narrow(wide, mode)) < _TINY * np.float32(_RAISE))
                out = np.where(below, np.copysign(np.float32(0), out), out)
        return saturate(out) if sat else out

    return run


UNROUNDED: dict[str, Callable[..., Array]] = {
    "mul": np.multiply,
    "div": np.divide,
    "rcp": np.reciprocal,
    "fma": lambda a, b, c: exact.to_odd(*exact.two_sum(a * b, c)),
}
"""Operations whose results can round to 2^-126 from below, on float64 copies of their operands."""


_PAYLOAD: dict[str, tuple[int, ...]] = {
    "add": (1, 0), "sub": (1, 0), "mul": (1, 0), "min": (1, 0), "max": (1, 0), "fma": (1, 2, 0),
    "div": (0, 1), "rcp": (0,), "sqrt": (0,),
}  # fmt: skip


def payload_kept(base: str, function: Callable[..., Array]) -> Callable[..., Array]:
    """A float64 operation whose NaNs are the card's.

    The result is the first NaN among the operands, quiet bit set, sign kept (``sub`` does not
    turn it): the second operand, then the third, then the first; in quotients, which are
    routines, the dividend first. Without a NaN operand it is ``F64_NAN``.
    """
    order = _PAYLOAD[base]

    def run(*operands: Array) -> Array:
        out = function(*operands)
        nan = np.isnan(out)
        return settled(out, nan, *(operands[i] for i in order)) if nan.any() else out

    return run


def settled(out: Array, nan: Array, *operands: Array) -> Array:
    """``out`` where not ``nan``, elsewhere the first operand that is NaN, made quiet."""
    bits: Any = F64_NAN
    for x in reversed(operands):
        bits = np.where(np.isnan(x), x.view(U64) | QUIET64, bits)
    return np.where(nan, bits, out.view(U64)).view(F64)


def signed64(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Neg or abs of float64: a NaN keeps its sign, quiet bit set."""

    def run(x: Array) -> Array:
        nan = np.isnan(x)
        return settled(function(x), nan, x) if nan.any() else function(x)

    return run
