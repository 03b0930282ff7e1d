"""Tensor copies (TMA) against their definition: tails, swizzle, clipping, landing, faults."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpulab.emulator.machine import Machine
from gpulab.emulator.tensormap import BYTES, TensorMap
from gpulab.errors import FaultError
from gpulab.runtime import nvrtc

HOPPER = (9, 0)
THREADS, SHARED = 64, 8192
SOURCE = """#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
// Box (x, y) to shared memory and on to `out` as it lies there, and back to `to` at (x, y).
// kind: 1 without the wait, 2 whose map is no map, 4 a box that begins on 16 bytes, 8 to bytes written before,
// 16 the box is overwritten, and the wait lets the newest group be, 32 overwritten behind a wait,
// 64 the first block alone waits, 128 to a third block of a cluster of two,
// 256 what is stored ends 128 bytes behind the box.
__global__ void __cluster_dims__(CLUSTER) kernel(
    const __grid_constant__ ptx::TensorMap from, const __grid_constant__ ptx::TensorMap to,
    const __grid_constant__ ptx::TensorMap no_map, unsigned* out, int bytes, int x, int y, int kind) {
    extern __shared__ __align__(1024) unsigned char box[];
    __shared__ unsigned long long barrier;
    const unsigned at = ptx::shared_address(box) + (kind & 4 ? 16 : 0);
    const unsigned full = ptx::shared_address(&barrier);
    if (threadIdx.x == 0) ptx::mbarrier_init(full, 1);
    for (int i = threadIdx.x; kind & 8 && i < bytes / 4; i += blockDim.x) ptx::store_shared_4(at + 4 * i, 7);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (threadIdx.x == 0) {
        ptx::mbarrier_expect(full, bytes);
        if (CLUSTER == 1) ptx::tma_load(at, kind & 2 ? no_map : from, x, y, full);
        if (CLUSTER == 2 && ptx::cluster_rank() == 1) ptx::tma_load_multicast(at, from, x, y, full, kind & 128 ? 7 : 3);
    }
    if (!(kind & 1) && !(kind & 64 && blockIdx.x > 0)) ptx::mbarrier_wait(full, 0);
    out += blockIdx.x * bytes / 4;
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) out[i] = ptx::load_shared_4(at + 4 * i);
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        ptx::tma_store(to, x, y, at + (kind & 256 ? 128 : 0));
        ptx::tma_store_commit();
        if (kind & 16) ptx::tma_store_wait_read<1>();
        if (kind & 32) ptx::tma_store_wait_read<0>();
    }
    __syncthreads();
    for (int i = threadIdx.x; kind & 48 && i < bytes / 4; i += blockDim.x) ptx::store_shared_4(at + 4 * i, 9);
}
"""  # noqa: E501


@cache
def text(cluster: int) -> tuple[str, str]:
    made = nvrtc.compile_text(
        SOURCE, "boxes.cu", "kernel", HOPPER, defines=(f"CLUSTER={cluster}",), cubin=False
    )
    return made.ptx, made.lowered


def copied(
    matrix: NDArray[Any],
    box: tuple[int, int],
    at: tuple[int, int],
    *,
    swizzle: int = 0,
    cluster: int = 1,
    kind: int = 0,
    written: int | None = None,
    counters: bool = False,
) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
    """(the box as it lies in shared memory (blocks, bytes), what was stored, counters).

    Of the matrix ``written`` rows are; None: all.
    """
    machine = Machine(HOPPER, counters=counters)
    program, entry = machine.load(text(cluster)[0]), text(cluster)[1]
    rows, columns = matrix.shape
    nbytes = box[0] * box[1] * matrix.itemsize
    addresses = [machine.alloc(size, name) for size, name in (
        (matrix.nbytes, "from"), (matrix.nbytes, "to"), (cluster * nbytes, "out"),
    )]  # fmt: skip
    machine.write(addresses[0], matrix[:written])
    machine.fill(addresses[1], matrix.nbytes, 0xA5)
    maps = [
        TensorMap(a, rows, columns, matrix.itemsize, *box, swizzle).encode() for a in addresses[:2]
    ]
    numbers = [np.int32(v).tobytes() for v in (nbytes, at[1], at[0], kind)]
    params = [*maps, bytes(BYTES), np.uint64(addresses[2]).tobytes(), *numbers]
    report = machine.launch(program, entry, (cluster,), (THREADS,), params, SHARED)
    out = machine.read(addresses[2], cluster * nbytes).reshape(cluster, nbytes)
    stored = machine.read(addresses[1], matrix.nbytes).view(matrix.dtype).reshape(matrix.shape)
    return out, stored, report.counters or {}


def pattern(rows: int, columns: int, dtype: str) -> NDArray[Any]:
    rng = np.random.default_rng(rows)
    return rng.integers(1, 255, (rows, columns)).astype(dtype)


def expected(
    matrix: NDArray[Any], box: tuple[int, int], at: tuple[int, int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """(the box, zeros outside of the matrix; the poisoned matrix with the box in it)."""
    inside = np.zeros(box, matrix.dtype)
    stored = np.full(matrix.nbytes, 0xA5, np.uint8).view(matrix.dtype).reshape(matrix.shape)
    for i in range(box[0]):
        for j in range(box[1]):
            y, x = at[0] + i, at[1] + j
            if 0 <= y < matrix.shape[0] and 0 <= x < matrix.shape[1]:
                inside[i, j] = stored[y, x] = matrix[y, x]
    return inside, stored


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
@pytest.mark.parametrize("at", [(0, 0), (5, 13), (-3, -7), (40, 0), (9, 60)], ids=str)
def test_a_box_is_filled_with_zeros_outside_and_stored_inside_only(
    dtype: str, at: tuple[int, int]
) -> None:
    matrix, box = pattern(13, 64, dtype), (10, 32)
    inside, stored = expected(matrix, box, at)
    out, to, _ = copied(matrix, box, at)
    np.testing.assert_array_equal(out[0].view(dtype).reshape(box), inside)
    np.testing.assert_array_equal(to, stored)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_a_swizzle_exchanges_pieces_of_16_bytes(span: int) -> None:
    """In a line of 128 bytes a piece changes its place by the low bits of the line's number."""
    rows, pieces = 16, span // 16
    matrix, box = pattern(rows, span // 2, "u2"), (rows, span // 2)
    out, to, _ = copied(matrix, box, (0, 0), swizzle=span)
    plain = matrix.view(np.uint8).reshape(-1, 16)
    for piece in range(len(plain)):
        line = piece // 8
        lies = piece ^ (line % pieces)
        np.testing.assert_array_equal(out[0].reshape(-1, 16)[lies], plain[piece])
    np.testing.assert_array_equal(to, matrix)  # the way back takes it away again


def test_a_copy_for_both_blocks_of_a_cluster_arrives_in_both() -> None:
    matrix, box = pattern(16, 64, "u2"), (16, 64)
    out, _, _ = copied(matrix, box, (0, 0), cluster=2)
    for block in out:
        np.testing.assert_array_equal(block.view("u2").reshape(box), matrix)


def test_a_copy_for_a_block_that_the_cluster_does_not_have() -> None:
    with pytest.raises(FaultError, match="outside a cluster of 2") as caught:
        copied(pattern(16, 64, "u2"), (16, 64), (0, 0), cluster=2, kind=128)
    assert caught.value.details["fault"] == "out_of_bounds"


def test_sectors_are_those_of_the_rows_inside() -> None:
    """10 rows of 16 elements from column 8 on: 32 bytes that begin within a sector, so two each."""
    _, _, counted = copied(pattern(13, 64, "u2"), (10, 16), (8, 8), counters=True)
    inside = 5  # rows of the box that the matrix has
    assert counted["tensor_copy_boxes"] == 2  # there and back
    assert counted["tensor_copy_bytes"] == 2 * inside * 32
    assert counted["tensor_copy_sectors"] == 2 * inside * 2
    stored = counted["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"]
    assert counted["global_sector_bytes"] == 32 * (stored + 2 * inside * 2)


@pytest.mark.parametrize(
    ("kind", "fault", "words"),
    [
        (1, "async_in_flight", "not waited for"),
        (9, "async_in_flight", "not waited for"),
        (2, "tensor_map", "no tensor map"),
        (4, "misaligned", "boxes begin on 128"),
    ],
)
def test_faults_have_a_name_and_a_line(kind: int, fault: str, words: str) -> None:
    with pytest.raises(FaultError, match=words) as error:
        copied(pattern(16, 64, "u2"), (16, 64), (0, 0), kind=kind)
    assert error.value.details["fault"] == fault
    assert error.value.details["line"] > 0


def test_one_block_does_not_wait_for_another() -> None:
    with pytest.raises(FaultError, match="not waited for") as error:
        copied(pattern(16, 64, "u2"), (16, 64), (0, 0), cluster=2, kind=64)
    assert error.value.details["fault"] == "async_in_flight"
    assert error.value.details["block"] == [1, 0, 0]


def test_a_store_that_was_not_waited_for_takes_what_was_written_since() -> None:
    """16: the wait leaves the newest group, which is the only one, to the end of the kernel."""
    matrix, box = pattern(16, 64, "u4"), (16, 64)
    _, stored, _ = copied(matrix, box, (0, 0), kind=32)
    np.testing.assert_array_equal(stored, matrix)
    _, stored, _ = copied(matrix, box, (0, 0), kind=16)
    np.testing.assert_array_equal(stored, np.full_like(matrix, 9))


@pytest.mark.parametrize("written", [0, 1, 15])
def test_what_nobody_wrote_is_not_copied(written: int) -> None:
    matrix = pattern(16, 64, "u2")
    with pytest.raises(FaultError, match="a box of from that nobody wrote") as error:
        copied(matrix, (16, 64), (0, 0), written=written)
    assert error.value.details["fault"] == "uninitialised"
    if written:
        copied(matrix, (written, 64), (0, 0), written=written)


def test_a_box_is_stored_whole_or_not_at_all() -> None:
    with pytest.raises(FaultError, match="was not written whole") as error:
        copied(pattern(16, 64, "u2"), (16, 64), (0, 0), kind=256)
    assert error.value.details["fault"] == "uninitialised"


def test_a_box_that_does_not_fit_shared_memory_is_out_of_bounds() -> None:
    with pytest.raises(FaultError, match="out-of-bounds") as error:
        copied(pattern(256, 64, "u2"), (256, 64), (0, 0))
    assert error.value.details["fault"] == "out_of_bounds"


def test_a_map_is_128_bytes_and_no_others_are_a_map() -> None:
    made = TensorMap(1 << 40, 1 << 31, 3, 4, 8, 32, 128)
    assert len(made.encode()) == BYTES
    assert TensorMap.decode(made.encode()) == made
    assert TensorMap.decode(bytes(BYTES)) is None
