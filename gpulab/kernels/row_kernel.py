"""Declares the raw row kernels: what differs between them is a source, an entry and a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpulab.formats import get
from gpulab.kernels import row_shape, row_tables
from gpulab.kernels.row_packs import Packs, packs_of
from gpulab.kernels.row_shape import Shape
from gpulab.kernels.row_tables import Table
from gpulab.registry import (
    Capability,
    Dims,
    KernelSpec,
    LaunchPlan,
    Param,
    RawBuild,
    Variant,
    register,
)

ROWS_COLS = (Param("rows", "dim", "int32"), Param("cols", "dim", "int32"))
SAME = tuple((f, f) for f in ("fp32", "fp16", "bf16"))
"""(input, output) formats of kernels whose output is stored as the input is."""
NORMS = (*SAME, ("e4m3", "bf16"), ("e5m2", "bf16"))
"""Norms also read fp8; weights and results are then bf16."""


def variants(
    formats: tuple[tuple[str, str], ...], contract: str = "", note: str = ""
) -> tuple[Variant, ...]:
    """The rows of a kernel: float32 inside."""
    return tuple(Variant(i, "fp32", o, contract=contract, note=note) for i, o in formats)


@dataclass(frozen=True)
class RowKernel:
    """A raw row kernel.

    Args:
        source: file below ``raw_kernels/``, ``{way}`` for the way that a shape takes rows in.
        entry: kernel name and leading template arguments, ``{way}`` likewise, ``{T}`` and ``{W}``
            for the types of x and y, ``{vec}`` for the elements of a pack, ``{hold}`` for how rows
            are kept.
        table: how rows are shared.
        arrays: rows that are kept for each row.
        weights: y and the parameters are read in packs beside x.
    """

    source: str
    entry: str
    table: Table
    arrays: int = 1
    weights: bool = True

    def layout(self, variant: Variant, capability: Capability, dims: Dims) -> tuple[Packs, Shape]:
        """The packs of a row and its shape."""
        beside = (variant.output,) if self.weights else ()
        row = packs_of(dims["cols"], variant.format, beside, self.arrays)
        return row, row_tables.shape(self.table, row, capability)

    def build(self, variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
        """The instantiation."""
        row, chosen = self.layout(variant, capability, dims)
        filled = self.entry.format(
            way=chosen.way,
            T=get(variant.format).cpp,
            W=get(variant.output).cpp,
            vec=row.elements,
            hold=chosen.cpp(),
        )
        clusters = (f"GPULAB_CLUSTER={chosen.cluster}",) if chosen.cluster > 1 else ()
        return RawBuild(self.source.format(way=chosen.way), filled, clusters)

    def plan(self, variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
        """Blocks of whole rows."""
        row, chosen = self.layout(variant, capability, dims)
        return row_shape.plan(chosen, dims, row)


def declare(
    op: str,
    name: str,
    kernel: RowKernel,
    *,
    idea: str,
    order: int,
    rows: tuple[Variant, ...],
    params: Callable[[Variant], tuple[Param, ...]],
    source: str,
) -> KernelSpec:
    """Register a raw row kernel."""
    return register(
        KernelSpec(
            op=op,
            name=name,
            backend="raw",
            idea=idea,
            order=order,
            variants=rows,
            params=params,
            build=kernel.build,
            plan=kernel.plan,
            supports=lambda variant, capability, dims: row_shape.too_wide(dims),
            source=source,
        )
    )
