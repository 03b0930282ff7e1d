"""The number formats, one row each; every other constant in the lab derives from a row.

Sources: IEEE 754-2019 (fp16, fp32); PTX ISA 8.7 and 9.0, sections "Fundamental types",
"Sub-byte data types" and "Alternate floating-point data formats"; OCP 8-bit Floating Point
Specification (OFP8) 1.0; OCP Microscaling Formats (MX) Specification 1.0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpulab.errors import UsageError
from gpulab.formats.paths import fp8, mma, narrow, scaled, tcgen05, wgmma
from gpulab.formats.row import Block, Format

_IEEE = "IEEE 754-2019"
_PTX = "PTX ISA 9.0, alternate floating-point data formats"
_PTX_INTEGER = "PTX ISA 9.0, fundamental and sub-byte types"
_OFP8 = "OCP 8-bit Floating Point Specification 1.0"
_MX = "OCP Microscaling Formats Specification 1.0"
_PTX_BLOCK = "PTX ISA 9.0, mma with block scaling (kind::mxf4nvf4)"

_PLAIN = (
    Format(
        name="fp32",
        aliases=("float32", "f32", "float", "single"),
        title="IEEE binary32",
        exponent_bits=8,
        mantissa_bits=23,
        bias=127,
        specials="ieee",
        ptx="f32",
        cpp="float",
        paths=(),
        source=_IEEE,
    ),
    Format(
        name="tf32",
        aliases=("tfloat32",),
        title="range of fp32, mantissa of fp16",
        exponent_bits=8,
        mantissa_bits=10,
        bias=127,
        specials="ieee",
        ptx="tf32",
        cpp="float",
        paths=(
            mma((8, 0), "m16n8k8.f32.tf32.tf32.f32"),
            wgmma("m64n8k8.f32.tf32.tf32"),
            tcgen05("tf32"),
        ),
        source=_PTX,
    ),
    Format(
        name="fp16",
        aliases=("float16", "f16", "half"),
        title="IEEE binary16",
        exponent_bits=5,
        mantissa_bits=10,
        bias=15,
        specials="ieee",
        ptx="f16",
        cpp="__half",
        paths=(
            mma((7, 5), "m16n8k8.f32.f16.f16.f32"),
            mma((8, 0), "m16n8k16.f32.f16.f16.f32"),
            wgmma("m64n8k16.f32.f16.f16"),
            tcgen05("f16"),
        ),
        source=_IEEE,
    ),
    Format(
        name="bf16",
        aliases=("bfloat16",),
        title="upper half of fp32",
        exponent_bits=8,
        mantissa_bits=7,
        bias=127,
        specials="ieee",
        ptx="bf16",
        cpp="__nv_bfloat16",
        paths=(
            mma((8, 0), "m16n8k16.f32.bf16.bf16.f32"),
            wgmma("m64n8k16.f32.bf16.bf16"),
            tcgen05("f16"),
        ),
        source=_PTX,
    ),
    Format(
        name="e4m3",
        aliases=("float8_e4m3fn", "fp8_e4m3", "e4m3fn", "fp8"),
        title="fp8, more precision",
        exponent_bits=4,
        mantissa_bits=3,
        bias=7,
        specials="nan_only",
        ptx="e4m3",
        cpp="__nv_fp8_e4m3",
        paths=fp8("e4m3"),
        source=_OFP8,
    ),
    Format(
        name="e5m2",
        aliases=("float8_e5m2", "fp8_e5m2"),
        title="fp8, more range",
        exponent_bits=5,
        mantissa_bits=2,
        bias=15,
        specials="ieee",
        ptx="e5m2",
        cpp="__nv_fp8_e5m2",
        paths=fp8("e5m2"),
        source=_OFP8,
    ),
    Format(
        name="e2m3",
        aliases=("float6_e2m3fn", "fp6_e2m3", "e2m3fn"),
        title="fp6, more precision",
        exponent_bits=2,
        mantissa_bits=3,
        bias=1,
        specials="none",
        ptx="e2m3",
        cpp="__nv_fp6_e2m3",
        paths=narrow("e2m3"),
        source=_MX,
    ),
    Format(
        name="e3m2",
        aliases=("float6_e3m2fn", "fp6_e3m2", "e3m2fn"),
        title="fp6, more range",
        exponent_bits=3,
        mantissa_bits=2,
        bias=3,
        specials="none",
        ptx="e3m2",
        cpp="__nv_fp6_e3m2",
        paths=narrow("e3m2"),
        source=_MX,
    ),
    Format(
        name="e2m1",
        aliases=("float4_e2m1fn", "fp4_e2m1", "e2m1fn", "fp4"),
        title="fp4",
        exponent_bits=2,
        mantissa_bits=1,
        bias=1,
        specials="none",
        ptx="e2m1",
        cpp="__nv_fp4_e2m1",
        paths=narrow("e2m1"),
        source=_MX,
    ),
    Format(
        name="e8m0",
        aliases=("float8_e8m0fnu", "ue8m0", "e8m0fnu"),
        title="block scale: a power of two",
        exponent_bits=8,
        mantissa_bits=0,
        bias=127,
        specials="scale",
        ptx="ue8m0",
        cpp="__nv_fp8_e8m0",
        paths=(),
        source=_MX,
    ),
    Format(
        name="int8",
        aliases=("i8", "s8"),
        title="two's complement",
        exponent_bits=0,
        mantissa_bits=7,
        bias=0,
        specials="integer",
        ptx="s8",
        cpp="signed char",
        paths=(
            mma((7, 5), "m8n8k16.s32.s8.s8.s32"),
            mma((8, 0), "m16n8k32.s32.s8.s8.s32"),
            wgmma("m64n8k32.s32.s8.s8"),
        ),
        source=_PTX_INTEGER,
    ),
    Format(
        name="int4",
        aliases=("i4", "s4"),
        title="two's complement, half a byte",
        exponent_bits=0,
        mantissa_bits=3,
        bias=0,
        specials="integer",
        ptx="s4",
        cpp=None,
        paths=(mma((7, 5), "m8n8k32.s32.s4.s4.s32"), mma((8, 0), "m16n8k64.s32.s4.s4.s32")),
        source=_PTX_INTEGER,
    ),
)
_ELEMENTS = {row.name: row for row in _PLAIN}


def _blocked(name: str, alias: str, title: str, kind: str, source: str, block: Block) -> Format:
    """A block format: its first element's row, with the scale sharing beside it."""
    return replace(
        _ELEMENTS[block.elements[0]],
        name=name,
        aliases=(alias,),
        title=title,
        paths=scaled(kind, block.elements[0], _ELEMENTS[block.scale].ptx),
        source=source,
        block=block,
    )


