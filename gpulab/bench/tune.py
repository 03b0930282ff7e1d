"""What a tile of the wgmma kernel costs on this card: the table by which tiles are chosen.

A launch is measured at three sizes of work that fill the card to the last multiprocessor, and two
numbers are fitted to them: microseconds of a launch, and of a slab of a tile. Data are normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpulab.bench.compiling import compile_ahead
from gpulab.formats import encode, storage_dtype
from gpulab.kernels.matmul import wgmma
from gpulab.kernels.matmul.wgmma_tiles import CANDIDATES, ROW_BYTES, Tile
from gpulab.registry import Variant
from gpulab.runtime.device import Device, DeviceArray, LaunchReport
from gpulab.runtime.timing import Clock, Subject, time_interleaved

KINDS: dict[str, Variant] = {
    "sums": next(v for v in wgmma.VARIANTS if (v.format, v.output) == ("bf16", "bf16")),
    "promoted": next(v for v in wgmma.VARIANTS if v.promotion),
}
"""The row that stands for all of a kind."""

WORK = ((1, 16), (1, 128), (4, 64))
"""Rounds of tiles, and slabs of K: 16 slabs are K = 1024 in bf16."""


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(start, slab) of ``time = start + work * slab``, by least squares of relative errors.

    Args:
        points: (rounds times slabs, microseconds).
    """
    work, took = (np.array(column, np.float64) for column in zip(*points, strict=True))
    scaled = np.stack([1 / took, work / took], axis=1)
    start, slab = np.linalg.lstsq(scaled, np.ones(len(took)), rcond=None)[0]
    return float(start), float(slab)


def full_grid(tile: Tile, rounds: int, multiprocessors: int) -> tuple[int, int]:
    """(m, n) of a product that gives every multiprocessor ``rounds`` tiles, nearly square."""
    units = multiprocessors // tile.cluster * rounds
    height, width = tile.block_m * tile.pair_m, tile.block_n * tile.pair_n
    rows = min(
        (r for r in range(1, units + 1) if units % r == 0),
        key=lambda r: abs(math.log(r * height / (units // r * width))),
    )
    return rows * height, units // rows * width


def tune(
    device: Device, clock: Clock, multiprocessors: int, *, runs: int = 7
) -> dict[str, list[dict[str, Any]]]:
    """Rows of the table by kind; see ``wgmma_tiles.load_costs``."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, variant in KINDS.items():
        subjects: dict[str, Subject] = {}
        memory = _Memory(device, variant)
        tiles = [t for t in CANDIDATES if kind == "sums" or t.block_n >= t.part]
        params = wgmma.own_params(variant)
        compile_ahead(device, [(wgmma.build_tile(variant, t), params) for t in tiles])
        for tile in tiles:
            for rounds, slabs in WORK:
                m, n = full_grid(tile, rounds, multiprocessors)
                k = slabs * ROW_BYTES // storage_dtype(variant.format).itemsize
                start = memory.bind(tile, {"m": m, "n": n, "k": k})
                subjects[_name(tile, rounds, slabs)] = Subject(_always(start), 1, 0)
        timings = time_interleaved(clock, subjects, runs=runs)
        found[kind] = [_row(tile, timings) for tile in tiles]
    return found


def _name(tile: Tile, rounds: int, slabs: int) -> str:
    return f"{tile.key}: {rounds} x {slabs}"


def _always(start: Callable[[], LaunchReport]) -> Callable[[int], object]:
    return lambda _: start()


def _row(tile: Tile, timings: Mapping[str, Any]) -> dict[str, Any]:
    taken = [
        (rounds * slabs, timings[_name(tile, rounds, slabs)].summary.median * 1e3)
        for rounds, slabs in WORK
    ]
    start, slab = fit(taken)
    return {
        "tile": tile.key,
        "start_us": round(start, 3),
        "slab_us": round(slab, 5),
        "measured_us": [round(us, 3) for _, us in taken],
    }


class _Memory:
    """Operands that every problem of a kind takes its own from: the first so many elements."""

    def __init__(self, device: Device, variant: Variant) -> None:
        self.device, self.variant = device, variant
        rng = np.random.Generator(np.random.PCG64(0))
        drawn = encode(variant.format, rng.standard_normal(1 << 22, np.float32))
        self.inputs = device.upload(np.tile(drawn, 16), "operands")
        self.output = device.empty((1 << 26,), storage_dtype(variant.output), name="c")

    def bind(self, tile: Tile, dims: Mapping[str, int]) -> Callable[[], LaunchReport]:
        """What launches one problem; A and B overlap, which changes no time."""
        variant = self.variant
        params = wgmma.own_params(variant)
        function = self.device.build(wgmma.build_tile(variant, tile), params)
        args: list[DeviceArray | int | float] = []
        for p in params:
            if p.role == "dim":
                args.append(dims[p.name])
                continue
            whole = self.inputs if p.role == "in" else self.output
            shape = tuple(dims[d] for d in p.dims)
            if math.prod(shape) > whole.shape[0]:
                raise ValueError(f"{p.name} {shape} exceeds {whole.shape[0]} elements")
            args.append(DeviceArray(shape, p.dtype, whole.handle, p.name))
        return self.device.bind(function, wgmma.plan_tile(variant, tile, dims), args)
