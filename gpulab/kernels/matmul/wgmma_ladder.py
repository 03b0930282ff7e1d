"""The way from mma.sync to the wgmma kernel, one idea a kernel: bf16 products with fp32 results.

The first step has a source of its own; the others are instantiations of the same templates, each of
which differs from the one before in one argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpulab.kernels.matmul import simt, wgmma
from gpulab.kernels.matmul.wgmma_tiles import WARPGROUP, Tile
from gpulab.registry import Capability, Dims, KernelSpec, LaunchPlan, RawBuild, Variant, register

STORE = "StoreRegisters<f32>"


@dataclass(frozen=True)
class Rung:
    """One step.

    Args:
        name: of its kernel.
        idea: what it adds to the one before.
        tile: its tile.
        specialised: one warpgroup loads, the others multiply.
        persistent: blocks take tile after tile.
    """

    name: str
    idea: str
    tile: Tile
    specialised: bool = True
    persistent: bool = False


RUNGS = (
    Rung(
        "wgmma-tma",
        "wgmma multiplies what TMA brings: no thread copies; all warps go in step",
        Tile(128, 128, 4, 2, band=16),
        specialised=False,
    ),
    Rung(
        "wgmma-roles",
        "warps specialise: one warpgroup loads, two multiply and never wait for a block barrier",
        Tile(128, 128, 4, 2, band=16),
    ),
    Rung(
        "wgmma-wide",
        "a tile of 128 x 256: half the traffic of A, registers given from loader to multipliers",
        Tile(128, 256, 4, 2, band=16),
    ),
    Rung(
        "wgmma-persistent",
        "blocks stay: the ring fills for the next tile while this one is stored",
        Tile(128, 256, 4, 2, band=16),
        persistent=True,
    ),
    Rung(
        "wgmma-multicast",
        "two blocks share B: each loads half, TMA writes it to both",
        Tile(128, 256, 4, 2, pair_m=2),
        persistent=True,
    ),
)

FIRST, LAST = "mma", "wgmma"
LAST_IDEA = "C leaves through shared memory by TMA while the next tile is multiplied"
LADDER = (FIRST, *(rung.name for rung in RUNGS), LAST)
"""Kernels in order: the one before the first rung, the rungs, and the kernel they lead to."""

VARIANT: Variant = next(v for v in wgmma.VARIANTS if (v.format, v.output) == ("bf16", "fp32"))


def build(rung: Rung, variant: Variant, capability: Capability, dims: Dims) -> RawBuild:
    """The instantiation."""
    file, kernel = ("wgmma", "") if rung.specialised else ("wgmma_plain", "_plain")
    entry = f"matmul_wgmma{kernel}<{rung.tile.cpp('bf16', True)}, {STORE}>"
    return RawBuild(f"matmul/{file}.cu", entry, feature_target=True)


def plan(rung: Rung, variant: Variant, capability: Capability, dims: Dims) -> LaunchPlan:
    """One block a tile; C is a pointer, written from registers."""
    tile = rung.tile
    threads = tile.threads if rung.specialised else tile.threads - WARPGROUP
    return LaunchPlan(
        (tile.units(dims) * tile.cluster, 1, 1),
        (threads, 1, 1),
        tile.ring_bytes,
        maps=wgmma.boxes(variant, tile)[:2],
        persistent=rung.persistent,
        cluster=tile.cluster,
    )


for _order, _rung in enumerate(RUNGS, start=41):
    register(
        KernelSpec(
            op="matmul",
            name=_rung.name,
            backend="raw",
            idea=_rung.idea,
            order=_order,
            variants=(VARIANT,),
            params=simt.params,
            build=partial(build, _rung),
            plan=partial(plan, _rung),
            supports=wgmma.supports,
            only_capability=wgmma.HOPPER,
            study=True,
            source='PTX ISA, "wgmma", "cp.async.bulk.tensor"; CUTLASS, "Efficient GEMM in CUDA"',
        )
    )
