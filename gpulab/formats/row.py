"""What one row of the table says about a number format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpulab.formats.derived import Derived
from gpulab.formats.paths import Capability, Family, Path

Specials = Literal["ieee", "nan_only", "none", "scale", "integer", "unsigned"]
"""Which codes are not finite numbers.

``ieee``: the top exponent is Inf (mantissa 0) and NaN. ``nan_only``: no Inf, NaN where every
exponent and mantissa bit is 1. ``none``: every code is finite. ``scale``: unsigned powers of two
without zero, NaN where every bit is 1. ``integer``: two's complement. ``unsigned``: an unsigned
integer.
"""


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

    def path(self, family: Family, capability: Capability) -> Path | None:
        """The newest instruction of a family that a card of ``capability`` has, or None."""
        there = [p for p in self.paths if p.family == family and p.covers(capability)]
        return there[-1] if there else None
