"""The number formats, one row each; every other constant in the lab derives from a row.

A row is data about the format itself: its bit fields, its special codes, how CUDA and PTX spell
it, and which tensor-core instructions multiply it on which compute capabilities.

Sources: IEEE 754-2019 (fp16, fp32); PTX ISA 8.7 and 9.0, sections "Fundamental types",
"Alternate floating-point data formats", "mma", "wgmma.mma_async", "tcgen05.mma"; OCP 8-bit
Floating Point Specification (OFP8) 1.0; OCP Microscaling Formats (MX) Specification 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gpulab.formats.derived import Derived

Capability = tuple[int, int]
Specials = Literal["ieee", "nan_only", "none", "scale", "integer"]
"""Which codes are not finite numbers.

``ieee``: the top exponent is Inf (mantissa 0) and NaN. ``nan_only``: no Inf, NaN where every
exponent and mantissa bit is 1. ``none``: every code is finite. ``scale``: unsigned powers of two
without zero, NaN where every bit is 1. ``integer``: two's complement.
"""


@dataclass(frozen=True)
class Path:
    """One tensor-core instruction that multiplies a format.

    Args:
        first: lowest compute capability that has it.
        last: highest one, or None where later cards keep it.
        family: ``mma.sync``, ``wgmma`` or ``tcgen05``.
        instruction: its name, in the spelling of ``gpulab.numerics.tensorcore`` where that
            models it.
        emulated: capabilities on which it is carried out through another format's instruction.
    """

    first: Capability
    last: Capability | None
    family: Literal["mma.sync", "wgmma", "tcgen05"]
    instruction: str
    emulated: tuple[Capability, ...] = ()

    def covers(self, capability: Capability) -> bool:
        """Whether a card of ``capability`` has the instruction."""
        return self.first <= capability and (self.last is None or capability <= self.last)


@dataclass(frozen=True)
class Block:
    """How a block format shares scales.

    Args:
        length: elements that share one scale.
        scale: format of that scale.
        elements: the element formats allowed; the row itself describes the first.
        tensor_scale: format of a further scale for the whole tensor, or None.
    """

    length: int
    scale: str
    elements: tuple[str, ...]
    tensor_scale: str | None = None


@dataclass(frozen=True)
class Format(Derived):
    """One number format. For a block format the fields describe its (first) element.

    Args:
        name: canonical name.
        aliases: other spellings that ``get`` accepts.
        title: one short phrase for tables.
        bits: width of a code (19 significant bits of the 32-bit register for tf32).
        exponent_bits: width of the exponent field; 0 for integers.
        mantissa_bits: stored fraction bits.
        bias: exponent bias.
        specials: which codes are not finite, see ``Specials``.
        ptx: type name in PTX, without the dot.
        cpp: CUDA C++ type of one stored value, or None where there is none.
        paths: the tensor-core instructions, ascending by capability within a family.
        source: the document that defines it.
        block: scale sharing, for block formats only.
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials
    ptx: str
    cpp: str | None
    paths: tuple[Path, ...]
    source: str
    block: Block | None = None

    @property
    def instruction(self) -> str | None:
        """The tensor-core instruction of the lowest capability; None: CUDA cores only."""
        return self.paths[0].instruction if self.paths else None

    @property
    def min_capability(self) -> Capability | None:
        """Lowest capability that has ``instruction``; None: CUDA cores only."""
        return self.paths[0].first if self.paths else None

    @property
    def signed(self) -> bool:
        """Whether codes carry a sign."""
        return self.specials != "scale"


_IEEE = "IEEE 754-2019"
_PTX = "PTX ISA, alternate floating-point data formats"
_OFP8 = "OCP 8-bit Floating Point Specification 1.0"
_MX = "OCP Microscaling Formats Specification 1.0"
_NVFP4 = "PTX ISA, mma with block scaling (kind::mxf4nvf4)"

