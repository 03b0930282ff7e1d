"""Numba kernels as ``compile_ptx`` gives them, with their float16 calls left open."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpulab.emulator import halfcalls
from gpulab.emulator.machine import Machine
from gpulab.errors import FaultError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from numba import cuda, types

Array = NDArray[Any]
CAPABILITIES = [(7, 5), (8, 0), (9, 0), (12, 0)]


def array_arguments(address: int, array: Array) -> list[bytes]:
    """Numba's array: meminfo, parent, items, item size, data, shape, strides."""
    head = [0, 0, array.size, array.itemsize, address, *array.shape, *array.strides]
    return [np.int64(v).tobytes() for v in head]


def run(
    function: Callable[..., None], *arrays: Array, capability: tuple[int, int] = (8, 0),
    grid: tuple[int, ...] = (1,), block: tuple[int, ...] = (32,),
) -> list[Array]:  # fmt: skip
    signature = tuple(
        types.Array(
            types.float16 if a.dtype == np.float16 else getattr(types, a.dtype.name), a.ndim, "C"
        )
        for a in arrays
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ptx, _ = cuda.compile_ptx(function, signature, cc=capability, lineinfo=True)
    machine = Machine(capability)
    program = machine.load(ptx)
    params, addresses = [], []
    for i, a in enumerate(arrays):
        addresses.append(machine.alloc(a.nbytes, f"array {i}"))
        machine.write(addresses[-1], a)
        params += array_arguments(addresses[-1], a)
    (entry,) = program.entries
    machine.launch(program, entry, grid, block, params)
    return [
        machine.read(p, a.nbytes).view(a.dtype).reshape(a.shape)
        for p, a in zip(addresses, arrays, strict=True)
    ]


def transpose_tile(a: Any, c: Any) -> None:
    tile = cuda.shared.array((16, 16), types.float32)
    i, j = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    if i < a.shape[0] and j < a.shape[1]:
        tile[tx, ty] = a[i, j]
    cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = tile[tx, ty] * 2 + i // 3 - j % 5


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_tile_with_tails(capability: tuple[int, int]) -> None:
    a = np.random.default_rng(0).standard_normal((37, 21)).astype(np.float32)
    _, c = run(
        transpose_tile, a, np.zeros_like(a), capability=capability, grid=(3, 2), block=(16, 16)
    )
    i, j = np.indices(a.shape)
    assert np.array_equal(c, (a * np.float32(2) + i // 3 - j % 5).astype(np.float32))


def half_arithmetic(a: Any, b: Any, c: Any) -> None:
    i = cuda.grid(1)
    if i < c.size:
        x = a[i] * b[i] + a[i]
        if x > b[i]:
            x = x - b[i]
        c[i] = -x / b[i]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_float16_functions_are_supplied_by_name(capability: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(100).astype(np.float16) for _ in range(2))
    got = run(half_arithmetic, a, b, np.zeros_like(a), capability=capability, grid=(4,))[2]
    x = a * b + a
    x = np.where(x > b, x - b, x)
    assert np.array_equal(got, -x / b)


def read_past_the_end(a: Any, c: Any) -> None:
    i = cuda.grid(1)
    c[i] = a[i + 1]


def test_faults_name_the_python_line() -> None:
    a = np.zeros(32, np.float32)
    with pytest.raises(FaultError) as caught:
        run(read_past_the_end, a, a.copy())
    line = read_past_the_end.__code__.co_firstlineno + 2
    assert caught.value.details["line"] == line
    assert caught.value.details["file"].endswith("test_emulator_numba.py")
    assert caught.value.details["thread"] == [31, 0, 0]


def test_every_supplied_name_is_one_that_numba_declares() -> None:
    from pathlib import Path

    import numba.cuda as package

    source = (Path(package.__path__[0]) / "_internal" / "cuda_fp16.py").read_text()
    unknown = [name for name in halfcalls.TABLE if f'"{name}"' not in source]
    assert not unknown
    assert len(halfcalls.TABLE) > 90
