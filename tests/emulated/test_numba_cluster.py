"""Rows that a Numba block cannot keep: a cluster's blocks share them, and add up what each has."""

from dataclasses import replace

import numpy as np
import pytest

from gpulab import registry
from gpulab.errors import UsageError
from gpulab.kernels import numba_row
from gpulab.kernels.numba_layout import Layout, layout
from gpulab.registry import LaunchPlan, NumbaBuild, Param
from gpulab.runtime.emulated import EmulatedDevice

SOFTMAX = next(iter(registry.cases("softmax", format="bf16", backend="numba")))
BLOCKS, THREADS, ROWS = 4, 512, 2
STEP = BLOCKS * THREADS
PARAMS = (
    Param("x", "in", "fp32", ("n",)),
    Param("y", "out", "fp32", ("n",)),
    Param("n", "dim", "int32"),
)


def sums():
    from numba import cuda, float32

    shape = Layout(
        vec=1,
        threads=THREADS,
        keep=1,
        rest=False,
        arrays=1,
        kept_bytes=4,
        modern=True,
        resident=THREADS,
        cluster=BLOCKS,
        whole=True,
    )
    kit = numba_row.tools(SOFTMAX.variant, shape)
    place, member, ready, add, parts = kit.place, kit.member, kit.ready, kit.add, shape.parts

    def each_row(x, y, n):
        part = cuda.shared.array(parts, float32)
        _, start, _ = place(STEP)
        ready()
        at = start + member()
        y[at] = add(x[at], part)

    return each_row


def test_every_thread_of_a_cluster_gets_the_sum_of_its_row():
    """More warps a row than a warp has lanes; small integers: every order gives the same sum."""
    device = EmulatedDevice((9, 0))
    kernel = device.build(NumbaBuild(sums, "sums", (THREADS, 1), BLOCKS), PARAMS)
    assert f".reqnctapercluster {BLOCKS}, 1, 1" in kernel.ptx
    x = np.arange(ROWS * STEP, dtype=np.float32) % 61
    plan = LaunchPlan((ROWS * BLOCKS, 1, 1), (THREADS, 1, 1), cluster=BLOCKS)
    sent, got = device.upload(x, "x"), device.empty(x.shape, x.dtype, name="y")
    device.launch(kernel, plan, [sent, got, x.size])
    expected = np.repeat(x.reshape(ROWS, STEP).sum(1, dtype=np.float64), STEP)
    np.testing.assert_array_equal(device.download(got), expected)
    with pytest.raises(UsageError, match="clusters"):
        device.launch(kernel, replace(plan, grid=(3, 1, 1)), [sent, got, x.size])


@pytest.mark.parametrize("arrays", [1, 2])
@pytest.mark.parametrize("cols", [4096, 32768, 40000, 131072, 262144, 2_000_000])
def test_a_cluster_comes_in_where_a_block_cannot_keep_a_row(cols, arrays):
    dims = {"rows": 1, "cols": cols}
    here = layout(SOFTMAX.variant, (9, 0), dims, arrays)
    alone = layout(SOFTMAX.variant, (8, 0), dims, arrays)
    assert alone.cluster == 1
    bytes_of_a_row = 2 * cols * arrays
    assert (here.cluster > 1) == (bytes_of_a_row > 227 * 1024)
    assert here.whole == (cols % 4096 == 0)
    assert here.rest == (cols == 2_000_000)
    # No pack is left out, and no thread keeps a place that no pack has.
    assert here.rest or here.step * (here.keep - 1) < cols // 8 <= here.step * here.keep
