"""Tiles of the wgmma kernel and the choice among them, as data.

A launch takes about ``start + rounds * slabs * slab`` microseconds: blocks are persistent, so the
tiles come in rounds of one a multiprocessor, and each walks its 128-byte slabs of K. Two measured
numbers a tile are therefore enough to choose by shape and by the number of multiprocessors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeVar

from gpulab.registry import Dims

ROW_BYTES = 128
"""Bytes of k in a stage: the width of the swizzle."""
BOX_ROWS = 64
BARRIER_BYTES = 8
WARPGROUP = 128
H200_MULTIPROCESSORS = 132
"""Of H100 SXM, H200 and GH200; what a choice assumes where no card is there to be asked."""


@dataclass(frozen=True)
class Tile:
    """A block's share of the work; the template arguments of ``WgmmaTile`` and ``StoreTma``.

    Args:
        block_m: rows of C a block.
        block_n: columns of C a block.
        stages: slabs in shared memory at a time.
        consumers: warpgroups that multiply.
        pair_m: 2: the blocks of a cluster lie below each other and share B.
        pair_n: 2: they lie beside each other and share A.
        band: rows of tiles (of pairs) that are walked together, for L2.
        buffers: boxes of C in shared memory a consumer.
        part: columns multiplied at a time where sums are promoted.
    """

    block_m: int
    block_n: int
    stages: int
    consumers: int
    pair_m: int = 1
    pair_n: int = 1
    band: int = 8
    buffers: int = 2
    part: int = 128

    @property
    def key(self) -> str:
        """Its name in the table of costs."""
        pair = f"{self.pair_m}x{self.pair_n}"
        return f"{self.block_m}x{self.block_n} stages {self.stages} pair {pair} band {self.band}"

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.pair_m * self.pair_n

    @property
    def threads(self) -> int:
        """Threads a block: the consumers and one warpgroup that loads."""
        return WARPGROUP * (self.consumers + 1)

    @property
    def ring_bytes(self) -> int:
        """Shared memory of the stages and their barriers."""
        return self.stages * ((self.block_m + self.block_n) * ROW_BYTES + 2 * BARRIER_BYTES)

    @property
    def staging_bytes(self) -> int:
        """Shared memory through which C leaves."""
        return self.consumers * self.buffers * BOX_ROWS * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block."""
        return self.ring_bytes + self.staging_bytes

    def units(self, dims: Dims) -> int:
        """Tiles (pairs of tiles) that cover C."""
        rows = -(-dims["m"] // (self.block_m * self.pair_m))
        return rows * -(-dims["n"] // (self.block_n * self.pair_n))

    def rounds(self, dims: Dims, multiprocessors: int) -> int:
        """Tiles that the busiest block computes."""
        return -(-self.units(dims) // max(1, multiprocessors // self.cluster))

    def cpp(self, operand: str, n_major: bool) -> str:
        """The C++ type."""
        sizes = (self.block_m, self.block_n, self.stages, self.consumers)
        shape = ", ".join(map(str, (*sizes, self.pair_m, self.pair_n, self.band)))
        return f"WgmmaTile<ptx::{operand}, {'true' if n_major else 'false'}, {shape}>"


@dataclass(frozen=True)
class Cost:
    """What a tile takes on an H200, in microseconds.

    Args:
        start: of a launch: until the first slab is there, and the last store.
        slab: of one slab of one tile, when all multiprocessors work.
    """

    start: float
    slab: float

    def microseconds(self, tile: Tile, dims: Dims, slabs: int, multiprocessors: int) -> float:
        """Of a launch."""
        return self.start + tile.rounds(dims, multiprocessors) * slabs * self.slab


CANDIDATES: tuple[Tile, ...] = (
    Tile(128, 256, 4, 2, pair_m=2),
    Tile(128, 256, 4, 2, band=16),
    Tile(256, 128, 4, 2, pair_n=2),
    Tile(128, 128, 6, 2, pair_m=2),
    Tile(128, 128, 6, 2, band=16),
    Tile(64, 256, 5, 1, pair_m=2, band=16),
    Tile(64, 128, 8, 1, band=16),
    Tile(64, 64, 8, 1, band=16),
)
"""What ``gpulab bench tune`` measures."""

RESOLUTION = 0.005
"""Share by which times taken together must differ to be told apart."""

COSTS_FILE = "wgmma_costs.json"
"""What it found, beside this module."""


def load_costs(kind: str) -> tuple[tuple[Tile, Cost], ...]:
    """The measured candidates of a kind (``sums``, ``promoted``), in the order of the table."""
    table = json.loads(files(__package__).joinpath(COSTS_FILE).read_text())
    measured = {row["tile"]: Cost(row["start_us"], row["slab_us"]) for row in table[kind]}
    return tuple((tile, measured[tile.key]) for tile in CANDIDATES if tile.key in measured)


TILES = load_costs("sums")
"""The tensor core's own sums; a slab has the same bytes and takes the same time in every format."""

PROMOTED = load_costs("promoted")
"""fp8 with float32 promotion."""


T = TypeVar("T")


def first_of_least(costs: Mapping[T, float]) -> T:
    """The first whose cost is the least, or cannot be told apart from it."""
    least = min(costs.values())
    return next(name for name, cost in costs.items() if cost <= least * (1 + RESOLUTION))


def choose(
    tiles: tuple[tuple[Tile, Cost], ...], dims: Dims, itemsize: int, multiprocessors: int
) -> Tile:
    """The tile whose launch takes the least time; of those that cannot be told apart the first: the
    candidates that share what they load stand first.

    Args:
        tiles: candidates.
        dims: m, n, k.
        itemsize: bytes of an element of A and B.
        multiprocessors: of the card.
    """
    slabs = -(-dims["k"] * itemsize // ROW_BYTES)
    return first_of_least(
        {
            tile: measured.microseconds(tile, dims, slabs, multiprocessors)
            for tile, measured in tiles
        }
    )
