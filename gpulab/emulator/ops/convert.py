"""cvt: every pair of types the compilers emit, and the packed conversions.

Source: PTX ISA, section "cvt". Float to integer clamps to the target's range; NaN becomes 0 for
targets of 32 bits and fewer from float32 and half, the sign bit alone otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from gpulab.emulator import exact
from gpulab.emulator.ops.edges import QUIET64, flush, saturate
from gpulab.emulator.ops.floating import ROUNDINGS
from gpulab.emulator.ops.registry import Env, Op, family, only, simple, stop
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.smallfloat import FORMATS, decode, encode
from gpulab.emulator.values import BYTES, DTYPE, F32, F32_NAN, F64, U16, U32, U64, Array, kind_of

_INTEGERS = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "b8", "b16", "b32", "b64"}
_FLOATS = {"f16", "bf16", "f32", "f64"}
_TO_INTEGER: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip
_NAN = F32_NAN.view(F32)
_PACKED = {
    "f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2", "e2m3x2": "e2m3",
    "e3m2x2": "e3m2", "e2m1x2": "e2m1",
}  # fmt: skip


@family("cvt")
def _cvt(instr: Instr, env: Env) -> Op:
    words = instr.modifiers
    if words[0] == "pack":
        return _pack_integers(instr)
    target, source = words[-2:]
    modes = words[:-2]
    if target in _PACKED or source in _PACKED:
        return _packed(instr, target, source, modes)
    if target == "tf32":
        return _tf32(instr, source, modes)
    if target in _INTEGERS and source in _INTEGERS:
        return _integer(instr, target, source, modes)
    if target in _INTEGERS:
        return _float_to_integer(instr, target, source, modes)
    if source in _INTEGERS:
        return _integer_to_float(instr, target, source, modes)
    return _float_to_float(instr, target, source, modes)


def _integer(instr: Instr, target: str, source: str, modes: tuple[str, ...]) -> Op:
    only(instr, modes, "sat")
    a, d = source.replace("b", "u"), target.replace("b", "u")
    dtype = DTYPE[d]
    if "sat" not in modes:
        return simple(instr, lambda x: x.astype(dtype), (a,), d)
    info = np.iinfo(dtype)

    def clamp(x: Array) -> Array:
        own = np.iinfo(x.dtype)
        low = x.dtype.type(max(int(info.min), int(own.min)))
        high = x.dtype.type(min(int(info.max), int(own.max)))
        return np.clip(x, low, high).astype(dtype)

    return simple(instr, clamp, (a,), d)


def _reader(source: str, ftz: bool) -> tuple[Callable[[Array], Array], str]:
    """(decode to float32 or float64, kind to read) of a float source."""
    if source == "f64":
        return lambda x: x, "f64"
    if source == "f32":
        return (flush if ftz else lambda x: x), "f32"
    return lambda x: decode(source, x), "u16"


def _float_to_integer(instr: Instr, target: str, source: str, modes: tuple[str, ...]) -> Op:
    only(instr, modes, *_TO_INTEGER, "ftz", "sat")
    found = [m for m in modes if m in _TO_INTEGER]
    if len(found) != 1:
        stop(instr, "an integer rounding is needed")
    rounder = _TO_INTEGER[found[0]]
    read, kind = _reader(source, "ftz" in modes)
    dtype = DTYPE[target]
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    wide = source == "f64" or target in ("u64", "s64")
    top_bit = low if dtype.kind == "i" else 1 << (8 * dtype.itemsize - 1)
    nan = dtype.type(top_bit if wide else 0)
    # 2^(bits) or 2^(bits - 1): the first float beyond the range, exact in any format.
    beyond = float(high + 1)

    def run(x: Array) -> Array:
        y = rounder(read(x).astype(F64))
        bad = np.isnan(y)
        above, below = y >= beyond, y < float(low)
        out = np.where(bad | above | below, 0.0, y).astype(dtype)
        out = np.where(above, dtype.type(high), out)
        out = np.where(below, dtype.type(low), out)
        return np.where(bad, nan, out)

    return simple(instr, run, (kind,), target)


def _integer_to_float(instr: Instr, target: str, source: str, modes: tuple[str, ...]) -> Op:
    only(instr, modes, *ROUNDINGS, "sat", "ftz")
    mode = next((m for m in modes if m in ROUNDINGS), "rn")
    sat = "sat" in modes
    wide = BYTES[source] == 8

    def to_odd(x: Array) -> Array:
        """Exact below 2^53, rounded to odd above."""
        y = x.astype(F64)
        if not wide:
            return y
        # The error, from the integer remainder; what rounded up to 2^64 (2^63) does not fit back.
        top = y >= (2.0**64 if x.dtype.kind == "u" else 2.0**63)
        back = np.where(top, 0.0, y).astype(x.dtype)
        error = (x - back).view(np.int64).astype(F64)
        return exact.to_odd(y, np.where(top, -1.0, error))

    def run(x: Array) -> Array:
        if target == "f64":
            exactly = mode == "rn" or not wide
            double = x.astype(F64) if exactly else _integer_to_f64(x, mode)
            return saturate(double) if sat else double
        y = to_odd(x)
        if target == "f32":
            r = exact.narrow(y, mode)
            return saturate(r) if sat else r
        code = encode(target, y, mode)
        return encode(target, saturate(decode(target, code))) if sat else code

    return simple(instr, run, (source,), kind_of(target))


def _integer_to_f64(x: Array, mode: str) -> Array:
    """64-bit integers to float64 in a directed mode, by exact integers."""
    nearest = x.astype(F64)
    flat = [
        _directed_integer(int(v), float(n), mode)
        for v, n in zip(x.ravel(), nearest.ravel(), strict=True)
    ]
    return np.array(flat, F64).reshape(x.shape)


def _directed_integer(value: int, nearest: float, mode: str) -> float:
    back = int(nearest)
    if back > value and (mode == "rm" or (mode == "rz" and value > 0)):
        return float(np.nextafter(nearest, -np.inf))
    if back < value and (mode == "rp" or (mode == "rz" and value < 0)):
        return float(np.nextafter(nearest, np.inf))
    return nearest


def _float_to_float(instr: Instr, target: str, source: str, modes: tuple[str, ...]) -> Op:
    only(instr, modes, *ROUNDINGS, *_TO_INTEGER, "ftz", "sat", "relu", "satfinite", "rna")
    if target not in _FLOATS or source not in _FLOATS:
        stop(instr)
    if (target, source) == ("f32", "bf16") and not modes:
        # A shift: NaN payloads survive.
        return simple(instr, lambda x: x.astype(U32) << U32.type(16), ("u16",), "u32")
    # Narrowed to a half, a subnormal float32 rounds as it is: up or down, not to zero.
    read, kind = _reader(source, "ftz" in modes and target != "f16")
    mode = next((m for m in modes if m in ROUNDINGS), "rn")
    integral = next((m for m in modes if m in _TO_INTEGER), None)
    ftz, sat, relu = "ftz" in modes, "sat" in modes, "relu" in modes
    satfinite = "satfinite" in modes

    def run(x: Array) -> Array:
        y = read(x)
        if integral is not None:
            y = _TO_INTEGER[integral](y)
        if relu:
            y = np.where(np.isnan(y) | (y > 0), y, y.dtype.type(0))
        if sat:
            y = saturate(y)
        if target == "f64":
            # ptxas flushes by multiplying, which makes a NaN the canonical one.
            return (np.where(np.isnan(y), _NAN, y) if ftz else y).astype(F64)
        if target == "f32":
            narrow = exact.narrow(y, mode) if source == "f64" else y
            if satfinite:
                limit = np.copysign(np.finfo(np.float32).max, narrow)
                narrow = np.where(np.isinf(narrow), limit, narrow)
            narrow = flush(narrow) if ftz else narrow
            return _payload(y, narrow.view(U32), 32, 23) if source == "f64" else narrow
        code = encode(target, y, mode, satfinite)
        form = FORMATS[target]
        return _payload(y, code, form.bits, form.mantissa) if source == "f64" else code

    codes = (source, target) == ("f64", "f32")
    return simple(instr, run, (kind,), "u32" if codes else kind_of(target))


def _payload(x: Array, code: Array, bits: int, mantissa: int) -> Array:
    """Codes narrowed from float64: a NaN keeps its sign and its payload's upper bits, quiet."""
    nan = np.isnan(x)
    if not nan.any():
        return code
    wide = x.view(U64) | QUIET64
    sign = (wide >> U64.type(63)) << U64.type(bits - 1)
    kept = (wide >> U64.type(52 - mantissa)) & U64.type((1 << bits - 1) - 1)
    return np.where(nan, (sign | kept).astype(code.dtype), code)