_BLOCKED = (
    _blocked(
        "mxfp8", "mxf8", "fp8 in blocks", "mxf8f6f4", _MX, Block(32, "e8m0", ("e4m3", "e5m2"))
    ),
    _blocked(
        "mxfp6", "mxf6", "fp6 in blocks", "mxf8f6f4", _MX, Block(32, "e8m0", ("e2m3", "e3m2"))
    ),
    _blocked("mxfp4", "mxf4", "fp4 in blocks", "mxf4", _MX, Block(32, "e8m0", ("e2m1",))),
    _blocked(
        "nvfp4",
        "nvf4",
        "fp4 in short blocks",
        "mxf4nvf4",
        _PTX_BLOCK,
        Block(16, "e4m3", ("e2m1",), "fp32"),
    ),
)

FORMATS: dict[str, Format] = {row.name: row for row in (*_PLAIN, *_BLOCKED)}
"""The rows by canonical name, in the order in which tables show them."""

_BY_NAME = {name: row for row in FORMATS.values() for name in (row.name, *row.aliases)}
_CONTAINERS = {"int32": np.dtype(np.int32)}


def get(name: str) -> Format:
    """The row of a canonical name or alias.

    Raises:
        UsageError: no such format; names the known ones.
    """
    row = _BY_NAME.get(name.lower())
    if row is None:
        raise UsageError(f"unknown format {name!r}", fix=f"choose one of: {', '.join(names())}")
    return row


def names() -> tuple[str, ...]:
    """Canonical names, in table order."""
    return tuple(FORMATS)


def storage_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of stored codes; also knows the container ``int32``.

    Raises:
        UsageError: no such format.
    """
    return _CONTAINERS[name] if name in _CONTAINERS else get(name).storage
