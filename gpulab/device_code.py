"""Device code as a declaration names it: parameters, what to compile, how to launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpulab.formats import storage_dtype


@dataclass(frozen=True)
class Param:
    """One argument of the device function, in its order.

    Args:
        name: the argument's name; arrays are matched to inputs and outputs by it.
        role: ``in`` and ``out`` are device arrays, ``dim`` is an int32 taken from the dims,
            ``scalar`` is passed by value.
        format: number format of the elements (a row of ``gpulab.formats``, or ``int32``).
        dims: names of the dims that give the shape, row-major; empty for ``dim`` and ``scalar``.
    """

    name: str
    role: Literal["in", "out", "dim", "scalar"]
    format: str
    dims: tuple[str, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the stored codes (uint16 for bf16, uint8 for fp8, ...)."""
        return storage_dtype(self.format)


@dataclass(frozen=True)
class TensorBox:
    """An array that the kernel takes as a tensor map, and the box that one copy moves.

    Args:
        param: name of a two-dimensional array parameter.
        rows: of the box.
        columns: of the box, in elements; a row of it is at most the swizzle wide.
        swizzle_bytes: width of the swizzle in shared memory: 32, 64 or 128; 0 for none.
    """

    param: str
    rows: int
    columns: int
    swizzle_bytes: int = 128


@dataclass(frozen=True)
class LaunchPlan:
    """How to launch.

    Args:
        grid: blocks (x, y, z); of a persistent kernel, as many as have work.
        block: threads (x, y, z).
        shared_bytes: dynamic shared memory.
        maps: the arrays that are passed as tensor maps; the others are passed as pointers.
        persistent: blocks take work until there is none: the device launches no more along x than
            it holds at once.
        blocks_an_sm: of a persistent kernel, that a multiprocessor holds.
        equal_shares: of a persistent kernel: fewer blocks where all then take as many turns.
        cluster: blocks of a cluster, along x, as the device code fixes it.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    maps: tuple[TensorBox, ...] = ()
    persistent: bool = False
    blocks_an_sm: int = 1
    equal_shares: bool = False
    cluster: int = 1


@dataclass(frozen=True)
class RawBuild:
    """CUDA C++ to compile: file below ``raw_kernels/`` (or absolute) and the entry to instantiate.

    Args:
        source: path relative to ``raw_kernels/``, or an absolute path.
        entry: a C++ name expression such as ``matmul_simt<__half, float>``.
        defines: ``NAME=VALUE`` macros.
        feature_target: compile for the architecture-specific target (``sm_90a``).
        contract: let the compiler fuse ``a * b + c``; off, so that a kernel means what it says
            and the emulated device equals the card (write ``fmaf`` where a fused one is meant).
    """

    source: str
    entry: str
    defines: tuple[str, ...] = ()
    feature_target: bool = False
    contract: bool = False


@dataclass(frozen=True)
class NumbaBuild:
    """A Numba CUDA kernel: ``make()`` returns the plain Python function to compile.

    ``make`` runs only when Numba is installed; its types follow from the kernel's params.
    ``bounds``: threads of a block, and blocks that an SM must hold, which limits the registers.
    ``cluster``: blocks of a cluster, along x.
    """

    make: Callable[[], Callable[..., None]]
    key: str
    bounds: tuple[int, int] | None = None
    cluster: int = 1


@dataclass(frozen=True)
class Step:
    """A launch before the kernel's own that lays an input out as the kernel wants it.

    It is part of the launch, and so of its time; what it takes is reported apart as well.

    Args:
        name: for people: ``transpose b``.
        params: its device function's parameter list. Its outputs are working memory, which the
            kernel's own parameter list may name as inputs.
        build: what to compile.
        plan: launch shape.
    """

    name: str
    params: tuple[Param, ...]
    build: RawBuild
    plan: LaunchPlan
