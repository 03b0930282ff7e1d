"""16-byte accesses and number formats for Numba kernels, as LLVM intrinsics.

Numba loads an array element by element and knows neither bf16 nor fp8. Here a pack of consecutive
elements is moved by one access, stays in 32-bit words as it is stored, and becomes float32 values
where it is used: the counterpart of ``raw_kernels/common/pack.cuh``. Unless told otherwise, only
integer operations and conversions that every capability has are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpulab.formats import storage_dtype

Function = Callable[..., Any]

WORD_BITS = 32
GLOBAL, SHARED = 1, 3
"""LLVM's numbers for the address spaces."""


@dataclass(frozen=True)
class Pack:
    """Device functions over packs of ``count`` elements of one format.

    Args:
        count: elements.
        words: 32-bit words.
        load: (global array that the kernel does not write, pack number) -> words.
        store: (global array that the kernel does not read, pack number, words).
        recall: (shared array, pack number) -> words.
        keep: (shared array, pack number, words).
        values: words -> float32 values.
        narrow: float32 values -> words, to nearest even (not for fp8, which is only read).
        put: (values, place, value) -> values with one replaced.
    """

    count: int
    words: int
    load: Function
    store: Function
    recall: Function
    keep: Function
    values: Function
    narrow: Function
    put: Function


def _half_to_float(builder: Any, bits: Any) -> Any:
    from llvmlite import ir

    half = builder.bitcast(builder.trunc(bits, ir.IntType(16)), ir.HalfType())
    return builder.fpext(half, ir.FloatType())


def _decode(fmt: str, builder: Any, word: Any, shift: int) -> Any:
    """The float32 value of the element that starts at bit ``shift`` of a word."""
    from llvmlite import ir

    i32, f32 = ir.IntType(32), ir.FloatType()

    def field(bits: int) -> Any:
        return builder.and_(builder.lshr(word, i32(shift)), i32((1 << bits) - 1))

    if fmt == "fp32":
        return builder.bitcast(word, f32)
    if fmt == "bf16":  # the upper half of float32
        upper = builder.and_(word, i32(0xFFFF0000)) if shift else builder.shl(word, i32(16))
        return builder.bitcast(upper, f32)
    if fmt == "fp16":
        return _half_to_float(builder, field(16))
    if fmt == "e5m2":  # the upper byte of fp16
        return _half_to_float(builder, builder.shl(field(8), i32(8)))
    if fmt == "e4m3":  # its fields lie across float32's; the bias is made up by a power of two
        code = field(8)
        magnitude = builder.and_(code, i32(0x7F))
        sign = builder.shl(builder.and_(code, i32(0x80)), i32(24))
        moved = builder.bitcast(builder.or_(sign, builder.shl(magnitude, i32(20))), f32)
        exact = builder.fmul(moved, ir.Constant(f32, 2.0**120))
        nan = builder.bitcast(i32(0x7FFFFFFF), f32)
        return builder.select(builder.icmp_unsigned("==", magnitude, i32(0x7F)), nan, exact)
    raise AssertionError(f"no decoder for {fmt}")


def _encode(fmt: str, builder: Any, value: Any) -> Any:
    """The code of a float32 value in the low bits of a 32-bit word."""
    from llvmlite import ir

    i32 = ir.IntType(32)
    if fmt == "fp32":
        return builder.bitcast(value, i32)
    if fmt == "fp16":
        half = builder.fptrunc(value, ir.HalfType())
        return builder.zext(builder.bitcast(half, ir.IntType(16)), i32)
    if fmt != "bf16":
        raise AssertionError(f"no encoder for {fmt}")
    bits = builder.bitcast(value, i32)
    odd = builder.and_(builder.lshr(bits, i32(16)), i32(1))
    rounded = builder.lshr(builder.add(builder.add(bits, i32(0x7FFF)), odd), i32(16))
    return builder.select(builder.fcmp_unordered("uno", value, value), i32(0x7FFF), rounded)


def _encode_two(builder: Any, low: Any, high: Any) -> Any:
    """The bf16 codes of two float32 values in a word, by the one instruction there is from 8.0."""
    from llvmlite import ir

    f32 = ir.FloatType()
    form = ir.FunctionType(ir.IntType(32), [f32, f32])
    code = ir.InlineAsm(form, "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f")
    return builder.call(code, [high, low])