def _tf32(instr: Instr, source: str, modes: tuple[str, ...]) -> Op:
    only(instr, modes, "rna", "rn", "rz", "satfinite", "relu")
    if source != "f32":
        stop(instr)
    mode = next((m for m in modes if m in ("rna", "rn", "rz")), "rna")
    keep = np.uint32(0xFFFFE000)

    def run(x: Array) -> Array:
        if "relu" in modes:
            x = np.where(np.isnan(x) | (x > 0), x, F32.type(0))
        bits = x.view(U32)
        if mode == "rna":
            out = (bits + U32.type(0x1000)) & keep
        elif mode == "rn":
            out = (bits + U32.type(0xFFF) + ((bits >> U32.type(13)) & U32.type(1))) & keep
        else:
            out = bits & keep
        special = ~np.isfinite(x)
        out = np.where(special, bits & keep, out)
        if mode != "rna":
            out = np.where(np.isnan(x), F32_NAN & keep, out)
        if "satfinite" in modes:
            size = out & U32.type(0x7FFFFFFF)
            over = size >= U32.type(0x7F800000)
            if mode != "rna":
                over = over & ~np.isnan(x)
            # One place less: infinity becomes the largest number, and a NaN another NaN.
            out = np.where(over, out - U32.type(0x2000), out)
        return out

    return simple(instr, run, ("f32",), "u32")


