"""Where threads meet: named and cluster barriers, mbarriers, votes and copies, one case each."""

from __future__ import annotations

import numpy as np
import pytest
from cudacase import run

from gpulab.emulator.ops.mbarrier import after, pack, unpack
from gpulab.errors import FaultError

I = np.int32


def test_a_named_barrier_counts_from_zero_in_its_next_round() -> None:
    """The reader's code stands first, so that it is at each barrier before the writer."""
    source = """extern "C" __global__ void kernel(int* o) {
  __shared__ int s[2][32];
  if (threadIdx.x >= 32) {
    int j = threadIdx.x - 32;
    asm volatile("bar.sync 1, 64;" ::: "memory");
    o[j] = s[0][31 - j];
    asm volatile("bar.sync 1, 64;" ::: "memory");
    o[32 + j] = s[1][31 - j];
  } else {
    s[0][threadIdx.x] = threadIdx.x;
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    s[1][threadIdx.x] = 100 + threadIdx.x;
    asm volatile("bar.arrive 1, 64;" ::: "memory");
  }
}"""
    got = run(source, [np.zeros(64, I)], block=(64,)).arrays[0].reshape(2, 32)
    assert np.array_equal(got[0], np.arange(32)[::-1])
    assert np.array_equal(got[1], 100 + np.arange(32)[::-1])


@pytest.mark.parametrize("warp", [0, 1])
def test_one_of_two_warps_parts_at_a_barrier(warp: int) -> None:
    source = """extern "C" __global__ void kernel(int* o, int warp) {
  if (threadIdx.x / 32 == warp && threadIdx.x % 32 < 16) {
    o[threadIdx.x] = 1;
    asm volatile("bar.sync 0;" ::: "memory");
  } else {
    o[threadIdx.x] = 2;
    asm volatile("bar.sync 0;" ::: "memory");
  }
}"""
    with pytest.raises(FaultError) as caught:
        run(source, [np.zeros(64, I), warp], block=(64,))
    assert caught.value.details["fault"] == "barrier_divergence"
    whole = run(source, [np.zeros(64, I), 2], block=(64,)).arrays[0]
    assert (whole == 2).all(), "no warp parts"


ARRIVE_AND_WAIT = """
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");"""


def test_blocks_of_a_cluster_wait_for_those_that_come_later() -> None:
    """Each branch is one block's, and reads what the other wrote: whichever runs first."""

    def exchange(rank: int, value: str) -> str:
        return f"""
    box[threadIdx.x] = {value}; {ARRIVE_AND_WAIT}
    asm volatile("mapa.shared::cluster.u32 %0, %1, {1 - rank};" : "=r"(there) : "r"(here));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(got) : "r"(there) : "memory");
    o[{32 * rank} + threadIdx.x] = got;"""

    source = f"""extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(int* o) {{
  __shared__ int box[32];
  unsigned rank, there; int got;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  unsigned here = (unsigned)__cvta_generic_to_shared(&box[threadIdx.x]);
  if (rank == 0) {{ {exchange(0, "7 + threadIdx.x")} }}
  else {{ {exchange(1, "3 * threadIdx.x")} }}
  {ARRIVE_AND_WAIT}
}}"""
    (got,) = run(source, [np.zeros(64, I)], grid=(2,), capability=(9, 0)).arrays
    assert np.array_equal(got, [*(3 * np.arange(32)), *(7 + np.arange(32))])


def test_what_drops_out_of_an_mbarrier_is_not_expected_again() -> None:
    """PTX: the expected count is lowered by the count argument, then as many arrive."""
    word = after(pack(5, 5, 0, 0), "arrive_drop", 2, False)
    assert word is not None
    assert unpack(word) == (3, 3, 0, 0)
    word = after(word, "arrive", 3, False)
    assert word is not None
    assert unpack(word) == (3, 3, 0, 1), "the next phase expects those that are left"


def test_bytes_that_come_before_they_are_announced_end_no_phase() -> None:
    """PTX: a phase is over when nobody and no byte is pending; the count may be below zero."""
    word = after(pack(1, 1, 0, 0), "complete_tx", 16, False)
    assert word is not None
    early = after(word, "arrive", 1, False)
    assert early is not None
    assert unpack(early) == (0, 1, -16, 0), "the bytes were never announced"
    announced = after(word, "arrive", 16, True)
    assert announced is not None
    assert unpack(announced) == (1, 1, 0, 1)


def test_an_mbarrier_that_nobody_initialised() -> None:
    source = """extern "C" __global__ void kernel(int* o) {
  __shared__ __align__(8) unsigned long long bar;
  unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");
}"""
    with pytest.raises(FaultError) as caught:
        run(source, [np.zeros(1, I)])
    assert (caught.value.details["fault"], caught.value.details["line"]) == ("uninitialised", 4)


def test_a_uniform_vote() -> None:
    source = """extern "C" __global__ void kernel(int* o, int ones) {
  int given;
  asm volatile("{ .reg .pred p, q; setp.lt.s32 p, %1, %2;"
               "vote.sync.uni.pred q, p, 0xffffffff; selp.s32 %0, 1, 0, q; }"
               : "=r"(given) : "r"((int)threadIdx.x), "r"(ones));
  o[threadIdx.x] = given;
}"""
    for ones in (0, 1, 31, 32):
        (got,) = run(source, [np.zeros(32, I), ones]).arrays
        assert (got == (ones in (0, 32))).all(), ones


def test_a_mask_names_the_threads_that_there_are() -> None:
    source = """extern "C" __global__ void kernel(int* o) {
  unsigned mask = threadIdx.x < 32 ? 0xffffffffu : 0xffu;
  o[threadIdx.x] = __ballot_sync(mask, threadIdx.x & 1);
}"""
    (got,) = run(source, [np.zeros(40, np.uint32)], block=(40,)).arrays
    assert got.tolist() == 32 * [0xAAAAAAAA] + 8 * [0xAA]


def test_a_copy_of_one_block_takes_nothing_from_another() -> None:
    source = """extern "C" __global__ void kernel(const int* in, int* o) {
  __shared__ int s[32];
  s[threadIdx.x] = 50 + threadIdx.x;
  __syncthreads();
  unsigned to = (unsigned)__cvta_generic_to_shared(&s[blockIdx.x]);
  if (threadIdx.x == 0)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(in) : "memory");
  int other = s[(blockIdx.x + 1) % 3];
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  o[2 * (32 * blockIdx.x + threadIdx.x)] = other;
  o[2 * (32 * blockIdx.x + threadIdx.x) + 1] = s[blockIdx.x];
}"""
    got = run(source, [np.int32([9]), np.zeros(192, I)], grid=(3,)).arrays[1].reshape(3, 32, 2)
    assert np.array_equal(got[..., 0], np.repeat([[51], [52], [50]], 32, axis=1))
    assert (got[..., 1] == 9).all()
