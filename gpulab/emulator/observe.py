"""What the executor tells whoever watches a launch: the events, and the arrays they carry.

The executor runs one instruction for all threads of a *chunk* of blocks at once, so events carry
arrays on a (threads T, blocks B) grid, not lane lists: an address that is the same in every block
has shape (T, 1), one that is the same in every thread (1, B), and an observer may work on the
small array. ``Lanes`` says which lanes of the grid take part; build one whenever the activity
mask changes and reuse it, its counts are cached.

Order of calls in a launch::

    begin(info)
    chunk(blocks)                      # for each chunk of blocks; shared memory starts afresh
        instruction(...)               # once per executed instruction, before its other events
        access(...), branch(...), warp_sync(...), barrier(...), fence(...)
    end() -> facts for the launch report

``access`` is called after the bounds, alignment and initialisation checks and before the memory
changes, so that an observer can still ``peek`` at the old bytes. Observers raise ``FaultError``
to stop the launch. An executor with no observers attached makes none of these calls.

Asynchronous copies (``cp.async``) make three accesses by the issuing lanes, all with the location
of the copy instruction: at issue a global ``load`` and a shared ``store`` with
``phase="issue"`` (the destination may change from now on), and, when a wait retires the copy, a
shared ``store`` with ``phase="land"`` (the bytes are there, by program order of the waiting lane).
A lane's zero-filled bytes (src-size below cp-size) are not read: the global load covers only lanes
that read something. ``ldmatrix``/``stmatrix`` make one access of 16 bytes for each lane that
supplies a row address (8 lanes a matrix) and none for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpulab.arch import DEFAULT_EMULATED, Capability

WARP = 32

Space = Literal["global", "shared", "local"]
Kind = Literal["load", "store", "atomic"]
Phase = Literal["now", "issue", "land"]
Order = Literal["weak", "relaxed", "acquire", "release", "acq_rel"]
Scope = Literal["cta", "gpu", "sys"]
Location = tuple[str, int] | None
"""Source file and line of the .cu or .py, or None where the PTX has no .loc."""


@dataclass(frozen=True)
class Allocation:
    """One buffer of global memory: first byte address, size in bytes, the name it was given."""

    address: int
    nbytes: int
    name: str


@dataclass(frozen=True)
class LaunchInfo:
    """The launch as a whole.

    Args:
        kernel: entry name.
        grid: blocks (x, y, z).
        block: threads (x, y, z).
        shared_bytes: bytes of the shared window of one block, static and dynamic together.
        allocations: the live buffers of global memory.
        capability: the emulated capability.
        peek: ``peek(space, blocks[n], addresses[n], nbytes) -> uint8[n, nbytes]``: memory as it is
            now (``blocks`` are linear grid ids of the current chunk; ignored for global memory).
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    allocations: tuple[Allocation, ...] = ()
    capability: Capability = DEFAULT_EMULATED
    peek: Callable[[Space, NDArray[Any], NDArray[Any], int], NDArray[np.uint8]] | None = None

    @property
    def threads(self) -> int:
        """Threads in a block (T)."""
        return self.block[0] * self.block[1] * self.block[2]

    def thread_index(self, linear: int) -> tuple[int, int, int]:
        """(x, y, z) of a linear thread id; x runs fastest."""
        x, y, _ = self.block
        return linear % x, linear // x % y, linear // (x * y)

    def block_index(self, linear: int) -> tuple[int, int, int]:
        """(x, y, z) of a linear block id; x runs fastest."""
        x, y, _ = self.grid
        return linear % x, linear // x % y, linear // (x * y)


