"""What a declaration says about device code: its parameters, its source and its launch shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpulab.formats import storage_dtype


@dataclass(frozen=True)
class Param:
    """One parameter of the device function.

    Args:
        name: name of the parameter; inputs and outputs are matched to it by name.
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
    """An array that is passed to the kernel as a tensor map (TMA), and the box that one copy moves.

    Args:
        param: name of a two-dimensional array parameter.
        rows: rows of the box.
        columns: columns of the box, in elements; a row must not be wider than the swizzle.
        swizzle_bytes: width of the swizzle in shared memory: 32, 64 or 128; 0 for none.
    """

    param: str
    rows: int
    columns: int
    swizzle_bytes: int = 128


@dataclass(frozen=True)
class LaunchPlan:
    """The shape of a launch.

    Args:
        grid: blocks (x, y, z). For a persistent kernel, x is the number of blocks that have work.
        block: threads of a block (x, y, z).
        shared_bytes: dynamic shared memory of a block.
        maps: the arrays that are passed as tensor maps; all others are passed as pointers.
        persistent: every block takes work until none is left, so that the device launches no more
            blocks along x than it holds at once.
        blocks_an_sm: persistent kernels: resident blocks of a multiprocessor.
        equal_shares: persistent kernels: launch fewer blocks where each of them then takes equally
            many turns.
        cluster: blocks of a cluster, along x; must agree with the device code.
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
    """CUDA C++ to compile: a source file and the kernel to instantiate from it.

    Args:
        source: path relative to ``raw_kernels/``, or an absolute path.
        entry: a C++ name expression such as ``matmul_simt<__half, float>``.
        defines: ``NAME=VALUE`` macros.
        feature_target: compile for the architecture-specific target (``sm_90a``).
        contract: let the compiler contract ``a * b + c`` to a fused multiply-add. Off by default,
            so that a kernel computes what its source says, with the same bits on the emulated
            device and on the card; write ``fmaf`` where a fused operation is meant.
    """

    source: str
    entry: str
    defines: tuple[str, ...] = ()
    feature_target: bool = False
    contract: bool = False


@dataclass(frozen=True)
class NumbaBuild:
    """A Numba CUDA kernel; the types of its arguments follow from the kernel's params.

    Args:
        make: returns the plain Python function to compile; called only where Numba is installed.
        key: identifies the kernel, in messages too: builds with one key and one parameter list
            are the same kernel.
        bounds: launch bounds: threads of a block, and blocks that an SM must be able to hold,
            which limits the registers of a thread.
        cluster: blocks of a cluster, along x.
    """

    make: Callable[[], Callable[..., None]]
    key: str
    bounds: tuple[int, int] | None = None
    cluster: int = 1


@dataclass(frozen=True)
class Step:
    """A launch that precedes the kernel's own and rearranges an input for it.

    Its time is part of the kernel's time; the kernel's time without it is reported separately.

    Args:
        name: shown to users: ``transpose b``.
        params: its device function's parameter list. Its outputs are working memory, which the
            kernel's own parameter list may name as inputs.
        build: what to compile.
        plan: launch shape.
    """

    name: str
    params: tuple[Param, ...]
    build: RawBuild
    plan: LaunchPlan
