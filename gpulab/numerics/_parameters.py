"""How each tensor-core instruction rounds, capability by capability: data, one row each.

N is the number of products in one truncating sum, F the fraction bits that every aligned term
keeps. The first row that matches an instruction holds.

Sources: M. Khattak and M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv 2512.07004)
and its hardware vectors ("public vectors" below); P. Xie et al., "MMA-Sim" (arXiv 2511.10909);
M. Fasi et al., "Numerical behavior of NVIDIA tensor cores" (PeerJ CS 7:e330); PTX ISA, "mma",
"wgmma.mma_async"; recordings of an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpulab.arch import Capability as Capability

Route = Literal["native", "through_fp16"]
Verified = Literal["recorded", "public", "assumed"]
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Row:
    """Parameters of a set of instructions.

    Args:
        capabilities: where it holds.
        family: ``mma.sync``, ``wgmma`` or ``tcgen05``.
        group: operand group: ``half``, ``tf32``, ``fp8``, ``narrow`` (a 6- or 4-bit operand),
            ``int8``, or the kind of a block-scaled instruction.
        k: the K of the instructions.
        results: types of C and D.
        block: N; at most K.
        fraction_bits: F.
        verified: what the row rests on, in one word.
        note: and in a few.
        route: ``through_fp16`` where fp8 operands are widened to fp16.
        short: a float32 result keeps 13 fraction bits.
        pairs: the operand types, where not every pair of the group.
    """

    capabilities: tuple[Capability, ...]
    family: str
    group: str
    k: tuple[int, ...]
    results: tuple[str, ...]
    block: int
    fraction_bits: int
    verified: Verified
    note: str
    route: Route = "native"
    short: bool = False
    pairs: Pairs | None = None


def _on(*capabilities: Capability) -> tuple[Capability, ...]:
    return capabilities


_V100, _T4, _A100, _A2, _ADA, _H, _B200, _RTX = (
    (7, 0),
    (7, 5),
    (8, 0),
    (8, 6),
    (8, 9),
    (9, 0),
    (10, 0),
    (12, 0),
)
_AMPERE = (_A100, _A2, _ADA)
_MMA, _WG, _TC = "mma.sync", "wgmma", "tcgen05"
_F32, _F16, _BOTH, _S32 = ("f32",), ("f16",), ("f32", "f16"), ("s32",)
_FP16: Pairs = (("f16", "f16"),)
_SAME: Pairs = (("e4m3", "e4m3"), ("e5m2", "e5m2"))
_TAPED: Pairs = (*_SAME, ("e4m3", "e5m2"))
_REC = "recorded on an H200"
_SIM = "MMA-Sim; no hardware data"
_CHAIN = "public vectors of one block; the chaining of two blocks is MMA-Sim's"
_EXACT = "exact integers, by definition"


def _vectors(cards: str) -> tuple[Verified, str]:
    return "public", f"public vectors: {cards}"


def _assumed(why: str = _SIM) -> tuple[Verified, str]:
    return "assumed", why


ROWS: tuple[Row, ...] = (
    # Volta and Turing
    Row(_on(_V100), _MMA, "half", (4,), _BOTH, 4, 23, *_vectors("V100"), pairs=_FP16),
    Row(_on(_T4), _MMA, "half", (4,), _BOTH, 4, 24, *_assumed(), pairs=_FP16),
    Row(
        *(_on(_T4), _MMA, "half", (8,), _BOTH, 8, 24),
        *_assumed(f"{_SIM}; F also Fasi et al."),
        pairs=_FP16,
    ),
    # Ampere and Ada: k16 and tf32 k8 are two chained blocks
    Row(_on(_A100), _MMA, "half", (8,), _BOTH, 8, 24, *_vectors("A100")),
    Row(_on(_A2), _MMA, "half", (8,), _BOTH, 8, 24, *_vectors("A2")),
    Row(_on(_ADA), _MMA, "half", (8,), _BOTH, 8, 24, *_vectors("RTX 1000 Ada, L40S")),
    Row(_AMPERE, _MMA, "half", (16,), _BOTH, 8, 24, *_assumed(_CHAIN)),
    Row(_on(_A100), _MMA, "tf32", (4,), _F32, 4, 24, *_vectors("A100")),
    Row(_on(_A2), _MMA, "tf32", (4,), _F32, 4, 24, *_vectors("A2")),
    Row(_on(_ADA), _MMA, "tf32", (4,), _F32, 4, 24, *_vectors("RTX 1000 Ada, L40S")),
    Row(_AMPERE, _MMA, "tf32", (8,), _F32, 4, 24, *_assumed(_CHAIN)),
    Row(
        *(_on(_ADA), _MMA, "fp8", (32,), _BOTH, 16, 13, *_vectors("RTX 1000 Ada, L40S")),
        short=True,
        pairs=_SAME,
    ),
    Row(_on(_ADA), _MMA, "fp8", (16, 32), _BOTH, 16, 13, *_assumed(), short=True),
    # Hopper
    Row(_on(_H), _MMA, "half", (8, 16), _F32, 16, 25, "recorded", _REC),
    Row(
        *(_on(_H), _MMA, "half", (16,), _F16, 16, 25, "recorded", _REC),
        pairs=_FP16,
    ),
    Row(_on(_H), _MMA, "half", (8,), _F16, 16, 25, *_assumed("as k16")),
    Row(_on(_H), _MMA, "tf32", (4, 8), _F32, 8, 25, "recorded", _REC),
    Row(
        *(_on(_H), _MMA, "fp8", (32,), _F32, 16, 25, "recorded", _REC),
        route="through_fp16",
        pairs=_TAPED,
    ),
    Row(
        *(_on(_H), _MMA, "fp8", (32,), _F16, 16, 25, *_vectors("H100, H200")),
        route="through_fp16",
        pairs=_SAME,
    ),
    Row(_on(_H), _WG, "half", (16,), _F32, 16, 25, "recorded", _REC),
    Row(_on(_H), _WG, "half", (16,), _F16, 16, 25, *_assumed("as mma.sync")),
    Row(_on(_H), _WG, "tf32", (8,), _F32, 8, 25, "recorded", _REC),
    Row(
        *(_on(_H), _WG, "fp8", (32,), _F32, 32, 13, "recorded", _REC),
        short=True,
        pairs=_SAME,
    ),
    Row(_on(_H), _WG, "fp8", (32,), _BOTH, 32, 13, *_assumed(), short=True),
    # Blackwell, data centre
    Row(_on(_B200), _MMA, "half", (16,), _BOTH, 16, 25, *_vectors("B200")),
    Row(_on(_B200), _MMA, "half", (8,), _BOTH, 16, 25, *_assumed("as k16")),
    Row(_on(_B200), _MMA, "tf32", (4,), _F32, 8, 25, *_vectors("B200")),
    Row(_on(_B200), _MMA, "tf32", (8,), _F32, 8, 25, *_assumed("as capability 9.0")),
    Row(
        *(_on(_B200), _MMA, "fp8", (32,), _BOTH, 16, 25, *_vectors("B200")),
        route="through_fp16",
        pairs=_SAME,
    ),
    Row(
        *(_on(_H, _B200), _MMA, "fp8", (32,), _BOTH, 16, 25),
        *_assumed("mixed operands as equal ones"),
        route="through_fp16",
    ),
    Row(_on(_B200), _TC, "half", (16,), _BOTH, 16, 25, *_assumed()),
    Row(_on(_B200), _TC, "tf32", (8,), _F32, 8, 25, *_assumed()),
    Row(_on(_B200), _TC, "fp8", (32,), _BOTH, 32, 25, *_assumed()),
    Row(_on(_B200), _TC, "narrow", (32,), _BOTH, 32, 25, *_assumed()),
    # Blackwell, RTX
    Row(_on(_RTX), _MMA, "half", (8, 16), _BOTH, 16, 25, *_assumed()),
    Row(_on(_RTX), _MMA, "tf32", (4, 8), _F32, 8, 25, *_assumed()),
    Row(_on(_RTX), _MMA, "fp8", (16, 32), _BOTH, 32, 25, *_assumed()),
    Row(_on(_RTX), _MMA, "narrow", (32,), _BOTH, 32, 25, *_assumed()),
    Row(_on(_RTX), _MMA, "mxf8f6f4", (32,), _F32, 32, 25, *_assumed()),
    Row(_on(_RTX), _MMA, "mxf4", (64,), _F32, 64, 35, *_assumed()),
    Row(_on(_RTX), _MMA, "mxf4nvf4", (64,), _F32, 64, 35, *_assumed()),
    # integers
    Row(_on(_T4), _MMA, "int8", (16,), _S32, 16, 0, "public", _EXACT),
    Row((*_AMPERE, _H, _B200, _RTX), _MMA, "int8", (16, 32), _S32, 32, 0, "public", _EXACT),
    Row(_on(_H), _WG, "int8", (32,), _S32, 32, 0, "public", _EXACT),
)

CAPABILITIES: tuple[Capability, ...] = tuple(
    sorted({capability for row in ROWS for capability in row.capabilities})
)
"""The capabilities whose arithmetic is known or assumed."""