@dataclass(frozen=True, eq=False)
class Lanes:
    """The lanes of a chunk that take part in an event.

    Args:
        threads: threads in a block, T (any number up to 1024).
        blocks: int64[B], linear grid ids of the chunk's blocks, in column order.
        mask: bool, broadcastable to (T, B); None means every lane.
    """

    threads: int
    blocks: NDArray[np.int64]
    mask: NDArray[np.bool_] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(T, B)."""
        return self.threads, len(self.blocks)

    @cached_property
    def full(self) -> NDArray[np.bool_]:
        """The mask as bool[T, B] (a read-only view where it is uniform)."""
        if self.mask is None:
            return np.broadcast_to(np.True_, self.shape)
        return np.broadcast_to(self.mask, self.shape)

    @cached_property
    def everyone(self) -> bool:
        """Whether every lane of the chunk takes part."""
        return self.mask is None or bool(np.all(self.mask))

    @cached_property
    def per_warp(self) -> NDArray[np.int64]:
        """int64[W, B or 1]: lanes of each warp that take part (one column if blocks agree)."""
        narrow = np.ones((1, 1), np.bool_) if self.mask is None else np.atleast_2d(self.mask)
        narrow = np.broadcast_to(narrow, (self.threads, narrow.shape[1]))
        starts = np.arange(0, self.threads, WARP)
        return np.add.reduceat(narrow, starts, axis=0, dtype=np.int64)

    def _spread(self, counted: NDArray[Any]) -> int:
        columns: int = counted.shape[1]
        return int(counted.sum()) * (len(self.blocks) // columns)

    @cached_property
    def count(self) -> int:
        """Number of lanes."""
        if self.mask is None:
            return self.threads * len(self.blocks)
        return self._spread(self.per_warp)

    @cached_property
    def warps(self) -> int:
        """Number of warps with at least one lane."""
        if self.mask is None:
            return -(-self.threads // WARP) * len(self.blocks)
        return self._spread(self.per_warp > 0)

    @cached_property
    def partial_warps(self) -> int:
        """Number of warps with some but not all of the lanes they were born with."""
        if self.mask is None:
            return 0
        born = np.minimum(WARP, self.threads - np.arange(0, self.threads, WARP))[:, None]
        return self._spread((self.per_warp > 0) & (self.per_warp < born))

    @cached_property
    def index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(thread[n], column[n]) of the active lanes, thread-major."""
        thread, column = np.nonzero(self.full)
        return thread, column

    def narrowed(self, mask: NDArray[np.bool_]) -> Lanes:
        """These lanes where ``mask`` (broadcastable to (T, B)) holds as well."""
        return Lanes(self.threads, self.blocks, mask if self.mask is None else self.mask & mask)


