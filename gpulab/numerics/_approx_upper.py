"""rcp and rsqrt of float64's upper word, from the tables of their float32 forms; see ``approx``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpulab.numerics._approx_rules import RULES

Bits = NDArray[np.uint64]

_WORD, _FRACTION, _BIAS = np.uint64(32), 20, 1023
_TOP, _SIGN = 0x7FF, 1 << 31
_NAN, _INFINITY = 0x7FFFFFFF, _TOP << _FRACTION


def _upper(base: str) -> Callable[[Bits], Bits]:
    rule = RULES[f"{base}.approx.ftz.f32"]

    def run(x: Bits) -> Bits:
        word = (x >> _WORD).astype(np.int64)
        sign, size = word & _SIGN, word & ~_SIGN
        exponent = (size >> _FRACTION) - _BIAS
        # float32 with the same fraction, in [1, 2), or [1, 4) for a root.
        step = exponent & 1 if base == "rsqrt" else np.zeros_like(exponent)
        single = (127 + step << 23) + ((word & (1 << _FRACTION) - 1) << 3)
        found = rule(np.asarray(single.astype(np.uint32))).astype(np.int64) >> 3
        away = -exponent if base == "rcp" else -(exponent - step >> 1)
        out = found + (_BIAS - 127 + away << _FRACTION)
        out = np.where(out < 1 << _FRACTION, 0, out)  # subnormal
        if base == "rcp":
            out = out | sign
        zero = size < 1 << _FRACTION
        out = np.where(zero, sign | _INFINITY, out)
        infinite = size >= _INFINITY
        out = np.where(infinite, sign if base == "rcp" else 0, out)
        nan = size > _INFINITY
        if base == "rsqrt":
            nan = nan | ((sign != 0) & ~zero)
        out = np.where(nan, _NAN, out)
        return out.astype(np.uint64) << _WORD

    return run


UPPER: dict[str, Callable[[Bits], Bits]] = {
    f"{base}.approx.ftz.f64": _upper(base) for base in ("rcp", "rsqrt")
}