_HOPPER = (9, 0)
_TCGEN05 = (10, 0), (11, 0)


def _mma(first: Capability, shape: str, types: str, last: Capability | None = None) -> Path:
    return Path(first, last, "mma.sync", f"mma.sync.{shape}.{types}")


def _wgmma(k: int, ptx: str, accumulator: str = "f32") -> Path:
    name = f"wgmma.m64n8k{k}.{accumulator}.{ptx}.{ptx}"
    return Path(_HOPPER, _HOPPER, "wgmma", name)


def _tcgen05(kind: str) -> Path:
    return Path(*_TCGEN05, "tcgen05", f"tcgen05.mma.kind::{kind}")


def _fp8_paths(ptx: str) -> tuple[Path, ...]:
    name = f"mma.sync.m16n8k32.f32.{ptx}.{ptx}.f32"
    return (
        Path((8, 9), None, "mma.sync", name, emulated=((9, 0), (10, 0))),
        _wgmma(32, ptx),
        _tcgen05("f8f6f4"),
    )


def _narrow_paths(ptx: str) -> tuple[Path, ...]:
    name = f"mma.sync.kind::f8f6f4.m16n8k32.f32.{ptx}.{ptx}.f32"
    return (Path((12, 0), None, "mma.sync", name), _tcgen05("f8f6f4"))


_FP32 = Format(
    "fp32",
    ("float32", "f32", "float", "single"),
    "IEEE binary32",
    32,
    8,
    23,
    127,
    "ieee",
    "f32",
    "float",
    (),
    _IEEE,
)
_TF32 = Format(
    "tf32",
    ("tfloat32",),
    "fp32 range, 10 mantissa bits",
    19,
    8,
    10,
    127,
    "ieee",
    "tf32",
    "float",
    (_mma((8, 0), "m16n8k8", "f32.tf32.tf32.f32"), _wgmma(8, "tf32"), _tcgen05("tf32")),
    _PTX,
)
_FP16 = Format(
    "fp16",
    ("float16", "f16", "half"),
    "IEEE binary16",
    16,
    5,
    10,
    15,
    "ieee",
    "f16",
    "__half",
    (
        _mma((7, 5), "m16n8k8", "f32.f16.f16.f32"),
        _mma((8, 0), "m16n8k16", "f32.f16.f16.f32"),
        _wgmma(16, "f16"),
        _tcgen05("f16"),
    ),
    _IEEE,
)
_BF16 = Format(
    "bf16",
    ("bfloat16",),
    "the upper half of fp32",
    16,
    8,
    7,
    127,
    "ieee",
    "bf16",
    "__nv_bfloat16",
    (_mma((8, 0), "m16n8k16", "f32.bf16.bf16.f32"), _wgmma(16, "bf16"), _tcgen05("f16")),
    _PTX,
)
_E4M3 = Format(
    "e4m3",
    ("float8_e4m3fn", "fp8_e4m3", "e4m3fn", "fp8"),
    "fp8 with more precision",
    8,
    4,
    3,
    7,
    "nan_only",
    "e4m3",
    "__nv_fp8_e4m3",
    _fp8_paths("e4m3"),
    _OFP8,
)
_E5M2 = Format(
    "e5m2",
    ("float8_e5m2", "fp8_e5m2"),
    "fp8 with more range",
    8,
    5,
    2,
    15,
    "ieee",
    "e5m2",
    "__nv_fp8_e5m2",
    _fp8_paths("e5m2"),
    _OFP8,
)
_E2M3 = Format(
    "e2m3",
    ("float6_e2m3fn", "fp6_e2m3", "e2m3fn"),
    "fp6 with more precision",
    6,
    2,
    3,
    1,
    "none",
    "e2m3",
    "__nv_fp6_e2m3",
    _narrow_paths("e2m3"),
    _MX,
)
_E3M2 = Format(
    "e3m2",
    ("float6_e3m2fn", "fp6_e3m2", "e3m2fn"),
    "fp6 with more range",
    6,
    3,
    2,
    3,
    "none",
    "e3m2",
    "__nv_fp6_e3m2",
    _narrow_paths("e3m2"),
    _MX,
)
_E2M1 = Format(
    "e2m1",
    ("float4_e2m1fn", "fp4_e2m1", "e2m1fn", "fp4"),
    "fp4",
    4,
    2,
    1,
    1,
    "none",
    "e2m1",
    "__nv_fp4_e2m1",
    _narrow_paths("e2m1"),
    _MX,
)
_E8M0 = Format(
    "e8m0",
    ("float8_e8m0fnu", "ue8m0", "e8m0fnu"),
    "block scale: a power of two",
    8,
    8,
    0,
    127,
    "scale",
    "ue8m0",
    "__nv_fp8_e8m0",
    (),
    _MX,
)
_INT8 = Format(
    "int8",
    ("i8", "s8"),
    "two's complement",
    8,
    0,
    7,
    0,
    "integer",
    "s8",
    "signed char",
    (
        _mma((7, 5), "m8n8k16", "s32.s8.s8.s32"),
        _mma((8, 0), "m16n8k32", "s32.s8.s8.s32"),
        _wgmma(32, "s8", "s32"),
    ),
    "PTX ISA, fundamental types",
)
_INT4 = Format(
    "int4",
    ("i4", "s4"),
    "two's complement, half a byte",
    4,
    0,
    3,
    0,
    "integer",
    "s4",
    None,
    (_mma((7, 5), "m8n8k32", "s32.s4.s4.s32"), _mma((8, 0), "m16n8k64", "s32.s4.s4.s32")),
    "PTX ISA, sub-byte types",
)


