"""The tiled matmul in Numba: tile, guards, launch shape and order of sums of the raw ``simt``.

What keeps it at the raw kernel's speed, seen in the PTX: the tile edge is a constant and indices
are unsigned (a signed one is checked for being negative), so that the inner loop is unrolled and
every shared address is a base plus a constant; the tiles are aligned to 16 bytes, so that one load
brings four elements of a row of A; the multiply-add is an explicit ``fma`` on float32 values (a
Python float would make them float64). bf16 and fp8 arrive as codes and are decoded in the kernel,
which works on every card and needs no Numba type of theirs; where one instruction converts a code,
it is that instruction, so that the loop stays short enough to be unrolled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from gpulab.formats import storage_dtype
from gpulab.kernels.matmul.simt import TILE, VARIANTS, params, plan, supports
from gpulab.registry import Capability, Dims, KernelSpec, NumbaBuild, Variant, register

Function = Callable[..., Any]


def _instruction(text: str, constraints: str, result: Any, operand: Any) -> Function:
    """One PTX instruction as a function of one value.

    Args:
        text: ``$0`` is the result, ``$1`` the operand.
        constraints: ``=result,operand``: r for 32 bits, h for 16, f for float32.
        result: its Numba type.
        operand: its Numba type.
    """
    from llvmlite import ir
    from numba.extending import intrinsic

    def instruction(typing_context: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            takes, gives = context.get_value_type(operand), context.get_value_type(result)
            function = ir.InlineAsm(ir.FunctionType(gives, [takes]), text, constraints)
            return builder.call(function, values)

        return result(operand), generate

    instruction.__name__ = text
    return cast(Function, intrinsic(instruction))


def _decoders(capability: Capability) -> dict[str, Function]:
    """From a stored code to float32, by format; exact for every code.

    bf16 is the upper half of float32 and e5m2 the upper byte of fp16, which an instruction
    widens. e4m3 has an instruction from 8.9 on; before, its bits are moved into float32's fields
    and an exact power of two corrects the exponent bias, subnormals included.
    """
    from numba import float32, int32, uint16, uint32
    from numba.cuda import libdevice

    scale_e4m3 = np.float32(2.0 ** (127 - 7))
    widen = _instruction("cvt.f32.f16 $0, $1;", "=f,h", float32, uint16)
    pair = _instruction("cvt.rn.f16x2.e4m3x2 $0, $1;", "=r,h", uint32, uint16)

    def fp32(x: Any) -> Any:
        return x

    def fp16(x: Any) -> Any:
        return float32(x)

    def bf16(code: Any) -> Any:
        return libdevice.int_as_float(int32(int32(code) << int32(16)))

    def e4m3_by_instruction(code: Any) -> Any:
        # Two codes at a time; the upper one is zero.
        return widen(uint16(pair(uint16(code))))

    def e4m3_by_fields(code: Any) -> Any:
        magnitude = int32(code) & int32(0x7F)
        sign = (int32(code) & int32(0x80)) << int32(24)
        # The one NaN code is all ones, and float32 reads all ones as NaN.
        fields = int32(0x7FFFFFFF) if magnitude == int32(0x7F) else magnitude << int32(20)
        return libdevice.int_as_float(int32(sign | fields)) * scale_e4m3

    def e5m2(code: Any) -> Any:
        return widen(uint16(uint16(code) << uint16(8)))

    e4m3 = e4m3_by_instruction if capability >= (8, 9) else e4m3_by_fields
    return {"fp32": fp32, "fp16": fp16, "bf16": bf16, "e4m3": e4m3, "e5m2": e5m2}


def _multiply_adds() -> dict[str, Function]:
    """The fused multiply-add of each accumulator."""
    from numba import cuda

    def fp32(a: Any, b: Any, c: Any) -> Any:
        return cuda.fma(a, b, c)

    def fp16(a: Any, b: Any, c: Any) -> Any:
        return cuda.fp16.hfma(a, b, c)

    return {"fp32": fp32, "fp16": fp16}


def _make(variant: Variant, capability: Capability) -> Function:
    """The kernel for one variant, as a plain function over arrays of stored codes.

    Arguments: a (m, k), b (k, n), c (m, n) float32, row-major; m, n, k int32.
    """
    from numba import cuda, float32, uint8, uint16, uint32, uint64
    from numba.cuda.types import float16

    # Inlined before typing: a device function on its own would be compiled for the current card,
    # and there may be none.
    inline = cuda.jit(device=True, inline="always")
    decoders = _decoders(capability)
    narrow = variant.accumulator == "fp16"
    # An fp16 sum takes fp16 elements as they are.
    load = inline(decoders["fp32" if narrow else variant.format])
    multiply_add = inline(_multiply_adds()[variant.accumulator])
    accumulator = float16 if narrow else float32
    codes = {"float32": float32, "float16": float16, "uint16": uint16, "uint8": uint8}
    stored = codes[storage_dtype(variant.format).name]
    tile = np.uint64(TILE)

    def matmul_simt(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        tile_a = cuda.shared.array((TILE, TILE), stored, alignment=16)
        tile_b = cuda.shared.array((TILE, TILE), stored, alignment=16)
        x = uint32(cuda.threadIdx.x)
        y = uint32(cuda.threadIdx.y)
        row = uint32(cuda.blockIdx.y) * tile + y
        column = uint32(cuda.blockIdx.x) * tile + x
        rows, columns, terms = uint32(m), uint32(n), uint32(k)
        nothing = stored(0)
        total = accumulator(0)
        done = uint64(0)
        while done < terms:
            tile_a[y, x] = a[row, done + x] if row < rows and done + x < terms else nothing
            tile_b[y, x] = b[done + y, column] if done + y < terms and column < columns else nothing
            cuda.syncthreads()
            i = uint64(0)
            while i < tile:
                total = multiply_add(load(tile_a[y, i]), load(tile_b[i, x]), total)
                i += uint64(1)
            cuda.syncthreads()
            done += tile
        if row < rows and column < columns:
            c[row, column] = float32(total)

    return matmul_simt


def _build(variant: Variant, capability: Capability, dims: Dims) -> NumbaBuild:
    key = f"matmul_simt_{variant.format}_{variant.accumulator}_{TILE}"
    return NumbaBuild(partial(_make, variant, capability), key)


register(
    KernelSpec(
        op="matmul",
        name="simt",
        backend="numba",
        idea="the tiled kernel written in Python: same tile, same order of sums",
        order=20,
        variants=VARIANTS,
        params=params,
        build=_build,
        plan=plan,
        supports=supports,
        source="Numba documentation, CUDA: shared memory and matrix multiplication",
    )
)
