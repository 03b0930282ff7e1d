"""Exactly rounded float32 and float64 operations in every rounding mode, on arrays.

The device rounds a fused multiply-add once. In float64 the product of two float32 is exact, so
float32 results come from one float64 sum that is *rounded to odd* (an inexact sum gets its last bit
set): rounding that to float32, in any mode, equals rounding the exact value, because float64 keeps
more than two extra bits. Rounding to nearest needs the odd sum only where the float64 sum lies next
to a float32 tie, which is rare; all other lanes are done already.
float64 uses error-free transformations where exponents allow, rational arithmetic elsewhere.

Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
rounding to odd", IEEE Trans. Computers 57(4), 2008; Dekker 1971 and Knuth (TwoSum, TwoProduct).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.rational import fma_scalar, product_scalar, quotient_scalar, root_scalar

Array = NDArray[Any]

_BELOW_ONE, _ABOVE_ONE = 1.0 - 2.0**-52, 1.0 + 2.0**-52
_SMALL = 8192  # lanes below which fewer, mixed-type calls are faster
_ONE64 = np.uint64(1)
_SPLITTER = float(2**27 + 1)
F32, F64, U64 = np.float32, np.float64, np.uint64


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``s = RN(a + b)`` and the exact error a + b - s, float64."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """``p = RN(a * b)`` and its exact error, float64 (no over- or underflow inside)."""
    p = a * b
    t = a * _SPLITTER
    ah = t - (t - a)
    al = a - ah
    t = b * _SPLITTER
    bh = t - (t - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(s: Array, error: Array) -> Array:
    """The float64 ``s`` with exact error ``error``, rounded to odd instead of to nearest."""
    with np.errstate(invalid="ignore"):
        inexact = np.isfinite(s) & (error != 0) & ~np.isnan(error)
    even = (s.view(U64) & _ONE64) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact & even, np.nextafter(s, toward), s)


def narrow(s: Array, mode: str) -> Array:
    """float64 values (exact or rounded to odd) to float32 in a rounding mode."""
    r = s.astype(F32)
    if mode == "rn":
        return r
    back = r.astype(F64)
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(s), np.nextafter(r, F32(0)), r)
    if mode == "rm":
        return np.where(back > s, np.nextafter(r, F32(-np.inf)), r)
    return np.where(back < s, np.nextafter(r, F32(np.inf)), r)


def _signed_zero(s: Array, a: Array, b: Array, mode: str) -> Array:
    """An exact zero sum of opposite signs is -0 when rounding down."""
    if mode != "rm":
        return s
    return np.where((s == 0) & (np.signbit(a) != np.signbit(b)), -0.0, s)


def _sum_f32(p: Array, c: Array, mode: str) -> Array:
    """Exact p + c (float64 terms) rounded to float32."""
    s, error = two_sum(p, c)
    return narrow(_signed_zero(to_odd(s, error), p, c, mode), mode)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of float32 arrays (any shapes that broadcast), rounded once to nearest even.

    The exact value lies within one part in 2^52 of the float64 sum. Where both ends of that
    interval round to the same float32, so does the exact value; the few other lanes are redone.
    """
    if a.size + b.size < _SMALL:
        p = np.multiply(a, b, dtype=F64)
        s = np.add(p, c, dtype=F64)
    else:
        p = a.astype(F64) * b.astype(F64)
        s = p + c.astype(F64)
    low = (s * _BELOW_ONE).astype(F32)
    high = (s * _ABOVE_ONE).astype(F32)
    agree = low == high
    if agree.all():
        return low
    at = np.flatnonzero(~agree)
    term, addend, total = (_picked(x, s.shape, at) for x in (p, c, s))
    addend = addend.astype(F64)
    back = total - term
    error = (term - (total - back)) + (addend - back)
    redone = total.astype(F32)  # right where the sum is exact: an exact tie goes to even
    hard = np.flatnonzero(error)
    if hard.size:
        redone[hard] = to_odd(total[hard], error[hard]).astype(F32)
    np.put(low, at, redone)
    return low


def _picked(x: Array, shape: tuple[int, ...], at: Array) -> Array:
    """Elements ``at`` (flat, row-major) of ``x`` broadcast to ``shape``."""
    picked: Array = x.take(at) if x.shape == shape else np.broadcast_to(x, shape).flat[at]
    return picked


def fma_f32_mode(a: Array, b: Array, c: Array, mode: str) -> Array:
    """``a * b + c`` of float32 arrays in any rounding mode."""
    if mode == "rn":
        return fma_f32(a, b, c)
    return _sum_f32(a.astype(F64) * b.astype(F64), c.astype(F64), mode)


def add_f32_mode(a: Array, b: Array, mode: str) -> Array:
    """``a + b`` in any rounding mode."""
    if mode == "rn":
        return a + b
    return _sum_f32(a.astype(F64), b.astype(F64), mode)