@dataclass(frozen=True, eq=False)
class Access:
    """One executed memory instruction, for all its lanes.

    Args:
        space: which memory.
        kind: ``load``, ``store``, or ``atomic`` (read-modify-write, with or without a result).
        address: int64, broadcastable to (T, B): first byte each lane touches. Global: device
            address; shared: offset in the block's window; local: offset in the lane's own memory.
            Entries of lanes that do not take part are meaningless.
        nbytes: bytes a lane touches, vector elements included (1 to 16).
        lanes: who takes part.
        opcode: full PTX opcode with modifiers (``ld.global.nc.v4.f32``).
        location: source file and line.
        phase: ``now``, or ``issue``/``land`` for the shared side of ``cp.async``.
        order: memory order; ``volatile`` counts as weak.
        scope: scope of an ordered access or atomic.
        values: what a store writes: raw bits of each vector element in address order, each
            broadcastable to (T, B); None where unknown.
    """

    space: Space
    kind: Kind
    address: NDArray[np.int64]
    nbytes: int
    lanes: Lanes
    opcode: str
    location: Location = None
    phase: Phase = "now"
    order: Order = "weak"
    scope: Scope = "gpu"
    values: tuple[NDArray[Any], ...] | None = field(default=None, repr=False)

    @property
    def asynchronous(self) -> bool:
        """Whether this is a side of an asynchronous copy."""
        return self.phase != "now" or self.opcode.startswith("cp.async")

    def flat(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(address[n], thread[n], block[n]): the active lanes, linear ids, thread-major."""
        thread, column = self.lanes.index
        address = np.broadcast_to(self.address, self.lanes.shape)[thread, column]
        return address, thread, self.lanes.blocks[column]


@dataclass(frozen=True, eq=False)
class Boxes:
    """One tensor copy instruction, for all its lanes.

    Args:
        kind: ``load`` from global memory, or ``store`` to it.
        count: boxes.
        address: int64[n], device address of the first byte of each row of a box that lies in the
            matrix, as far as it does.
        nbytes: int64[n], its bytes.
        location: source file and line.
    """

    kind: Kind
    count: int
    address: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    location: Location = None


class Observer:
    """Base of those who watch; every method does nothing until overridden."""

    def begin(self, info: LaunchInfo) -> None:
        """A launch starts."""

    def chunk(self, blocks: NDArray[np.int64]) -> None:
        """Blocks with these linear ids (int64[B]) start together; earlier ones are over."""

    def instruction(self, opcode: str, lanes: Lanes, location: Location) -> None:
        """``lanes`` (whose guard predicate holds) execute one instruction."""

    def access(self, access: Access) -> None:
        """Memory is about to be read or written; see the module text.

        Raises:
            FaultError: the observer found something illegal.
        """

    def branch(self, lanes: Lanes, taken: NDArray[np.bool_], location: Location) -> None:
        """A conditional branch: ``taken`` (broadcastable to (T, B)) says which lanes jump."""

    def warp_sync(
        self, lanes: Lanes, members: NDArray[np.uint32], opcode: str, location: Location
    ) -> None:
        """Lanes meet inside their warps: ``bar.warp.sync``, ``shfl.sync``, ``vote.sync``, ...

        Called when the lanes go on. Lane i has met lane j if both are in ``lanes``, in one warp,
        and j is in i's ``members`` (bit mask of the warp's lanes, broadcastable to (T, B)).
        """

    def barrier(
        self, blocks: NDArray[np.int64], location: Location, participants: Lanes | None = None
    ) -> None:
        """A block barrier has completed in these blocks (linear ids).

        Args:
            blocks: int64[n], blocks of the chunk whose threads now go on.
            location: the barrier's line (one of them, where threads came by several).
            participants: who met, for a named barrier with a thread count; None = the whole block.
        """

    def arrive(self, barrier: int, lanes: Lanes) -> None:
        """These lanes came to a named barrier and go on (``bar.arrive``)."""

    def arrived(self, barrier: int, blocks: NDArray[np.int64], participants: Lanes) -> None:
        """In these blocks those ``participants`` who waited at a named barrier were joined by all
        who had arrived at it; ``barrier`` tells of them next."""

    def boxes(self, boxes: Boxes) -> None:
        """Tensor copies were issued. Of their side in shared memory, and of what wgmma reads
        there, nothing is told."""

    def fence(self, lanes: Lanes, scope: Scope, location: Location) -> None:
        """``membar``/``fence`` by these lanes."""

    def end(self) -> dict[str, Any]:
        """The launch is over; returns facts for its report (flat, JSON-able)."""
        return {}


def lanes_of(
    threads: int, thread: Sequence[int] | NDArray[Any], block: Sequence[int] | NDArray[Any]
) -> Lanes:
    """Lanes from lists of (linear thread, linear block); the chunk is the blocks named, sorted."""
    columns, position = np.unique(np.asarray(block, np.int64), return_inverse=True)
    mask = np.zeros((threads, len(columns)), np.bool_)
    mask[np.asarray(thread, np.int64), position] = True
    return Lanes(threads, columns, mask)


def places(blocks: NDArray[np.int64], wanted: Any) -> NDArray[np.int64]:
    """Columns of the wanted block ids, int64[n], in a chunk (whose clusters set their order)."""
    order = np.argsort(blocks)
    found: NDArray[np.int64] = order[np.searchsorted(blocks, wanted, sorter=order)]
    return found
