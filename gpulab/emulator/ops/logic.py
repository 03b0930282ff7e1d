"""Bits: logic, shifts, fields, counts, permutes.

Source: PTX ISA, sections "Logic and Shift Instructions" and "Integer Arithmetic" (bit fields).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.emulator.ops.integer import shift_type
from gpulab.emulator.ops.registry import Env, Op, family, only, simple, stop
from gpulab.emulator.ptx.nodes import Imm, Instr
from gpulab.emulator.values import BYTES, DTYPE, U8, U32, U64, Array

_LOGIC: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@family("and", "or", "xor")
def _logic(instr: Instr, env: Env) -> Op:
    kind = shift_type(instr)
    return simple(instr, _LOGIC[instr.base], (kind, kind), kind)


@family("not")
def _not(instr: Instr, env: Env) -> Op:
    kind = shift_type(instr)
    return simple(instr, np.invert, (kind,), kind)


@family("cnot")
def _cnot(instr: Instr, env: Env) -> Op:
    kind = shift_type(instr)
    return simple(instr, lambda a: (a == 0).astype(DTYPE[kind]), (kind,), kind)


@family("shl", "shr")
def _shift(instr: Instr, env: Env) -> Op:
    (word,) = instr.modifiers
    kind = word.replace("b", "u")
    bits = 8 * BYTES[kind]
    ufunc: Any = np.left_shift if instr.base == "shl" else np.right_shift
    dtype = DTYPE[kind]
    amount = instr.operands[2]
    if isinstance(amount, Imm) and 0 <= amount.bits < bits:
        by = np.full((1, 1), amount.bits, dtype)
        return simple(instr, lambda a, _: ufunc(a, by), (kind, "u32"), kind)
    last = np.uint32(bits - 1)

    def function(a: Array, n: Array) -> Array:
        inside: Array = ufunc(a, np.minimum(n, last).astype(dtype))
        if dtype.kind == "i":  # the sign fills everything from bits - 1 on
            return inside
        return np.where(n > last, dtype.type(0), inside)

    return simple(instr, function, (kind, "u32"), kind)


@family("shf")
def _funnel(instr: Instr, env: Env) -> Op:
    side, mode, kind = instr.modifiers
    only(instr, instr.modifiers, "l", "r", "clamp", "wrap", "b32")
    del kind

    def function(low: Array, high: Array, n: Array) -> Array:
        n = n & np.uint32(31) if mode == "wrap" else np.minimum(n, np.uint32(32))
        pair = (high.astype(U64) << np.uint64(32)) | low
        wide = n.astype(U64)
        if side == "r":
            return (pair >> wide).astype(U32)
        return ((pair << wide) >> np.uint64(32)).astype(U32)

    return simple(instr, function, ("u32", "u32", "u32"), "u32")


@family("lop3")
def _lop3(instr: Instr, env: Env) -> Op:
    (kind,) = instr.modifiers
    only(instr, (kind,), "b32")
    table = instr.operands[-1]
    if not isinstance(table, Imm):
        stop(instr, "table must be a literal")
    truth = table.bits

    def function(a: Array, b: Array, c: Array, _: Array) -> Array:
        out: Array = np.zeros((1, 1), np.uint32)
        for row in range(8):
            if truth >> row & 1:
                term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                out = out | term
        return out

    return simple(instr, function, ("u32", "u32", "u32", "u32"), "u32")


@family("popc")
def _popc(instr: Instr, env: Env) -> Op:
    kind = shift_type(instr)
    return simple(instr, lambda a: np.bitwise_count(a).astype(U32), (kind,), "u32")


def highest_bit(a: Array) -> Array:
    """Index of the highest set bit of an unsigned array, -1 for zero (int64)."""
    wide = a.astype(U64)
    for step in (1, 2, 4, 8, 16, 32):
        wide = wide | (wide >> np.uint64(step))
    return np.bitwise_count(wide).astype(np.int64) - 1


@family("clz")
def _clz(instr: Instr, env: Env) -> Op:
    kind = shift_type(instr)
    bits = 8 * BYTES[kind]
    return simple(instr, lambda a: (bits - 1 - highest_bit(a)).astype(U32), (kind,), "u32")


@family("bfind")
def _bfind(instr: Instr, env: Env) -> Op:
    *amount, kind = instr.modifiers
    only(instr, tuple(amount), "shiftamt")
    bits = 8 * BYTES[kind]

    def function(a: Array) -> Array:
        value = np.where(a < 0, ~a, a).view(f"u{BYTES[kind]}") if kind[0] == "s" else a
        found = highest_bit(value)
        if amount:
            found = np.where(found < 0, -1, bits - 1 - found)
        return found.astype(np.int32).view(U32)

    return simple(instr, function, (kind,), "u32")


@family("brev")
def _brev(instr: Instr, env: Env) -> Op:
    kind = shift_type(instr)
    width = BYTES[kind]

    def function(a: Array) -> Array:
        table = _REVERSED_BYTES
        octets = np.ascontiguousarray(a)[..., None].view(U8)
        return table[octets][..., ::-1].copy().view(f"u{width}")[..., 0]

    return simple(instr, function, (kind,), kind)


_REVERSED_BYTES = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


@family("bfe")
def _bfe(instr: Instr, env: Env) -> Op:
    (kind,) = instr.modifiers
    bits = 8 * BYTES[kind]

    def function(a: Array, position: Array, length: Array) -> Array:
        if bits == 64:  # a routine that takes all bits of both, not an instruction
            at, count = (np.minimum(x, np.uint32(64)).astype(np.int64) for x in (position, length))
        else:
            at, count = ((x & np.uint32(0xFF)).astype(np.int64) for x in (position, length))
        # Beyond the word an unsigned field reads zeros, a signed one the sign bit; a signed
        # field extends its own top bit.
        source = a.astype(np.int64) if kind[0] == "s" else a.astype(U64)
        shifted = source >> np.minimum(at, 63).astype(source.dtype)
        if kind == "u64":
            shifted = np.where(at > 63, np.uint64(0), shifted)
        field = shifted.view(U64) & _ones(np.minimum(count, 64))
        if kind[0] == "s":
            top = np.minimum(at + count - 1, bits - 1)
            sign = (source >> np.minimum(np.maximum(top, 0), 63)) & 1
            field = np.where(sign == 1, field | ~_ones(np.minimum(count, 64)), field)
            field = np.where(count == 0, np.uint64(0), field)
        return field.astype(f"u{BYTES[kind]}").view(DTYPE[kind])

    return simple(instr, function, (kind, "u32", "u32"), kind)


def _ones(count: Array) -> Array:
    """uint64 with the low ``count`` (0 to 64) bits set."""
    n = count.astype(U64)
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    return np.where(n >= 64, full, (np.uint64(1) << (n & np.uint64(63))) - np.uint64(1))


@family("bfi")
def _bfi(instr: Instr, env: Env) -> Op:
    kind = shift_type(instr)
    bits = 8 * BYTES[kind]

    def function(a: Array, b: Array, position: Array, length: Array) -> Array:
        if bits == 64:  # made of shifts, which take all 32 bits of an amount
            at, count = position.astype(np.int64), length.astype(np.int64)
        else:
            at = (position & np.uint32(0xFF)).astype(np.int64)
            count = (length & np.uint32(0xFF)).astype(np.int64)
        shift = np.minimum(at, 63).astype(U64)
        hole = np.where(at >= bits, np.uint64(0), _ones(np.minimum(count, 64)) << shift)
        merged = (b.astype(U64) & ~hole) | ((a.astype(U64) << shift) & hole)
        return merged.astype(DTYPE[kind])

    return simple(instr, function, (kind, kind, "u32", "u32"), kind)


@family("prmt")
def _prmt(instr: Instr, env: Env) -> Op:
    kind, *mode = instr.modifiers
    only(instr, (kind,), "b32")
    if mode:
        stop(instr, "prmt mode")

    def function(a: Array, b: Array, selector: Array) -> Array:
        pair = (b.astype(U64) << np.uint64(32)) | a
        out: Array = np.zeros((1, 1), U64)
        for i in range(4):
            pick = (selector >> np.uint32(4 * i)) & np.uint32(15)
            octet = (pair >> ((pick & np.uint32(7)).astype(U64) << np.uint64(3))) & np.uint64(0xFF)
            spread = np.where(octet >> np.uint64(7), np.uint64(0xFF), np.uint64(0))
            octet = np.where(pick & np.uint32(8), spread, octet)
            out = out | (octet << np.uint64(8 * i))
        return out.astype(U32)

    return simple(instr, function, ("u32", "u32", "u32"), "u32")
