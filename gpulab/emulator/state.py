"""The state of a chunk of blocks while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator import special
from gpulab.emulator.faults import place_of
from gpulab.emulator.globalmem import GlobalMemory
from gpulab.emulator.localmem import LocalMemory
from gpulab.emulator.observe import Access, Lanes, Observer
from gpulab.emulator.ptx.linker import Kernel
from gpulab.emulator.ptx.nodes import Instr
from gpulab.emulator.sharedmem import SharedMemory
from gpulab.emulator.values import DTYPE, Array, Mask

WARP = 32


@dataclass(frozen=True)
class Launch:
    """What all chunks of a launch share.

    Args:
        kernel: the flat kernel.
        grid, block: (x, y, z).
        shared_bytes: static and dynamic shared memory of a block.
        dynamic_bytes: the dynamic part.
        params: the parameter block.
        capability: whose arithmetic is emulated.
        threads: live threads of a block.
        observers: who watches.
        printed: printf output, appended in order.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    dynamic_bytes: int
    params: bytes
    capability: tuple[int, int]
    threads: int
    observers: tuple[Observer, ...] = ()
    printed: list[str] = field(default_factory=list)

    @property
    def padded(self) -> int:
        """Threads rounded up to whole warps."""
        return -(-self.threads // WARP) * WARP


class State:
    """Registers live with the executor; everything else of a chunk is here.

    ``shape`` is (threads rounded up to whole warps, blocks); ``live`` are the lanes that have not
    exited, None while that is all of them.
    """

    def __init__(
        self,
        launch: Launch,
        memory: GlobalMemory,
        blocks: NDArray[np.int64],
        track: bool,
        unset: int,
    ) -> None:
        self.launch = launch
        self.memory = memory
        self.blocks = blocks
        self.unset = unset
        self.shape = (launch.padded, len(blocks))
        self.steps = 0
        self.observers = launch.observers
        self.capability = launch.capability
        self.shared = SharedMemory(launch.shared_bytes, len(blocks), track)
        self._local: LocalMemory | None = None
        thread = np.arange(launch.padded, dtype=np.int64)
        x, y, _ = launch.block
        self.thread_ids = (thread % x, thread // x % y, thread // (x * y))
        gx, gy, _ = launch.grid
        self.block_ids = (blocks % gx, blocks // gx % gy, blocks // (gx * gy))
        cx, cy, cz = launch.kernel.cluster
        self.cluster = cx * cy * cz  # blocks of a cluster, neighbouring columns by rank
        self.live: Mask | None = None
        if launch.padded != launch.threads:
            self.live = (thread < launch.threads)[:, None]
        self.carry: Array = np.zeros((1, 1), bool)
        self._special: dict[str, Array] = {}
        self._params: dict[tuple[int, str], Array] = {}
        self._lanes: tuple[Mask | None, Lanes] | None = None
        self.copies: Any = None  # cp.async bookkeeping, made by the first copy
        self.boxes: Any = None  # tensor copies that have not landed, likewise
        self.stores: Any = None  # and those to global memory that nobody has waited for
        self.products: Any = None  # of warpgroups, that nobody has waited for
        self.waits = False  # whether lanes have just waited for an mbarrier in vain
        self.signals = 0  # changes of mbarriers, and copies that will change one

    @property
    def local(self) -> LocalMemory:
        """Local memory, made when first used."""
        if self._local is None:
            self._local = LocalMemory(self.launch.kernel.frame_bytes, self.shape, self.unset)
        return self._local

    # -- values -------------------------------------------------------------------------------

    def special(self, name: str) -> Array:
        """A special register."""
        if name in special._CLOCKS:
            return special.read(self, name)
        if name not in self._special:
            self._special[name] = special.read(self, name)
        return self._special[name]

    def param(self, offset: int, kind: str) -> Array:
        """An entry parameter (1, 1), by byte offset."""
        key = (offset, kind)
        if key not in self._params:
            dtype = DTYPE[kind]
            raw = self.launch.params[offset : offset + dtype.itemsize]
            self._params[key] = np.frombuffer(raw, dtype).reshape(1, 1)
        return self._params[key]

    # -- who and where ------------------------------------------------------------------------

    def first(self, lanes: Mask) -> tuple[int, int]:
        """(thread, column) of the first lane of a mask, blocks before threads."""
        full = np.broadcast_to(lanes, self.shape)
        if self.live is not None:
            full = full & self.live
        column, thread = divmod(int(full.T.argmax()), self.shape[0])
        return thread, column

    def count(self, lanes: Mask | None) -> int:
        """Number of lanes in a mask."""
        if lanes is None:
            return self.shape[0] * self.shape[1]
        return int(np.count_nonzero(np.broadcast_to(lanes, self.shape)))

    def thread_xyz(self, thread: int) -> tuple[int, int, int]:
        """Thread index of a row."""
        x, y, z = (int(ids[thread]) for ids in self.thread_ids)
        return x, y, z

    def block_xyz(self, column: int) -> tuple[int, int, int]:
        """Block index of a column."""
        x, y, z = (int(ids[column]) for ids in self.block_ids)
        return x, y, z

    def shared_name(self, offset: int) -> str | None:
        """The shared variable an offset lies in (the last one that starts at or before it)."""
        found = [(at, n) for n, at in self.launch.kernel.shared.items() if at <= offset]
        return max(found)[1].rpartition(":")[2] if found else None

    # -- observers ----------------------------------------------------------------------------

    def lanes(self, mask: Mask | None) -> Lanes:
        """``mask`` for observers, who know only the threads that exist."""
        if self._lanes is not None and self._lanes[0] is mask:
            return self._lanes[1]
        threads = self.launch.threads
        seen = mask
        if mask is not None and mask.shape[0] > threads:
            seen = mask[:threads]
        found = Lanes(threads, self.blocks, seen)
        self._lanes = (mask, found)
        return found

    def trimmed(self, value: Array) -> Array:
        """A value without the rows of padding threads."""
        return value[: self.launch.threads] if value.shape[0] > self.launch.threads else value

    def note(self, instr: Instr, mask: Mask | None) -> None:
        """Tell observers that lanes execute an instruction."""
        lanes, place = self.lanes(mask), place_of(instr.location)
        for observer in self.observers:
            observer.instruction(instr.opcode, lanes, place)

    def report(
        self,
        space: Any,
        kind: Any,
        address: Array,
        nbytes: int,
        mask: Mask | None,
        instr: Instr,
        *,
        phase: Any = "now",
        order: Any = "weak",
        scope: Any = "gpu",
        values: tuple[Array, ...] | None = None,
    ) -> None:
        """Tell observers of a memory access that passed its checks."""
        words = instr.modifiers
        if order == "weak":
            order = next(
                (w for w in words if w in ("relaxed", "acquire", "release", "acq_rel")), "weak"
            )
            scope = next((w for w in words if w in ("cta", "gpu", "sys")), scope)
        access = Access(
            space,
            kind,
            self.trimmed(address),
            nbytes,
            self.lanes(mask),
            instr.opcode,
            place_of(instr.location),
            phase,
            order,
            scope,
            None if values is None else tuple(self.trimmed(v) for v in values),
        )
        for observer in self.observers:
            observer.access(access)