@lru_cache(maxsize=64)
def pack(fmt: str, count: int, by_twos: bool = False, stays: bool = False) -> Pack:
    """The functions for packs of ``count`` elements of a format.

    Args:
        fmt: fp32, fp16, bf16, e4m3 or e5m2.
        count: elements; 1, 2, 4, 8 or 16 bytes together.
        by_twos: bf16 is rounded two at a time, on capabilities from 8.0.
        stays: what is stored leaves the caches in its turn; else first of all.
    """
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    size = storage_dtype(fmt).itemsize
    nbytes = size * count
    words = max(1, nbytes // 4)
    a_word = WORD_BITS // (8 * size)
    i32 = ir.IntType(32)
    memory = ir.VectorType(i32, words) if words > 1 else ir.IntType(8 * min(4, nbytes))
    policy = "" if stays else ".cs"
    words_type = types.UniTuple(types.uint32, words)
    values_type = types.UniTuple(types.float32, count)

    def pointer(context: Any, builder: Any, kind: Any, values: Any, space: int) -> Any:
        data = context.make_array(kind)(context, builder, values[0]).data
        first = builder.addrspacecast(data, ir.PointerType(data.type.pointee, space))
        return builder.gep(builder.bitcast(first, memory.as_pointer(space)), [values[1]])

    def reading(space: int) -> Function:
        @intrinsic  # type: ignore[untyped-decorator]
        def load(typing_context: Any, array: Any, index: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                at = pointer(context, builder, signature.args[0], values, space)
                held = builder.load(at, align=nbytes)
                if space == GLOBAL:
                    held.set_metadata("invariant.load", builder.module.add_metadata([]))
                if words > 1:
                    parts = [builder.extract_element(held, i32(i)) for i in range(words)]
                else:
                    parts = [builder.zext(held, i32) if nbytes < 4 else held]
                return context.make_tuple(builder, signature.return_type, parts)

            return words_type(array, types.uint64), generate

        function: Function = load
        return function

    @intrinsic  # type: ignore[untyped-decorator]
    def keep(typing_context: Any, array: Any, index: Any, parts: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            at = pointer(context, builder, signature.args[0], values, SHARED)
            each = [builder.extract_value(values[2], i) for i in range(words)]
            if words > 1:
                held = ir.Constant(memory, ir.Undefined)
                for i, part in enumerate(each):
                    held = builder.insert_element(held, part, i32(i))
            else:
                held = builder.trunc(each[0], memory) if nbytes < 4 else each[0]
            builder.store(held, at, align=nbytes)
            return context.get_dummy_value()

        return types.void(array, types.uint64, words_type), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def store(typing_context: Any, array: Any, index: Any, parts: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            at = pointer(context, builder, signature.args[0], values, GLOBAL)
            each = [builder.extract_value(values[2], i) for i in range(words)]
            if nbytes < 4:
                each = [builder.trunc(each[0], ir.IntType(16))]
            operands = ", ".join(f"${1 + i}" for i in range(words))
            width = f"v{words}.b32" if words > 1 else f"b{min(8 * nbytes, 32)}"
            form = ir.FunctionType(ir.VoidType(), [at.type, *(part.type for part in each)])
            text = (
                f"st.global{policy}.{width} [$0], {{{operands}}};"
                if words > 1
                else (f"st.global{policy}.{width} [$0], $1;")
            )
            kinds = ",".join(["l", *(["h" if nbytes < 4 else "r"] * words), "~{memory}"])
            builder.call(ir.InlineAsm(form, text, kinds, side_effect=True), [at, *each])
            return context.get_dummy_value()

        return types.void(array, types.uint64, words_type), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def values_of(typing_context: Any, parts: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            found = []
            for i in range(count):
                word = builder.extract_value(values[0], i // a_word)
                found.append(_decode(fmt, builder, word, i % a_word * 8 * size))
            return context.make_tuple(builder, signature.return_type, found)

        return values_type(words_type), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def narrow(typing_context: Any, numbers: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            found: list[Any] = [None] * words
            if by_twos and fmt == "bf16" and count % 2 == 0:
                each = [builder.extract_value(values[0], i) for i in range(count)]
                found = [_encode_two(builder, *each[2 * i : 2 * i + 2]) for i in range(words)]
                return context.make_tuple(builder, signature.return_type, found)
            for i in range(count):
                code = _encode(fmt, builder, builder.extract_value(values[0], i))
                place = i % a_word * 8 * size
                moved = builder.shl(code, i32(place)) if place else code
                before = found[i // a_word]
                found[i // a_word] = moved if before is None else builder.or_(before, moved)
            return context.make_tuple(builder, signature.return_type, found)

        return words_type(values_type), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def put(typing_context: Any, numbers: Any, place: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            slot = cgutils.alloca_once_value(builder, values[0])
            at = builder.trunc(values[1], i32) if values[1].type.width > 32 else values[1]
            builder.store(values[2], builder.gep(slot, [i32(0), at]))
            return builder.load(slot)

        return values_type(values_type, types.int64, types.float32), generate

    return Pack(count, words, reading(GLOBAL), store, reading(SHARED), keep, values_of, narrow, put)


@lru_cache(maxsize=1)
def exp2_approx() -> Function:
    """``ex2.approx.ftz.f32`` as a device function."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def exp2(typing_context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            f32 = ir.FloatType()
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(f32, [f32]), "llvm.nvvm.ex2.approx.ftz.f"
            )
            return builder.call(function, values)

        return types.float32(types.float32), generate

    function: Function = exp2
    return function
