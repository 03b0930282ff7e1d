"""Which tensor-core instructions multiply a format, and on which compute capabilities.

Sources: PTX ISA 8.7 and 9.0, sections "mma", "wgmma.mma_async" and "tcgen05.mma" (target notes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Capability = tuple[int, int]
Family = Literal["mma.sync", "wgmma", "tcgen05"]


@dataclass(frozen=True)
class Path:
    """One tensor-core instruction that multiplies a format.

    Args:
        first: lowest compute capability that has it.
        last: highest one, or None where later cards keep it.
        family: ``mma.sync``, ``wgmma`` or ``tcgen05``.
        instruction: its name, in the spelling of ``gpulab.numerics.tensorcore`` where that
            models it.
    """

    first: Capability
    last: Capability | None
    family: Family
    instruction: str

    @property
    def target(self) -> str:
        """Lowest compile target, such as ``sm_89``, ``sm_120a``."""
        specific = self.family != "mma.sync" or "kind::" in self.instruction
        return "sm_{}{}".format(*self.first) + ("a" if specific else "")

    @property
    def shape(self) -> str:
        """Its tile, such as ``m16n8k16``; empty where the name gives none (tcgen05)."""
        found = re.search(r"m\d+n\d+k\d+", self.instruction)
        return found.group() if found else ""

    @property
    def k(self) -> int:
        """Products per output of one instruction; 0 where the name gives none."""
        return int(self.shape.rpartition("k")[2] or 0)

    def covers(self, capability: Capability) -> bool:
        """Whether a card of ``capability`` has the instruction."""
        return self.first <= capability and (self.last is None or capability <= self.last)


_HOPPER: Capability = (9, 0)
_TCGEN05: tuple[Capability, Capability] = ((10, 0), (11, 0))
_SCALED_SHAPE = {
    "mxf8f6f4": "scale_vec::1X.m16n8k32",
    "mxf4": "scale_vec::2X.m16n8k64",
    "mxf4nvf4": "scale_vec::4X.m16n8k64",
}


def mma(first: Capability, name: str) -> Path:
    """A warp-wide ``mma.sync``; every later card keeps it."""
    return Path(first, None, "mma.sync", f"mma.sync.{name}")


def wgmma(name: str) -> Path:
    """The warpgroup instruction, which only Hopper (sm_90a) has."""
    return Path(_HOPPER, _HOPPER, "wgmma", f"wgmma.{name}")


def tcgen05(kind: str) -> Path:
    """The instruction of data-centre Blackwell and its kin (sm_100a to sm_110a)."""
    return Path(*_TCGEN05, "tcgen05", f"tcgen05.mma.kind::{kind}")


def fp8(ptx: str) -> tuple[Path, ...]:
    """Both fp8 types, from Ada on (how sm_90 and sm_100 carry it out: ``numerics.tensorcore``)."""
    names = f"m16n8k32.f32.{ptx}.{ptx}.f32", f"m64n8k32.f32.{ptx}.{ptx}"
    return mma((8, 9), names[0]), wgmma(names[1]), tcgen05("f8f6f4")


def narrow(ptx: str) -> tuple[Path, ...]:
    """fp6 and fp4 without block scales, one value a byte."""
    return mma((12, 0), f"kind::f8f6f4.m16n8k32.f32.{ptx}.{ptx}.f32"), tcgen05("f8f6f4")


def scaled(kind: str, ptx: str, scale: str) -> tuple[Path, ...]:
    """Block-scaled products; PTX writes the e4m3 scale ``ue4m3``, since its sign is ignored."""
    unsigned = scale if scale.startswith("u") else f"u{scale}"
    name = f"kind::{kind}.block_scale.{_SCALED_SHAPE[kind]}.f32.{ptx}.{ptx}.f32.{unsigned}"
    return mma((12, 0), name), tcgen05(f"{kind}.block_scale")
