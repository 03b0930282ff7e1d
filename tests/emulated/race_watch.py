"""A race detector with short words for events."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.observe import Access, Allocation, Lanes, LaunchInfo
from gpulab.emulator.race import RaceDetector

T, B = 64, 3
LANE = np.arange(T, dtype=np.int64)[:, None]
BASE = 1 << 20
FULL = np.uint32([[0xFFFFFFFF]])


class Watch:
    """A detector with short words for events; line numbers count the events."""

    def __init__(self, peek: bytes | None = None) -> None:
        self.line, self.watcher = 0, RaceDetector()
        memory = np.frombuffer((peek or b"").ljust(1024, b"\0"), np.uint8)

        def look(
            space: str, blocks: NDArray[np.int64], address: NDArray[np.int64], nbytes: int
        ) -> NDArray[np.uint8]:
            return memory[(address % BASE)[:, None] + np.arange(nbytes)]

        self.watcher.begin(
            LaunchInfo(
                "k",
                (B, 1, 1),
                (16, 4, 1),
                1024,
                allocations=(Allocation(BASE, 1024, "c"),),
                peek=look if peek is not None else None,
            )
        )
        self.watcher.chunk(np.arange(B))

    def lanes(self, threads: Sequence[int] | None, blocks: Sequence[int] | None = None) -> Lanes:
        mask = np.zeros((T, B if blocks is not None else 1), np.bool_)
        mask[list(range(T)) if threads is None else list(threads)] = True
        if blocks is not None:
            mask &= np.isin(np.arange(B), blocks)
        return Lanes(T, np.arange(B), mask)

    def do(
        self,
        kind: str,
        address: NDArray[np.int64] | int,
        threads: Sequence[int] | None = None,
        *,
        nbytes: int = 4,
        blocks: Sequence[int] | None = None,
        space: str = "shared",
        opcode: str = "op",
        **more: object,
    ) -> None:
        self.line += 1
        where = np.broadcast_to(np.asarray(address, np.int64), (T, 1))
        where = where + (BASE if space == "global" else 0)
        lanes = self.lanes(threads, blocks)
        self.watcher.access(
            Access(space, kind, where, nbytes, lanes, opcode, ("k.cu", self.line), **more)
        )

    def barrier(self) -> None:
        self.watcher.barrier(np.arange(B), None)

    def syncwarp(
        self,
        threads: Sequence[int] | None = None,
        members: NDArray[np.uint32] = FULL,
        opcode: str = "bar.warp.sync",
    ) -> None:
        self.watcher.warp_sync(self.lanes(threads), members, opcode, None)
