"""cp.async and mbarrier: data lands at its wait, and barriers order producers and consumers."""

from __future__ import annotations

import numpy as np
import pytest
from cudacase import run

from gpulab.errors import FaultError

I = np.int32


PIPELINE = """extern "C" __global__ void kernel(const float4* in, float4* o, int n, int left) {
  __shared__ float4 s[4][32];
  for (int k = 0; k < n; k++) {
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[k][threadIdx.x]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(to), "l"(in + k * 32 + threadIdx.x) : "memory");
    asm volatile("cp.async.commit_group;");
  }
  if (left == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
  if (left == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
  if (left == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
  __syncthreads();
  for (int k = 0; k < 4 - left; k++)
    o[k * 32 + threadIdx.x] = s[k][31 - threadIdx.x];
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  o[3 * 32 + threadIdx.x] = s[3][threadIdx.x];
}"""


@pytest.mark.parametrize("left", [0, 1, 2])
def test_copy_lands_at_its_wait(left: int) -> None:
    data = np.random.default_rng(6).standard_normal((4, 32, 4)).astype(np.float32)
    got = run(PIPELINE, [data, np.zeros_like(data), 4, left]).arrays[1]
    assert np.array_equal(got[: min(4 - left, 3)], data[: min(4 - left, 3), ::-1])
    assert np.array_equal(got[3], data[3])


def test_reading_a_copy_before_its_wait_is_a_fault() -> None:
    data = np.zeros((4, 32, 4), np.float32)
    source = PIPELINE.replace("k < 4 - left", "k < 5 - left")
    for left in (1, 2):
        with pytest.raises(FaultError) as caught:
            run(source, [data, data.copy(), 4, left])
        assert caught.value.details["fault"] == "async_in_flight"
        assert caught.value.details["line"] == 14


@pytest.mark.parametrize("place", ["threadIdx.x", "(threadIdx.x + blockIdx.x) % 32"])
def test_old_data_under_a_copy_in_flight_cannot_be_read(place: str) -> None:
    """The buffer was valid before the copy: what is read then is stale, not uninitialised."""
    source = f"""extern "C" __global__ void kernel(const float* in, float* o) {{
  __shared__ float s[32];
  s[threadIdx.x] = 1;
  __syncthreads();
  unsigned to = (unsigned)__cvta_generic_to_shared(&s[{place}]);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(in + threadIdx.x));
  o[threadIdx.x] = s[{place}];
  asm volatile("cp.async.wait_all;" ::: "memory");
}}"""
    data = np.zeros(32, np.float32)
    with pytest.raises(FaultError) as caught:
        run(source, [data, data.copy()], grid=(3,))
    assert (caught.value.details["fault"], caught.value.details["line"]) == ("async_in_flight", 7)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies_of_every_size_zero_fill(size: int) -> None:
    cache = "cg" if size == 16 else "ca"
    source = f"""extern "C" __global__ void kernel(const char* in, char* o, const int* n) {{
  __shared__ __align__(16) char s[32 * {size}];
  for (int k = 0; k < {size}; k++) s[threadIdx.x * {size} + k] = 'x';
  unsigned to = (unsigned)__cvta_generic_to_shared(s + threadIdx.x * {size});
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;"
               :: "r"(to), "l"(in + threadIdx.x * {size}), "r"(n[threadIdx.x]) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (int k = 0; k < {size}; k++) o[threadIdx.x * {size} + k] = s[threadIdx.x * {size} + k];
}}"""
    data = np.arange(1, 32 * size + 1).astype(np.uint8)
    amount = (np.arange(32) % (size + 1)).astype(I)
    got = run(source, [data, np.zeros_like(data), amount]).arrays[1].reshape(32, size)
    kept = np.arange(size)[None, :] < amount[:, None]
    assert np.array_equal(got, np.where(kept, data.reshape(32, size), 0))
    # a source of no bytes may lie anywhere; one byte more and it is checked
    short = data[: 31 * size].copy()
    amount[:] = size
    amount[31] = 0
    assert not run(source, [short, data.copy(), amount]).arrays[1].reshape(32, size)[31].any()
    amount[31] = 1
    with pytest.raises(FaultError):
        run(source, [short, data.copy(), amount])


def test_mbarrier_orders_producers_and_consumers() -> None:
    source = """extern "C" __global__ void kernel(int* o, int rounds) {
  __shared__ __align__(8) unsigned long long bar[2];
  __shared__ int box[32];
  unsigned full = (unsigned)__cvta_generic_to_shared(&bar[0]), empty = full + 8;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(full) : "memory");
    asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(empty) : "memory");
  }
  __syncthreads();
  int lane = threadIdx.x & 31;
  for (int k = 0; k < rounds; k++) {
    unsigned done = 0; unsigned long long token;
    if (threadIdx.x < 32) {
      if (k) while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(empty), "r"((k - 1) & 1) : "memory");
      box[lane] = k * 100 + lane;
      asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(token) : "r"(full) : "memory");
    } else {
      while (!done)
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(full), "r"(k & 1) : "memory");
      o[k * 32 + lane] = box[31 - lane];
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(empty) : "memory");
    }
  }
}"""
    got = run(source, [np.zeros(5 * 32, I), 5], block=(64,)).arrays[0].reshape(5, 32)
    want = 100 * np.arange(5)[:, None] + np.arange(32)[None, ::-1]
    assert np.array_equal(got, want)


def test_too_many_arrivals_are_a_fault() -> None:
    source = """extern "C" __global__ void kernel(int* o) {
  __shared__ __align__(8) unsigned long long bar;
  unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 20;" :: "r"(at) : "memory");
  __syncthreads();
  asm volatile("mbarrier.arrive.noComplete.shared.b64 _, [%0], 3;" :: "r"(at) : "memory");
}"""
    with pytest.raises(FaultError) as caught:
        run(source, [np.zeros(1, I)])
    assert caught.value.details["fault"] == "mbarrier"
