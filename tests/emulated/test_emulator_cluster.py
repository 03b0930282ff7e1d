"""Thread-block clusters: ranks, stores into other blocks' shared memory, the cluster barrier."""

from __future__ import annotations

import numpy as np
import pytest
from cudacase import run

from gpulab.errors import FaultError, UsageError

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