def _scaled(kind: str, k: int, vector: int, ptx: str, scale: str) -> tuple[Path, ...]:
    name = f"mma.sync.kind::{kind}.block_scale.scale_vec::{vector}X.m16n8k{k}"
    return (
        Path((12, 0), None, "mma.sync", f"{name}.f32.{ptx}.{ptx}.f32.{scale}"),
        _tcgen05(f"{kind}.block_scale"),
    )


_MXFP8 = replace(
    _E4M3,
    name="mxfp8",
    aliases=("mxf8",),
    title="fp8 in blocks",
    source=_MX,
    paths=_scaled("mxf8f6f4", 32, 1, "e4m3", "ue8m0"),
    block=Block(32, "e8m0", ("e4m3", "e5m2")),
)
_MXFP6 = replace(
    _E2M3,
    name="mxfp6",
    aliases=("mxf6",),
    title="fp6 in blocks",
    source=_MX,
    paths=_scaled("mxf8f6f4", 32, 1, "e2m3", "ue8m0"),
    block=Block(32, "e8m0", ("e2m3", "e3m2")),
)
_MXFP4 = replace(
    _E2M1,
    name="mxfp4",
    aliases=("mxf4",),
    title="fp4 in blocks",
    source=_MX,
    paths=_scaled("mxf4", 64, 2, "e2m1", "ue8m0"),
    block=Block(32, "e8m0", ("e2m1",)),
)
_NVFP4_ROW = replace(
    _E2M1,
    name="nvfp4",
    aliases=("nvf4",),
    title="fp4 in short blocks",
    source=_NVFP4,
    paths=_scaled("mxf4nvf4", 64, 4, "e2m1", "ue4m3"),
    block=Block(16, "e4m3", ("e2m1",), tensor_scale="fp32"),
)

FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        _FP32,
        _TF32,
        _FP16,
        _BF16,
        _E4M3,
        _E5M2,
        _E2M3,
        _E3M2,
        _E2M1,
        _E8M0,
        _INT8,
        _INT4,
        _MXFP8,
        _MXFP6,
        _MXFP4,
        _NVFP4_ROW,
    )
}
"""The rows by canonical name, in the order in which tables show them."""
