"""Passes over memory: the bytes a kernel moves of each array, counted on the emulated device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpulab import ops
from gpulab.emulator.observe import Access, Boxes, Kind, LaunchInfo, Observer
from gpulab.lab.measure import judged_inputs
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.cache import Cache
from gpulab.ops import formulas
from gpulab.registry import Capability, Case, Dims
from gpulab.runtime.emulated import EmulatedDevice

_SAME = 0.01
"""Relative change of a count of passes that is none."""


class ArrayTraffic(Observer):
    """Adds up the bytes that lanes load from and store to each named buffer."""

    def __init__(self) -> None:
        self.loaded: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()

    def begin(self, info: LaunchInfo) -> None:
        """Remember which addresses belong to which array."""
        known = sorted(info.allocations, key=lambda a: a.address)
        self._starts = np.array([a.address for a in known], np.int64)
        self._names = [a.name for a in known]

    def access(self, access: Access) -> None:
        """Count one memory instruction."""
        if access.space != "global":
            return
        address, _, _ = access.flat()
        self._add(access.kind, address, np.full(len(address), access.nbytes))

    def boxes(self, boxes: Boxes) -> None:
        """Count a tensor copy."""
        self._add(boxes.kind, boxes.address, boxes.nbytes)

    def _add(self, kind: Kind, address: NDArray[np.int64], nbytes: NDArray[np.int64]) -> None:
        at = np.searchsorted(self._starts, address, side="right") - 1
        sums = np.bincount(at, nbytes, len(self._names)).astype(np.int64)
        for i in np.flatnonzero(sums):
            if kind != "store":
                self.loaded[self._names[i]] += int(sums[i])
            if kind != "load":
                self.stored[self._names[i]] += int(sums[i])


@dataclass(frozen=True)
class Passes:
    """How often an array is gone over.

    Args:
        name: its parameter.
        role: ``in`` or ``out``.
        nbytes: its size at the small dims.
        times: bytes moved over its size, at the small dims.
        grown: the same at the grown dims.
    """

    name: str
    role: str
    nbytes: int
    times: float
    grown: float

    @property
    def constant(self) -> bool:
        """Whether the passes do not grow with the size."""
        return abs(self.grown - self.times) <= _SAME * self.times


@dataclass(frozen=True)
class Traffic:
    """What a kernel moves.

    Args:
        small: the dims.
        doubled: dims that were doubled for ``grown``.
        passes: of every array that holds anything.
        over_least: all bytes over the least there can be, at the small and at the grown dims.
    """

    small: Dims
    doubled: tuple[str, ...]
    passes: tuple[Passes, ...]
    over_least: tuple[float, float]


def anywhere(case: Case) -> Case:
    """A row that also runs where its mistake, if it is a lesson, cannot show."""
    if not case.variant.lesson or not case.spec.twin:
        return case
    return replace(case, spec=replace(case.spec, supports=lambda variant, capability, dims: None))


def traffic(case: Case, capability: Capability) -> Traffic:
    """Count the passes of a row at two sizes.

    Raises:
        UsageError: it cannot run on the emulated device.
        GpulabError: it does not build, or faults.
    """
    size = formulas.sizes(case.spec.op)
    counted = [_count(case, capability, dims) for dims in (size.small, size.grown)]
    at_small, at_grown = counted
    return Traffic(
        size.small,
        tuple(d for d in size.small if size.grown[d] != size.small[d]),
        tuple(
            Passes(name, role, nbytes, moved / nbytes, at_grown[name][2] / at_grown[name][1])
            for name, (role, nbytes, moved) in at_small.items()
            if nbytes
        ),
        (
            _over_least(case, size.small, at_small),
            _over_least(case, size.grown, at_grown),
        ),
    )


_Counted = dict[str, tuple[str, int, int]]
"""Parameter -> role, size in bytes, bytes moved."""


def _over_least(case: Case, dims: Dims, counted: _Counted) -> float:
    moved = sum(each for _, _, each in counted.values())
    return moved / ops.get(case.spec.op).bytes_moved(case.variant, dims)


def _count(case: Case, capability: Capability, dims: Dims) -> _Counted:
    seen = ArrayTraffic()
    device = EmulatedDevice(capability, observers=(seen,))
    runner = KernelRunner(anywhere(case), device, dims)
    runner(judged_inputs(runner, 0, Cache()))
    found: _Counted = {}
    for p in runner.params:
        if p.role in ("in", "out"):
            nbytes = _size([dims[d] for d in p.dims]) * p.dtype.itemsize
            moved = (seen.loaded if p.role == "in" else seen.stored)[p.name]
            found[p.name] = (p.role, nbytes, moved)
    return found


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