def _packed(instr: Instr, target: str, source: str, modes: tuple[str, ...]) -> Op:
    only(instr, modes, "rn", "rz", "rna", "relu", "satfinite")
    mode = next((m for m in modes if m in ("rn", "rz", "rna")), "rn")
    relu, satfinite = "relu" in modes, "satfinite" in modes
    small = _PACKED.get(target)
    if small is None:
        stop(instr)
    width = 16 if FORMATS[small].bits > 8 else 8
    four = target == "e2m1x2"
    out_kind = "u32" if width == 16 else ("u8" if four else "u16")
    step = 4 if four else width

    join = _joined(small, out_kind, step, mode, relu, satfinite)
    if source == "f32":
        return simple(instr, join, ("f32", "f32"), out_kind)
    part = _PACKED[source]
    if width == 8:  # from f16x2 or bf16x2

        def shrink(x: Array) -> Array:
            low = decode(part, x.astype(U16))
            return join(decode(part, (x >> U32.type(16)).astype(U16)), low)

        return simple(instr, shrink, ("u32",), out_kind)
    in_kind = "u8" if source == "e2m1x2" else "u16"
    shift = 4 if source == "e2m1x2" else 8
    table = _pairs(part, BYTES[in_kind], shift, (small, out_kind, step, mode, relu, satfinite))
    return simple(instr, table.take, (in_kind,), out_kind)


def _joined(
    small: str, out_kind: str, step: int, mode: str, relu: bool, satfinite: bool
) -> Callable[[Array, Array], Array]:
    """Two numbers as codes of ``small`` in one word, the second in its low ``step`` bits."""
    dtype = DTYPE[out_kind]

    def clean(y: Array) -> Array:
        return np.where(np.isnan(y) | (y > 0), y, y.dtype.type(0)) if relu else y

    def join(high: Array, low: Array) -> Array:
        codes = [encode(small, clean(y), mode, satfinite).astype(dtype) for y in (low, high)]
        packed: Array = codes[0] | (codes[1] << dtype.type(step))
        return packed

    return join


@cache
def _pairs(
    part: str, nbytes: int, shift: int, result: tuple[str, str, int, str, bool, bool]
) -> Array:
    """What each pair of codes of ``part`` in ``nbytes`` bytes becomes; by the pair's word."""
    mask = (1 << FORMATS[part].bits) - 1
    every: Array = np.arange(1 << (8 * nbytes), dtype=U32)
    high, low = (decode(part, (every >> U32.type(s)) & U32.type(mask)) for s in (shift, 0))
    return _joined(*result)(high, low)


def _pack_integers(instr: Instr) -> Op:
    """cvt.pack.sat.{u16,s16}.s32 d, a, b and cvt.pack.sat.{u8,s8}.s32.b32 d, a, b, c."""
    words = instr.modifiers
    target = words[2]
    only(instr, words, "pack", "sat", "u16", "s16", "u8", "s8", "s32", "b32")
    info: Any = np.iinfo(DTYPE[target])
    width = 8 * BYTES[target]
    mask = U32.type((1 << width) - 1)

    def run(a: Array, b: Array, *c: Array) -> Array:
        low, high = (np.clip(v, info.min, info.max).view(U32) & mask for v in (b, a))
        pair = low | (high << U32.type(width))
        return pair | (c[0] << U32.type(2 * width)) if c else pair

    reads = ("s32", "s32", "u32")[: len(instr.operands) - 1]
    return simple(instr, run, reads, "u32")