def mul_f32_mode(a: Array, b: Array, mode: str) -> Array:
    """``a * b`` in any rounding mode (the float64 product is exact)."""
    if mode == "rn":
        return a * b
    return narrow(a.astype(F64) * b.astype(F64), mode)


def div_f32_mode(a: Array, b: Array, mode: str) -> Array:
    """``a / b`` in any rounding mode: the float64 quotient, safe odd by its remainder's sign."""
    if mode == "rn":
        return a / b
    a64, b64 = a.astype(F64), b.astype(F64)
    q = a64 / b64
    p, error = two_product(np.where(np.isfinite(q), q, 0.0), np.where(np.isfinite(b64), b64, 1.0))
    remainder = np.where(np.isinf(b64), 0.0, (a64 - p) - error)
    return narrow(to_odd(q, remainder * np.sign(b64)), mode)


def sqrt_f32_mode(a: Array, mode: str) -> Array:
    """The square root in any rounding mode."""
    if mode == "rn":
        return np.sqrt(a)
    a64 = a.astype(F64)
    root = np.sqrt(a64)
    p, error = two_product(root, root)
    return narrow(to_odd(root, (a64 - p) - error), mode)


def _directed(s: Array, error: Array, mode: str) -> Array:
    """A nearest float64 ``s`` with exact error ``error``, rounded in another mode."""
    if mode == "rm":
        return np.where(error < 0, np.nextafter(s, -np.inf), s)
    if mode == "rp":
        return np.where(error > 0, np.nextafter(s, np.inf), s)
    toward_zero = ((s > 0) & (error < 0)) | ((s < 0) & (error > 0))
    return np.where(toward_zero, np.nextafter(s, 0.0), s)


def _lanes(function: Any, chosen: Array, out: Array, *arrays: Array, mode: str) -> Array:
    """Redo the chosen lanes with a scalar function of Python floats."""
    if not chosen.any():
        return out
    shape = np.broadcast_shapes(chosen.shape, out.shape, *(x.shape for x in arrays))
    out = np.broadcast_to(out, shape).copy()
    columns = [np.broadcast_to(x, shape)[np.broadcast_to(chosen, shape)] for x in arrays]
    redone = [function(*map(float, each), mode) for each in zip(*columns, strict=True)]
    out[np.broadcast_to(chosen, shape)] = redone
    return out


def add_f64_mode(a: Array, b: Array, mode: str) -> Array:
    """``a + b`` of float64 arrays in any rounding mode."""
    if mode == "rn":
        return a + b
    s, error = two_sum(a, b)
    out = _signed_zero(_directed(s, error, mode), a, b, mode)
    big = ~(np.abs(s) < 2.0**1000)
    return _lanes(fma_scalar, big, out, np.ones_like(a), a, b, mode=mode)


def mul_f64_mode(a: Array, b: Array, mode: str) -> Array:
    """``a * b`` of float64 arrays in any rounding mode."""
    if mode == "rn":
        return a * b
    p, error = two_product(a, b)
    out = _directed(p, error, mode)
    return _lanes(product_scalar, ~_product_is_safe(a, b, p), out, a, b, mode=mode)


def _product_is_safe(a: Array, b: Array, p: Array) -> Array:
    """Where TwoProduct is exact: no overflow in the split, no underflow in the error."""
    size = np.abs(p)
    fits = (np.abs(a) < 2.0**900) & (np.abs(b) < 2.0**900) & (size < 2.0**1000)
    safe: Array = fits & ((size > 2.0**-900) | (a == 0) | (b == 0))
    return safe


def fma_f64_mode(a: Array, b: Array, c: Array, mode: str) -> Array:
    """``a * b + c`` of float64 arrays, rounded once in any mode."""
    p, low = two_product(a, b)
    t, t_low = two_sum(c, low)
    v, v_low = two_sum(p, t)
    z, z_error = two_sum(t_low, v_low)
    z = to_odd(z, z_error)
    r, r_error = two_sum(v, z)
    if mode != "rn":
        r = _signed_zero(_directed(r, r_error, mode), p, c, mode)
    safe = _product_is_safe(a, b, p) & (np.abs(c) < 2.0**1000)
    safe &= (np.abs(r) > 2.0**-900) | ((p == 0) & (low == 0))
    return _lanes(fma_scalar, ~safe, r, a, b, c, mode=mode)


def div_f64_mode(a: Array, b: Array, mode: str) -> Array:
    """``a / b`` of float64 arrays in any rounding mode."""
    if mode == "rn":
        return a / b
    return _lanes(quotient_scalar, np.ones((1, 1), bool), a / b, a, b, mode=mode)


def sqrt_f64_mode(a: Array, mode: str) -> Array:
    """The square root of float64 arrays in any rounding mode."""
    if mode == "rn":
        return np.sqrt(a)
    return _lanes(root_scalar, np.ones((1, 1), bool), np.sqrt(a), a, mode=mode)
