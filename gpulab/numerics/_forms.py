"""Which tensor-core instructions exist on which capability, and how each one rounds.

The parameters are data: one row per capability, family, operand group and K. See
``docs/tensor-cores.md`` for what each status rests on.

Sources: M. Khattak and M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv 2512.07004)
and its hardware vectors; P. Xie et al., "MMA-Sim" (arXiv 2511.10909); M. Fasi et al., "Numerical
behavior of NVIDIA tensor cores" (PeerJ CS 7:e330); PTX ISA, "mma", "wgmma.mma_async"; recordings
of an H200.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gpulab.errors import UsageError
from gpulab.numerics._fdpa import Result

Capability = tuple[int, int]
Route = Literal["native", "through_fp16"]
Verified = Literal["recorded", "public", "assumed"]

HALF = ("f16", "bf16")
FP8 = ("e4m3", "e5m2")
NARROW = ("e2m3", "e3m2", "e2m1")
INTEGER = ("s8", "u8")
_WORDS = {"sync", "aligned", "mma_async", "mma", "row", "col"}
_TYPES = {*HALF, "tf32", *FP8, *NARROW, *INTEGER, "f32", "s32", "ue8m0", "ue4m3"}


@dataclass(frozen=True)
class Form:
    """An instruction name taken apart."""

    family: str
    k: int
    d: str
    a: str
    b: str
    c: str
    kind: str | None
    scale: str | None
    saturate: bool

    @property
    def group(self) -> str:
        """Operand group that shares parameters."""
        if self.scale is not None:
            return self.kind or "block_scale"
        for name, types in (("half", HALF), ("tf32", ("tf32",)), ("fp8", FP8), ("int8", INTEGER)):
            if self.a in types and self.b in types and (name != "half" or self.a == self.b):
                return name
        return "narrow" if {self.a, self.b} <= {*FP8, *NARROW} else "none"


@dataclass(frozen=True)
class DotModel:
    """How one instruction computes ``D = A B + C`` on one capability.

    Args:
        instruction: the name asked for.
        capability: compute capability.
        a_type: PTX type of A.
        b_type: PTX type of B.
        d_type: PTX type of C and D: ``f32``, ``f16`` or ``s32``.
        k: products per instruction and output.
        block: products fused in one truncating sum (N); blocks are chained, k ascending.
        fraction_bits: fraction bits kept of every aligned term (F).
        result: rounding after each block.
        route: ``native``, or ``through_fp16``: two fp16 blocks over k mod 4 in {0, 1} and in
            {2, 3} from zero, then one rounded addition of C.
        verified: ``recorded`` on hardware for this project, ``public`` hardware vectors, or
            ``assumed`` from a published model without hardware data.
        note: what the status rests on.
        scale_type: format of block scales, or None.
        scale_block: products that share one pair of scales; 0 where there are none.
        exact_group: products summed exactly before alignment (block-scaled fp4), else 1.
        saturate: int32 results clamp instead of wrapping.
    """

    instruction: str
    capability: Capability
    a_type: str
    b_type: str
    d_type: str
    k: int
    block: int
    fraction_bits: int
    result: Result
    route: Route
    verified: Verified
    note: str
    scale_type: str | None = None
    scale_block: int = 0
    exact_group: int = 1
    saturate: bool = False


@dataclass(frozen=True)
class _Row:
    """One row of the parameter table; ``d`` and ``pairs`` None: every one of the group."""

    capabilities: tuple[Capability, ...]
    family: str
    group: str
    k: tuple[int, ...]
    d: tuple[str, ...]
    block: int
    fraction_bits: int
    verified: Verified
    note: str
    route: Route = "native"
    short: bool = False
    pairs: tuple[tuple[str, str], ...] | None = None


_V100, _T4, _ADA, _HOPPER, _B200, _RTX = (7, 0), (7, 5), (8, 9), (9, 0), (10, 0), (12, 0)
_GA = ((8, 0), (8, 6))
_FULL = (_HOPPER, _B200, _RTX)
_F32, _BOTH = ("f32",), ("f32", "f16")
_SAME = (("e4m3", "e4m3"), ("e5m2", "e5m2"))
_PUBLIC = "public vectors"
_MMASIM = "MMA-Sim; no public vectors"
_REC = "recorded on an H200"
_CHAIN = "public vectors of one block; that two blocks are chained is MMA-Sim's reading"

_ROWS = (
    _Row((_V100,), "mma.sync", "half", (4,), _BOTH, 4, 23, "public", f"{_PUBLIC}: V100"),
    _Row((_T4,), "mma.sync", "half", (4,), _BOTH, 4, 24, "assumed", _MMASIM),
    _Row((_T4,), "mma.sync", "half", (8,), _BOTH, 8, 24, "assumed", f"{_MMASIM}; F also in Fasi"),
    _Row(((8, 0),), "mma.sync", "half", (8,), _BOTH, 8, 24, "public", f"{_PUBLIC}: A100"),
    _Row(((8, 6),), "mma.sync", "half", (8,), _BOTH, 8, 24, "public", f"{_PUBLIC}: A2"),
    _Row((_ADA,), "mma.sync", "half", (8,), _BOTH, 8, 24, "public", f"{_PUBLIC}: Ada, L40S"),
    _Row((*_GA, _ADA), "mma.sync", "half", (16,), _BOTH, 8, 24, "public", _CHAIN),
    _Row((*_GA, _ADA), "mma.sync", "tf32", (4,), _F32, 4, 24, "public", _PUBLIC),
    _Row((*_GA, _ADA), "mma.sync", "tf32", (8,), _F32, 4, 24, "public", _CHAIN),
    _Row(
        (_ADA,),
        "mma.sync",
        "fp8",
        (32,),
        _BOTH,
        16,
        13,
        "public",
        f"{_PUBLIC}: Ada, L40S",
        short=True,
        pairs=_SAME,
    ),
    _Row((_ADA,), "mma.sync", "fp8", (16, 32), _BOTH, 16, 13, "assumed", _MMASIM, short=True),
    _Row((_HOPPER,), "mma.sync", "half", (8, 16), _F32, 16, 25, "recorded", _REC),
    _Row((_HOPPER,), "mma.sync", "half", (16,), ("f16",), 16, 25, "recorded", _REC),
    _Row((_HOPPER,), "mma.sync", "half", (8,), ("f16",), 16, 25, "assumed", "as with k16"),
    _Row((_HOPPER,), "mma.sync", "tf32", (4, 8), _F32, 8, 25, "recorded", _REC),
    _Row(
        (_HOPPER,), "mma.sync", "fp8", (32,), _F32, 16, 25, "recorded", _REC, route="through_fp16"
    ),
    _Row(
        (_HOPPER,),
        "mma.sync",
        "fp8",
        (32,),
        ("f16",),
        16,
        25,
        "public",
        f"{_PUBLIC}: H100, H200",
        route="through_fp16",
        pairs=_SAME,
    ),
    _Row(
        (_B200,),
        "mma.sync",
        "fp8",
        (32,),
        _BOTH,
        16,
        25,
        "public",
        f"{_PUBLIC}: B200",
        route="through_fp16",
        pairs=_SAME,
    ),
    _Row(
        (_HOPPER, _B200),
        "mma.sync",
        "fp8",
        (32,),
        _BOTH,
        16,
        25,
        "assumed",
        "mixed operands as with equal ones",
        route="through_fp16",
    ),
    _Row((_HOPPER,), "wgmma", "half", (16,), _F32, 16, 25, "recorded", _REC),
    _Row((_HOPPER,), "wgmma", "half", (16,), ("f16",), 16, 25, "assumed", "as mma.sync"),
    _Row((_HOPPER,), "wgmma", "tf32", (8,), _F32, 8, 25, "assumed", "as mma.sync"),
    _Row(
        (_HOPPER,), "wgmma", "fp8", (32,), _F32, 32, 13, "recorded", _REC, short=True, pairs=_SAME
    ),
    _Row((_HOPPER,), "wgmma", "fp8", (32,), _BOTH, 32, 13, "assumed", _MMASIM, short=True),
    _Row((_B200,), "mma.sync", "half", (16,), _BOTH, 16, 25, "public", f"{_PUBLIC}: B200"),
    _Row((_B200,), "mma.sync", "half", (8,), _BOTH, 16, 25, "assumed", "as with k16"),
    _Row((_B200,), "mma.sync", "tf32", (4,), _F32, 8, 25, "public", f"{_PUBLIC}: B200"),
    _Row((_B200,), "mma.sync", "tf32", (8,), _F32, 8, 25, "assumed", "as on 9.0"),
    _Row((_B200,), "tcgen05", "half", (16,), _BOTH, 16, 25, "assumed", _MMASIM),
    _Row((_B200,), "tcgen05", "tf32", (8,), _F32, 8, 25, "assumed", _MMASIM),
    _Row((_B200,), "tcgen05", "fp8", (32,), _BOTH, 32, 25, "assumed", _MMASIM),
    _Row((_B200,), "tcgen05", "narrow", (32,), _BOTH, 32, 25, "assumed", _MMASIM),
    _Row((_RTX,), "mma.sync", "half", (8, 16), _BOTH, 16, 25, "assumed", _MMASIM),
    _Row((_RTX,), "mma.sync", "tf32", (4, 8), _F32, 8, 25, "assumed", _MMASIM),
    _Row((_RTX,), "mma.sync", "fp8", (16, 32), _BOTH, 32, 25, "assumed", _MMASIM),
    _Row((_RTX,), "mma.sync", "narrow", (32,), _BOTH, 32, 25, "assumed", _MMASIM),
    _Row((_RTX,), "mma.sync", "mxf8f6f4", (32,), _F32, 32, 25, "assumed", _MMASIM),
    _Row((_RTX,), "mma.sync", "mxf4", (64,), _F32, 64, 35, "assumed", _MMASIM),
    _Row((_RTX,), "mma.sync", "mxf4nvf4", (64,), _F32, 64, 35, "assumed", _MMASIM),
    _Row((_T4,), "mma.sync", "int8", (16,), ("s32",), 16, 0, "public", "exact by definition"),
    _Row(
        (*_GA, _ADA, *_FULL),
        "mma.sync",
        "int8",
        (16, 32),
        ("s32",),
        32,
        0,
        "public",
        "exact by definition",
    ),
    _Row((_HOPPER,), "wgmma", "int8", (32,), ("s32",), 32, 0, "public", "exact by definition"),
)

CAPABILITIES = tuple(sorted({c for row in _ROWS for c in row.capabilities}))


def parse(instruction: str) -> Form:
    """Take an instruction name apart; modifiers may stand in any order, as in PTX or shorter.

    Raises:
        UsageError: not a name of a matrix instruction.
    """
    family, _, rest = instruction.partition(".")
    if family == "mma":
        family = "mma.sync"
    parts = rest.split(".")
    shape = next((p for p in parts if re.fullmatch(r"m\d+n\d+k\d+", p)), None)
    types = [p for p in parts if p in _TYPES]
    modifiers = [p for p in parts if p not in _WORDS and p != shape and p not in types]
    kind = next((p.removeprefix("kind::") for p in modifiers if p.startswith("kind::")), None)
    scaled = "block_scale" in modifiers
    unknown = [
        p
        for p in modifiers
        if p not in ("satfinite", "block_scale") and not p.startswith(("kind::", "scale_vec::"))
    ]
    scale = types.pop() if scaled and len(types) == 5 else None
    if family in ("wgmma", "tcgen05") and len(types) == 3:
        types.append(types[0])
    good = family in ("mma.sync", "wgmma", "tcgen05") and shape and len(types) == 4
    if not good or unknown or (scaled and scale is None) or types[0] != types[3]:
        raise UsageError(
            f"not a matrix instruction that is modelled: {instruction!r}",
            fix="write it as PTX does, for example mma.sync.m16n8k16.f32.f16.f16.f32 or "
            "wgmma.m64n8k32.f32.e4m3.e4m3",
        )
    d, a, b, c = types
    k = int(str(shape).rpartition("k")[2])
    return Form(family, k, d, a, b, c, kind, scale, "satfinite" in modifiers)


@lru_cache(maxsize=512)
def model(instruction: str, capability: Capability) -> DotModel:
    """The arithmetic of an instruction on a capability.

    Args:
        instruction: PTX spelling, with or without ``.sync.aligned.row.col``.
        capability: for example ``(9, 0)``.

    Raises:
        UsageError: no such instruction, or it does not exist there; names what does.
    """
    form = parse(instruction)
    if capability not in CAPABILITIES:
        known = ", ".join(f"{major}.{minor}" for major, minor in CAPABILITIES)
        raise UsageError(
            f"tensor-core arithmetic of capability {capability[0]}.{capability[1]} is not known",
            fix=f"choose one of: {known}",
        )
    for row in _ROWS:
        if _matches(row, form, capability):
            return _build(row, form, instruction, capability)
    raise UsageError(
        f"{instruction} is not modelled for capability {capability[0]}.{capability[1]}",
        fix="available there: " + "; ".join(available(capability)),
    )


def available(capability: Capability) -> tuple[str, ...]:
    """Short names of the instruction groups modelled for a capability."""
    names = []
    for row in _ROWS:
        if capability in row.capabilities:
            for k in row.k:
                name = f"{row.family} {row.group} k{k} -> {'/'.join(row.d)}"
                if name not in names:
                    names.append(name)
    return tuple(names)


def _matches(row: _Row, form: Form, capability: Capability) -> bool:
    return (
        capability in row.capabilities
        and row.family == form.family
        and row.group == form.group
        and form.k in row.k
        and form.d in row.d
        and (row.pairs is None or (form.a, form.b) in row.pairs)
    )


def _build(row: _Row, form: Form, instruction: str, capability: Capability) -> DotModel:
    result: Result = "rz_e8m13" if row.short else "rz_f32"
    if form.d == "f16":
        result = "rne_f16"
    elif form.d == "s32":
        result = "int32"
    return DotModel(
        instruction=instruction,
        capability=capability,
        a_type=form.a,
        b_type=form.b,
        d_type=form.d,
        k=form.k,
        block=min(row.block, form.k),
        fraction_bits=row.fraction_bits,
        result=result,
        route=row.route,
        verified=row.verified,
        note=row.note,
        scale_type=form.scale,
        saturate=form.saturate,
    )
