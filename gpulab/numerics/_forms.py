"""From an instruction's name and a capability to the rules of its arithmetic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gpulab import arch
from gpulab.errors import UsageError
from gpulab.numerics._parameters import CAPABILITIES, ROWS, Capability, Route, Row, Verified
from gpulab.numerics._results import Result

_GROUPS = {
    "half": ("f16", "bf16"),
    "tf32": ("tf32",),
    "fp8": ("e4m3", "e5m2"),
    "int8": ("s8", "u8"),
    "narrow": ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"),
}
_FP4_KINDS = ("mxf4", "mxf4nvf4")
_SCALES = {  # kind: (products per scale by scale_vec, scale formats)
    "mxf8f6f4": ({"1X": 32}, ("ue8m0",)),
    "mxf4": ({"2X": 32}, ("ue8m0",)),
    "mxf4nvf4": ({"2X": 32, "4X": 16}, ("ue8m0", "ue4m3")),
}
_SCALE_TYPES = ("ue8m0", "ue4m3")
_TYPES = {t for types in _GROUPS.values() for t in types} | {"f32", "s32", *_SCALE_TYPES}
_WORDS = {"sync", "aligned", "mma_async", "mma", "row", "col"}
_EXACT_GROUP = 16  # fp4 products added exactly before they are aligned


@dataclass(frozen=True)
class Form:
    """An instruction name taken apart."""

    family: str
    k: int
    d: str
    a: str
    b: str
    kind: str | None
    scale: str | None
    scale_block: int
    saturate: bool

    @property
    def group(self) -> str | None:
        """Operand group that shares parameters, or None for a pair that no group has."""
        if self.scale is not None:
            return self.kind
        for name, types in _GROUPS.items():
            if self.a in types and self.b in types and (name != "half" or self.a == self.b):
                return name
        return None


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
        scale_type: PTX type of the block scales, or None.
        scale_block: products that share one pair of scales; 0 where there are none.
        exact_group: products summed exactly before alignment (16 for block-scaled fp4).
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


def parse(instruction: str) -> Form:
    """Take an instruction name apart; modifiers may stand in any order, as in PTX or shorter.

    Raises:
        UsageError: not a name of a matrix instruction.
    """
    family, _, rest = instruction.partition(".")
    family = "mma.sync" if family == "mma" else family
    parts = [part for part in rest.split(".") if part not in _WORDS]
    shapes = [part for part in parts if re.fullmatch(r"m\d+n\d+k\d+", part)]
    types = [part for part in parts if part in _TYPES]
    flags = [part for part in parts if part not in types and part not in shapes]
    kind = _take(flags, "kind::")
    vector = _take(flags, "scale_vec::")
    saturate = _take(flags, "satfinite") is not None
    scaled = _take(flags, "block_scale") is not None
    scale = types.pop() if scaled and types and types[-1] in _SCALE_TYPES else None
    if len(types) == 3 and family in ("wgmma", "tcgen05"):
        types.append(types[0])  # C is D
    block = 0
    good = family in ("mma.sync", "wgmma", "tcgen05") and len(shapes) == 1 and not flags
    good = good and len(types) == 4 and types[0] == types[3]
    if scaled:
        blocks, scales = _SCALES.get(kind or "", ({}, ()))
        block = blocks.get(vector or next(iter(blocks), ""), 0)
        good = good and block > 0 and scale in scales
    elif vector is not None or kind not in (None, "f8f6f4"):
        good = False
    if not good:
        raise UsageError(
            f"not a matrix instruction that is modelled: {instruction!r}",
            fix="write it as PTX does, for example mma.sync.m16n8k16.f32.f16.f16.f32 or "
            "wgmma.m64n8k32.f32.e4m3.e4m3",
        )
    k = int(shapes[0].rpartition("k")[2])
    return Form(family, k, types[0], types[1], types[2], kind, scale, block, saturate)


def _take(flags: list[str], prefix: str) -> str | None:
    """Remove the flag that starts so and return the rest of it."""
    for flag in flags:
        if flag.startswith(prefix):
            flags.remove(flag)
            return flag.removeprefix(prefix)
    return None


@lru_cache(maxsize=512)
def model(instruction: str, capability: Capability) -> DotModel:
    """The arithmetic of an instruction on a capability.

    Args:
        instruction: PTX spelling, with or without ``.sync.aligned.row.col``.
        capability: for example ``(9, 0)``.

    Raises:
        UsageError: no such instruction, or it is not modelled there; names what is.
    """
    form = parse(instruction)
    name = arch.dotted(capability)
    if capability not in CAPABILITIES:
        known = ", ".join(map(arch.dotted, CAPABILITIES))
        raise UsageError(
            f"tensor-core arithmetic of capability {name} is not known",
            fix=f"choose one of: {known}",
        )
    for row in ROWS:
        if _matches(row, form, capability):
            return _build(row, form, instruction, capability)
    raise UsageError(
        f"{instruction} is not modelled for capability {name}",
        fix="modelled there: " + "; ".join(available(capability)),
    )


def is_modelled(instruction: str, capability: Capability) -> bool:
    """Whether ``model`` knows the instruction on the capability."""
    try:
        model(instruction, capability)
    except UsageError:
        return False
    return True


def depth(instruction: str) -> int:
    """K of an instruction: 16 for ``mma.sync.m16n8k16.f32.f16.f16.f32``.

    Raises:
        UsageError: not a name of a matrix instruction.
    """
    return parse(instruction).k


def available(capability: Capability) -> tuple[str, ...]:
    """Short descriptions of what is modelled for a capability."""
    found: dict[str, None] = {}
    for row in ROWS:
        if capability in row.capabilities:
            types = "/".join(_GROUPS.get(row.group, (f"kind::{row.group}",)))
            if row.pairs is not None:
                types = ", ".join(dict.fromkeys("*".join(sorted(pair)) for pair in row.pairs))
            for k in row.k:
                found[f"{row.family} k{k} {types} -> {'/'.join(row.results)}"] = None
    return tuple(found)


def _matches(row: Row, form: Form, capability: Capability) -> bool:
    has_kinds = capability[0] >= 12 or form.family == "tcgen05"
    fp4_only = form.kind not in _FP4_KINDS or (form.a, form.b) == ("e2m1", "e2m1")
    return (
        capability in row.capabilities
        and (row.family, row.group) == (form.family, form.group)
        and form.k in row.k
        and form.d in row.results
        and (row.pairs is None or (form.a, form.b) in row.pairs)
        and (form.kind is None or has_kinds)
        and fp4_only
        and not (form.group == "half" and form.d == "f16" and form.a == "bf16")
        and not (form.saturate and form.d != "s32")
    )


def _build(row: Row, form: Form, instruction: str, capability: Capability) -> DotModel:
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
        scale_block=form.scale_block,
        exact_group=_EXACT_GROUP if form.kind in _FP4_KINDS else 1,
        saturate=form.saturate,
    )
