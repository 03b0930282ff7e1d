"""Register values: arrays that broadcast to (threads, blocks), and views of them by type.

A value's kind is one of ``p`` (bool), ``u8 s8 u16 s16 u32 s32 u64 s64`` and ``f32 f64``. Half
formats travel as their bits in ``u16`` (pairs in ``u32``).

A float32 array marks a result of float32 arithmetic, whose NaNs are the canonical 0x7fffffff on the
card whatever NaN the CPU made; it is replaced when such a value is looked at as bits (a store, a
shuffle, an integer operation), so arithmetic chains do not pay for it. Values that were loaded or
moved keep integer arrays, so that their NaN payloads survive.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Mask = NDArray[np.bool_]

U8, S8 = np.dtype(np.uint8), np.dtype(np.int8)
U16, S16 = np.dtype(np.uint16), np.dtype(np.int16)
U32, S32, F32 = np.dtype(np.uint32), np.dtype(np.int32), np.dtype(np.float32)
U64, S64, F64 = np.dtype(np.uint64), np.dtype(np.int64), np.dtype(np.float64)
P = np.dtype(np.bool_)

DTYPE: dict[str, np.dtype[Any]] = {
    "u8": U8, "s8": S8, "u16": U16, "s16": S16, "u32": U32, "s32": S32, "u64": U64, "s64": S64,
    "f32": F32, "f64": F64, "p": P,
}  # fmt: skip
BYTES = {kind: dtype.itemsize for kind, dtype in DTYPE.items()}
UNSIGNED = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}

F32_NAN = np.uint32(0x7FFFFFFF)

UNSET = (1 << 64) - 1
"""Bits of a register, and of local memory, before anything is put there: NaN in every float format
and -1 as an integer, so that a sum nobody set to zero does not come out right."""

OTHERWISE_UNSET = 0x7149F2CA_7149F2CA
"""Other bits: 1e30 as float32, large as half or bfloat16 too, false as a predicate. What computes
the same with these and with ``UNSET`` does not use what nobody set."""


def kind_of(ptx_type: str) -> str:
    """The kind in which a PTX type is computed: ``b32`` -> ``u32``, ``f16`` -> ``u16``, ...

    Raises:
        KeyError: not a scalar type.
    """
    return _KIND[ptx_type]


_KIND = {
    "pred": "p", "b8": "u8", "u8": "u8", "s8": "s8", "b16": "u16", "u16": "u16", "s16": "s16",
    "f16": "u16", "bf16": "u16", "b32": "u32", "u32": "u32", "s32": "s32", "f32": "f32",
    "f16x2": "u32", "bf16x2": "u32", "tf32": "u32", "b64": "u64", "u64": "u64", "s64": "s64",
    "f64": "f64", "e4m3x2": "u16", "e5m2x2": "u16",
}  # fmt: skip


def bits32(x: Array) -> Array:
    """The bits of float32 results, NaN made canonical."""
    nan = np.isnan(x)
    if nan.any():
        bits = x.view(U32).copy()
        bits[nan] = F32_NAN
        return bits
    return x.view(U32)


def as_u32(x: Array) -> Array:
    """32 bits, unsigned."""
    kind = x.dtype
    if kind is U32:
        return x
    return bits32(x) if kind is F32 else x.view(U32)


def as_s32(x: Array) -> Array:
    """32 bits, signed."""
    kind = x.dtype
    if kind is S32:
        return x
    return bits32(x).view(S32) if kind is F32 else x.view(S32)


def as_f32(x: Array) -> Array:
    """32 bits as float32."""
    return x if x.dtype is F32 else x.view(F32)


def as_u64(x: Array) -> Array:
    """64 bits, unsigned."""
    return x if x.dtype is U64 else x.view(U64)


def as_s64(x: Array) -> Array:
    """64 bits, signed."""
    return x if x.dtype is S64 else x.view(S64)


def as_f64(x: Array) -> Array:
    """64 bits as float64."""
    return x if x.dtype is F64 else x.view(F64)


def as_u16(x: Array) -> Array:
    """16 bits, unsigned."""
    return x if x.dtype is U16 else x.view(U16)


def as_s16(x: Array) -> Array:
    """16 bits, signed."""
    return x if x.dtype is S16 else x.view(S16)


def as_u8(x: Array) -> Array:
    """8 bits, unsigned."""
    return x if x.dtype is U8 else x.view(U8)


def as_s8(x: Array) -> Array:
    """8 bits, signed."""
    return x if x.dtype is S8 else x.view(S8)


def as_p(x: Array) -> Array:
    """A predicate."""
    return x


COERCE = {
    "u8": as_u8, "s8": as_s8, "u16": as_u16, "s16": as_s16, "u32": as_u32, "s32": as_s32,
    "u64": as_u64, "s64": as_s64, "f32": as_f32, "f64": as_f64, "p": as_p,
}  # fmt: skip


def as_raw(x: Array) -> Array:
    """The unsigned bits of a value of any kind."""
    return COERCE[UNSIGNED[x.dtype.itemsize]](x)


def truncated(x: Array, dtype: np.dtype[Any]) -> Array:
    """The low bits of a wider value."""
    return as_raw(x).astype(dtype)


def merge(mask: Mask, new: Array, old: Array) -> Array:
    """``new`` where ``mask``, else ``old``; bits are kept."""
    if new.dtype is not old.dtype and new.dtype != P:
        new, old = as_raw(new), as_raw(old)
    return np.where(mask, new, old)


def guard(mask: Mask | None, predicate: Array) -> Mask | Literal[False] | None:
    """Lanes that execute a guarded instruction: None = all of them, False = nobody."""
    chosen = predicate if mask is None else predicate & mask
    if not chosen.any():
        return False
    if mask is None and chosen.all():
        return None
    return chosen


def constant(bits: int, kind: str) -> Array:
    """A (1, 1) read-only value with these bits."""
    if kind == "p":
        value: Array = np.array([[bool(bits & 1)]])
    else:
        width = BYTES[kind]
        raw = (bits & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        value = np.frombuffer(raw, dtype=DTYPE[kind]).reshape(1, 1)
    value.setflags(write=False)
    return value
