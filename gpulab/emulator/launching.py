"""Launch shape and parameters, checked against what the kernel was compiled for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.observe import Observer
from gpulab.emulator.ptx.linker import Kernel
from gpulab.emulator.state import Launch
from gpulab.errors import UsageError


def prepare(
    kernel: Kernel,
    grid: Sequence[int],
    block: Sequence[int],
    params: Sequence[bytes],
    shared_bytes: int,
    capability: tuple[int, int],
    watchers: Sequence[Observer],
) -> Launch:
    """Everything that the chunks of a launch share.

    Args:
        kernel: the flat kernel.
        grid: blocks (x, y, z), trailing ones may be left out.
        block: threads (x, y, z), likewise.
        params: one bytes object a parameter, of exactly its size.
        shared_bytes: dynamic shared memory of a block.
        capability: whose arithmetic is emulated.
        watchers: observers.

    Raises:
        UsageError: shape or parameters do not fit the kernel.
    """
    gx, gy, gz = (*map(int, grid), 1, 1)[:3]
    bx, by, bz = (*map(int, block), 1, 1)[:3]
    threads = bx * by * bz
    if min(gx, gy, gz, bx, by, bz) < 1 or threads > 1024:
        raise UsageError(f"launch shape grid {tuple(grid)} block {tuple(block)} is impossible")
    if any(g % c for g, c in zip((gx, gy, gz), kernel.cluster, strict=True)):
        raise UsageError(
            f"grid {(gx, gy, gz)} is not whole clusters of {kernel.cluster} blocks",
            fix="round the grid up and let the surplus blocks return",
        )
    limit = kernel.max_threads
    if limit and threads > int(np.prod(limit)):
        raise UsageError(
            f"{kernel.name} is compiled for at most {int(np.prod(limit))} threads a block, "
            f"got {threads}"
        )
    if len(params) != len(kernel.params):
        raise UsageError(f"{kernel.name} takes {len(kernel.params)} parameters, got {len(params)}")
    packed = bytearray(kernel.param_bytes)
    for (name, (at, variable)), given in zip(kernel.params.items(), params, strict=True):
        if len(given) != variable.nbytes:
            raise UsageError(f"parameter {name} has {variable.nbytes} bytes, got {len(given)}")
        packed[at : at + len(given)] = given
    return Launch(
        kernel,
        (gx, gy, gz),
        (bx, by, bz),
        kernel.shared_static + shared_bytes,
        shared_bytes,
        bytes(packed),
        capability,
        threads,
        tuple(watchers),
    )


def chunks(
    launch: Launch, lanes: int, only: Sequence[int] | None = None
) -> Iterator[NDArray[np.int64]]:
    """Linear block ids that run together, at most ``lanes`` threads but at least one cluster.

    With ``only``, clusters that have one of these blocks; None: all.

    The blocks of a cluster are neighbours, in the order of their rank.
    """
    gx, gy, gz = launch.grid
    ids = np.arange(gx * gy * gz, dtype=np.int64)
    cx, cy, cz = launch.kernel.cluster
    if cy * cz > 1:
        x, y, z = ids % gx, ids // gx % gy, ids // (gx * gy)
        cluster = (z // cz * (gy // cy) + y // cy) * (gx // cx) + x // cx
        rank = (z % cz * cy + y % cy) * cx + x % cx
        ids = ids[np.lexsort((rank, cluster))]
    size = cx * cy * cz
    if only is not None:
        wanted = np.isin(ids, only).reshape(-1, size).any(axis=1)
        ids = ids[np.repeat(wanted, size)]
    step = max(1, lanes // (launch.padded * size)) * size
    for start in range(0, len(ids), step):
        yield ids[start : start + step]
