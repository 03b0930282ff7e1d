"""Thread-block clusters: ranks, stores into other blocks' shared memory, the cluster barrier."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cudacase import ptx, run

from gpulab.emulator.machine import Machine
from gpulab.errors import FaultError, KernelTimeoutError, UsageError

I = np.int32
RING = """extern "C" __global__ void __cluster_dims__(DIMS) kernel(int* o, int spread) {
  __shared__ int box[64];
  unsigned rank, n;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (spread && rank == 1) for (int k = 0; k < 5; k++) box[threadIdx.x] = k;
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  unsigned here = (unsigned)__cvta_generic_to_shared(&box[63 - threadIdx.x]), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"((rank + 1) % n));
  asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(there), "r"(1000 * block + threadIdx.x) : "memory");
  if (rank == 0 && threadIdx.x < 32) __nanosleep(10);
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  o[64 * block + threadIdx.x] = box[threadIdx.x] + 1000000 * rank;
}"""  # noqa: E501


def blocks_by_cluster(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> list[list[int]]:
    """Linear block ids of each cluster in rank order, from the definition."""
    found: dict[tuple[int, ...], list[int]] = {}
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                key = (x // cluster[0], y // cluster[1], z // cluster[2])
                found.setdefault(key, []).append(x + grid[0] * (y + grid[1] * z))
    return list(found.values())


@pytest.mark.parametrize("lanes", [65536, 64])
@pytest.mark.parametrize("spread", [0, 1])
@pytest.mark.parametrize(
    ("cluster", "grid"), [((4, 1, 1), (8, 1, 1)), ((2, 2, 1), (4, 6, 1)), ((1, 1, 2), (3, 1, 4))]
)
def test_ring(
    cluster: tuple[int, int, int], grid: tuple[int, int, int], spread: int, lanes: int
) -> None:
    source = RING.replace("DIMS", ", ".join(map(str, cluster)))
    count = int(np.prod(grid))
    got = (
        run(
            source,
            [np.zeros(64 * count, I), spread],
            grid=grid,
            block=(64,),
            capability=(9, 0),
            lanes=lanes,
        )
        .arrays[0]
        .reshape(count, 64)
    )
    for members in blocks_by_cluster(grid, cluster):
        for rank, block in enumerate(members):
            before = members[rank - 1]
            want = 1000 * before + np.arange(64)[::-1] + 1000000 * rank
            assert np.array_equal(got[block], want)


ONE_BLOCK = """extern "C" __global__ void __cluster_dims__(DIMS) kernel(int* o, int who) {
  __shared__ int s[64];
  int block = blockIdx.x + gridDim.x * blockIdx.y;
  if (block == who) {
    s[threadIdx.x] = 5 * threadIdx.x;
    BARRIER
    o[threadIdx.x] = s[63 - threadIdx.x];
  }
}"""


@pytest.mark.parametrize("cluster", ["1, 2, 1", "2, 1, 1", "2, 2, 1"])
def test_a_barrier_of_one_block_orders_that_block_however_clusters_lie(cluster: str) -> None:
    """The blocks of a chunk come by clusters: with some of them their ids do not ascend."""
    source = ONE_BLOCK.replace("DIMS", cluster)
    for who in range(8):
        given = [np.zeros(64, I), who]
        more = {"grid": (4, 2), "block": (64,), "capability": (9, 0), "sanitize": True}
        (got,) = run(source.replace("BARRIER", "__syncthreads();"), given, **more).arrays
        assert np.array_equal(got, 5 * np.arange(64)[::-1])
        with pytest.raises(FaultError, match="race") as caught:
            run(source.replace("BARRIER", ""), given, **more)
        assert caught.value.details["block"] == (who % 4, who // 4, 0)


def test_a_race_between_two_blocks_names_them_however_clusters_lie() -> None:
    source = """extern "C" __global__ void __cluster_dims__(1, 2, 1) kernel(int* o, int who) {
  int block = blockIdx.x + gridDim.x * blockIdx.y;
  if (threadIdx.x == 0 && (block == who || block == who + 1)) o[0] = 40 + block;
}"""
    for who in range(7):
        with pytest.raises(FaultError, match="race") as caught:
            run(source, [np.zeros(1, I), who], grid=(4, 2), capability=(9, 0), sanitize=True)
        told = {tuple(caught.value.details[f])[:2] for f in ("block", "other_block")}
        assert told == {(b % 4, b // 4) for b in (who, who + 1)}


def test_a_value_that_is_there_already_is_looked_for_in_the_own_block() -> None:
    source = """extern "C" __global__ void __cluster_dims__(1, 2, 1) kernel(int* o, int who) {
  __shared__ volatile int s[1];
  int block = blockIdx.x + gridDim.x * blockIdx.y;
  if (block == who && threadIdx.x == 0) s[0] = 40 + block;
  if (block == who && threadIdx.x == 9) s[0] = 40 + who;
  __syncthreads();
  if (block == who && threadIdx.x == 5) o[0] = s[0];
}"""
    for who in range(8):
        given = [np.zeros(1, I), who]
        (got,) = run(source, given, grid=(4, 2), capability=(9, 0), sanitize=True).arrays
        assert got.tolist() == [40 + who]


@pytest.mark.parametrize(
    ("dims", "ran"), [("1, 1, 1", [5]), ("2, 1, 1", [4, 5]), ("1, 2, 1", [1, 5])]
)
def test_a_block_that_is_chosen_runs_with_its_cluster(dims: str, ran: list[int]) -> None:
    source = """extern "C" __global__ void __cluster_dims__(DIMS) kernel(int* o) {
  o[blockIdx.x + gridDim.x * blockIdx.y] = 1;
}""".replace("DIMS", dims)
    machine = Machine((9, 0))
    program = machine.load(ptx(source, (9, 0)))
    out = machine.alloc(32)
    machine.write(out, np.zeros(8, I))
    machine.blocks = [5]
    machine.launch(program, "kernel", (4, 2), (32,), [np.uint64(out).tobytes()])
    assert np.flatnonzero(machine.read(out, 32).view(I)).tolist() == ran


def test_launch_bounds_are_of_all_threads_of_a_block() -> None:
    source = """extern "C" __global__ void __launch_bounds__(64) kernel(int* o) { o[0] = 1; }"""
    given = [np.zeros(1, I)]
    assert run(source, given, block=(8, 8)).arrays[0][0] == 1
    with pytest.raises(UsageError, match="at most 64 threads a block, got 72"):
        run(source, given, block=(8, 9))


def test_a_grid_must_be_whole_clusters() -> None:
    source = RING.replace("DIMS", "4, 1, 1")
    with pytest.raises(UsageError, match="whole clusters"):
        run(source, [np.zeros(640, I), 0], grid=(6,), block=(64,), capability=(9, 0))


def test_a_rank_outside_the_cluster_is_a_fault() -> None:
    source = RING.replace("DIMS", "2, 1, 1").replace("(rank + 1) % n", "rank + 1")
    with pytest.raises(FaultError) as caught:
        run(source, [np.zeros(256, I), 0], grid=(4,), block=(64,), capability=(9, 0))
    assert caught.value.details["fault"] == "out_of_bounds"
    assert caught.value.details["block"] == [1, 0, 0]


SENT = """extern "C" __global__ void __cluster_dims__(4, 1, 1) kernel(unsigned* o) {
  __shared__ alignas(16) unsigned box[2][4][4 * N];
  __shared__ alignas(8) unsigned long long full[2];
  unsigned rank, me = threadIdx.x;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  unsigned bar = (unsigned)__cvta_generic_to_shared(full);
  if (me < 2) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar + 8 * me) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  for (unsigned turn = 0; turn < 4; ++turn) {
    unsigned at = bar + 8 * (turn % 2), parity = turn / 2;
    if (me == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                              :: "r"(at), "r"(4 * 4 * BYTES) : "memory");
    if (me < 16) {
      unsigned to = me / 4, here = (unsigned)__cvta_generic_to_shared(&box[turn % 2][rank][me % 4 * N]);
      unsigned value = 1000 * turn + 100 * (blockIdx.x + 1) + me;
      unsigned there, counted;
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(to));
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(at), "r"(OTHER));
      SEND
    }
    if (WAIT) asm volatile("{.reg .pred p;\\nL: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"
                           "@!p bra L;}" :: "r"(at), "r"(parity) : "memory");
    if (me < 16 * N) o[(blockIdx.x * 4 + turn) * 16 * N + me] = box[turn % 2][me / (4 * N)][me % (4 * N)];
    __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}"""  # noqa: E501
ASYNC = "st.async.shared::cluster.mbarrier::complete_tx::bytes"
SENDS = {
    "b32": (1, f'"{ASYNC}.b32 [%0], %2, [%1];" :: "r"(there), "r"(counted), "r"(value)'),
    "v2.b32": (2, f'"{ASYNC}.v2.b32 [%0], {{%2, %3}}, [%1];" :: "r"(there), "r"(counted), '
               '"r"(value), "r"(~value)'),
    "v4.b32": (4, f'"{ASYNC}.v4.b32 [%0], {{%2, %3, %3, %2}}, [%1];" :: "r"(there), "r"(counted), '
               '"r"(value), "r"(~value)'),
    "b64": (2, f'"{ASYNC}.b64 [%0], %2, [%1];" :: "r"(there), "r"(counted), '
            '"l"(((unsigned long long)~value << 32) | value)'),
}  # fmt: skip


def sent(form: str, **changed: str) -> np.ndarray:
    """What blocks of two clusters of 4 got, (block, turn, from, lane, word)."""
    words, send = SENDS[form]
    source = SENT.replace("SEND", f'asm volatile({send} : "memory");')
    usual = {"BYTES": "(4 * N)", "N": str(words), "OTHER": "to", "WAIT": "1"}
    for name, value in (usual | changed).items():
        source = re.sub(rf"\b{name}\b", value, source)
    got = run(
        source, [np.zeros(8 * 4 * 16 * words, np.uint32)], grid=(8,), block=(64,),
        capability=(9, 0), budget=20000,
    ).arrays[0]  # fmt: skip
    return got.reshape(8, 4, 4, 4, words)


@pytest.mark.parametrize("form", SENDS)
def test_asynchronous_stores_arrive_where_and_when_their_mbarrier_says(form: str) -> None:
    got = sent(form)
    for block, turn, source, lane in np.ndindex(got.shape[:4]):
        first, to = block // 4 * 4, block % 4
        value = np.uint32(1000 * turn + 100 * (first + source + 1) + 4 * to + lane)
        want = {"b32": [value], "v2.b32": [value, ~value], "b64": [value, ~value],
                "v4.b32": [value, ~value, ~value, value]}[form]  # fmt: skip
        assert got[block, turn, source, lane].tolist() == [int(w) for w in want]


def test_bytes_of_an_asynchronous_store_must_be_waited_for() -> None:
    with pytest.raises(FaultError, match="not waited for"):
        sent("b32", WAIT="0")


def test_fewer_bytes_than_announced_never_end_a_wait() -> None:
    with pytest.raises(KernelTimeoutError):
        sent("b32", BYTES="5")


def test_an_mbarrier_counts_what_lies_in_its_own_block() -> None:
    with pytest.raises(FaultError, match="in different blocks"):
        sent("b32", OTHER="(to + 1) % 4")


def test_an_asynchronous_store_outside_of_the_cluster_is_a_fault() -> None:
    with pytest.raises(FaultError, match="of a cluster of 4"):
        sent("b32", OTHER="4")
