"""Warp instructions and atomics against lane-by-lane models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cudacase import run
from ptxcase import BLOCK
from ptxcase import run as ptx_run

from gpulab.errors import FaultError

I, U, F = np.int32, np.uint32, np.float32


def test_a_half_is_shuffled_by_the_constant_width_of_a_warp() -> None:
    source = """#include <cuda_fp16.h>
extern "C" __global__ void kernel(const __half* a, __half* o) {
  o[threadIdx.x] = __shfl_xor_sync(0xffffffff, a[threadIdx.x], 5);
}"""
    a = np.arange(32, dtype=np.float16)
    got = run(source, [a, np.zeros(32, np.float16)], grid=(1,), block=(32,)).arrays[1]
    np.testing.assert_array_equal(got, a[np.arange(32) ^ 5])


@pytest.mark.parametrize("width", [32, 16, 8, 4])
@pytest.mark.parametrize("mode", ["", "_up", "_down", "_xor"])
def test_shuffles(mode: str, width: int) -> None:
    source = f"""extern "C" __global__ void kernel(const int* a, const int* by, int* o) {{
  int i = blockIdx.x * 96 + threadIdx.x;
  o[i] = __shfl{mode}_sync(0xffffffff, a[i], by[i], {width});
}}"""
    rng = np.random.default_rng(width)
    a = rng.integers(0, 1 << 30, 192).astype(I)
    by = rng.integers(0, 40 if mode == "" else width, 192).astype(I)
    got = run(source, [a, by, np.zeros(192, I)], grid=(2,), block=(96,)).arrays[2]
    for i in range(192):
        lane, warp = i % 32, i // 32 * 32
        low, n = lane // width * width, int(by[i])
        if mode == "":
            source_lane = low + n % width
        elif mode == "_up":
            source_lane = lane - n if lane - n >= low else lane
        elif mode == "_down":
            source_lane = lane + n if lane + n < low + width else lane
        else:
            other = lane ^ n
            source_lane = other if other < low + width else lane
        assert got[i] == a[warp + source_lane]


def test_shuffle_predicate_says_whether_the_source_is_in_range() -> None:
    a = np.arange(BLOCK, dtype=U)
    body = "shfl.sync.down.b32 %tmp0|%c0, %a0, 3, 31, -1; selp.b32 %d, %tmp0, 999, %c0;"
    got = ptx_run(body, [a], U)
    lane = np.arange(BLOCK) % 32
    assert np.array_equal(got, np.where(lane + 3 < 32, a + 3, 999))


def test_votes_ballots_and_active_mask_under_divergence() -> None:
    source = """extern "C" __global__ void kernel(const int* p, unsigned* o) {
  int i = blockIdx.x * 64 + threadIdx.x;
  unsigned r[5] = {0, 0, 0, 0, 0};
  if (threadIdx.x % 5 != 0) {
    unsigned m = __activemask();
    r[0] = m;
    r[1] = __ballot_sync(m, p[i]);
    r[2] = __any_sync(m, p[i] == 2);
    r[3] = __all_sync(m, p[i] >= 0);
    r[4] = __popc(r[1]);
  }
  for (int k = 0; k < 5; k++) o[i * 5 + k] = r[k];
}"""
    rng = np.random.default_rng(1)
    p = rng.integers(-1, 3, 256).astype(I)
    got = run(source, [p, np.zeros(1280, U)], grid=(4,), block=(64,)).arrays[1].reshape(-1, 5)
    for i in range(256):
        first = i // 32 * 32
        lanes = [j for j in range(first, first + 32) if (j % 64) % 5 != 0]
        if i not in lanes:
            assert not got[i].any()
            continue
        bits = lambda f: sum(1 << (j - first) for j in lanes if f(j))  # noqa: B023, E731
        ballot = bits(lambda j: p[j] != 0)
        want = [bits(lambda j: True), ballot, any(p[j] == 2 for j in lanes),
                all(p[j] >= 0 for j in lanes), ballot.bit_count()]  # fmt: skip
        assert got[i].tolist() == want


@pytest.mark.parametrize("capability", [(8, 0), (12, 0)])
def test_match_and_redux(capability: tuple[int, int]) -> None:
    source = """extern "C" __global__ void kernel(const int* v, unsigned* o) {
  int i = threadIdx.x, all;
  unsigned mask = i & 1 ? 0xaaaaaaaau : 0x55555555u;
  o[i * 8] = __match_any_sync(0xffffffff, v[i]);
  o[i * 8 + 1] = __match_all_sync(0xffffffff, v[i & 32], &all); o[i * 8 + 2] = all;
  o[i * 8 + 3] = __match_any_sync(0xffffffff, (long long)v[i] << 33);
  if (i & 1) {
    o[i * 8 + 4] = __reduce_add_sync(mask, v[i]);
    o[i * 8 + 5] = __reduce_max_sync(mask, v[i]);
  } else {
    o[i * 8 + 4] = __reduce_xor_sync(mask, (unsigned)v[i]);
    o[i * 8 + 5] = __reduce_min_sync(mask, (unsigned)v[i]);
  }
  o[i * 8 + 6] = __reduce_or_sync(0xffffffff, (unsigned)v[i]);
  o[i * 8 + 7] = __reduce_and_sync(0xffffffff, (unsigned)v[i]);
}"""
    rng = np.random.default_rng(2)
    v = rng.integers(-3, 4, 64).astype(I)
    got = (
        run(source, [v, np.zeros(512, U)], block=(64,), capability=capability)
        .arrays[1]
        .reshape(-1, 8)
    )
    u = v.view(U)
    for i in range(64):
        warp = range(i // 32 * 32, i // 32 * 32 + 32)
        same = sum(1 << (j % 32) for j in warp if v[j] == v[i])
        assert got[i, 0] == got[i, 3] == same
        assert (got[i, 1], got[i, 2]) == (0xFFFFFFFF, 1)
        mine = [j for j in warp if j % 2 == i % 2]
        if i % 2:
            want = int(v[mine].sum()) & 0xFFFFFFFF, int(v[mine].max()) & 0xFFFFFFFF
        else:
            want = int(np.bitwise_xor.reduce(u[mine])), int(u[mine].min())
        assert (got[i, 4], got[i, 5]) == want
        assert got[i, 6] == np.bitwise_or.reduce(u[list(warp)])
        assert got[i, 7] == np.bitwise_and.reduce(u[list(warp)])


def test_shuffle_waits_for_lanes_that_come_later() -> None:
    """Half a warp reaches the shuffle first; the others loop longer. All must meet."""
    source = """extern "C" __global__ void kernel(int* o) {
  int x = threadIdx.x;
  for (int k = 0; k < (threadIdx.x & 7); k++) x = x * 3 + 1;
  o[threadIdx.x] = __shfl_sync(0xffffffff, x, 31 - threadIdx.x);
}"""
    got = run(source, [np.zeros(32, I)]).arrays[0]

    def value(t: int) -> int:
        x = t
        for _ in range(t & 7):
            x = x * 3 + 1
        return x

    assert got.tolist() == [value(31 - t) for t in range(32)]


def test_missing_member_is_a_fault_with_its_lanes() -> None:
    source = """extern "C" __global__ void kernel(int* o) {
  if (threadIdx.x < 20)
    o[threadIdx.x] = __shfl_sync(0xffffffff, threadIdx.x, 3);
  else
    while (((volatile int*)o)[40] == 0) {}
}"""
    with pytest.raises(Exception) as caught:
        run(source, [np.zeros(64, I)], budget=20_000)
    assert type(caught.value).__name__ == "KernelTimeoutError"
    source = source.replace(
        "while (((volatile int*)o)[40] == 0) {}", "o[50] = __shfl_sync(0xffffffff, 1, 3);"
    )
    with pytest.raises(FaultError) as caught:
        run(source, [np.zeros(64, I)])
    assert caught.value.details["fault"] == "warp_divergence"
    assert caught.value.details["line"] == 3
    assert caught.value.details["missing_lanes"] == list(range(20, 32))


@pytest.mark.parametrize(
    "call",
    ["__syncwarp(0x7f)", "v = __shfl_sync(0x7f, v, 3)", "v = __ballot_sync(0x7f, v)",
     "v = __match_any_sync(0x7f, v)", "v = __reduce_add_sync(0x7f, v)"],
)  # fmt: skip
@pytest.mark.parametrize("lanes", [8, 64])
def test_a_lane_outside_its_own_mask_is_a_fault(call: str, lanes: int) -> None:
    source = f"""extern "C" __global__ void kernel(int* o) {{
  unsigned v = threadIdx.x;
  if (v < {lanes})
    {call};
  o[threadIdx.x] = v;
}}"""
    with pytest.raises(FaultError, match="0x0000007f does not name") as caught:
        run(source, [np.zeros(64, I)])
    told = caught.value.details
    assert (told["fault"], told["line"], told["thread"]) == ("warp_divergence", 4, [7, 0, 0])
    assert told["lane"] == 7
    run(source.replace("0x7f", f"{2 ** min(lanes, 32) - 1:#x}u"), [np.zeros(64, I)])


def test_exited_lanes_are_not_waited_for() -> None:
    source = """extern "C" __global__ void kernel(int* o) {
  if (threadIdx.x >= 20) return;
  o[threadIdx.x] = __reduce_add_sync(0xfffff, threadIdx.x);
}"""
    assert np.all(run(source, [np.zeros(20, I)]).arrays[0] == 190)


ATOMICS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("atomicAdd", lambda o, v: o + v),
    "sub": ("atomicSub", lambda o, v: o - v),
    "min": ("atomicMin", min),
    "max": ("atomicMax", max),
    "and": ("atomicAnd", lambda o, v: o & v),
    "or": ("atomicOr", lambda o, v: o | v),
    "xor": ("atomicXor", lambda o, v: o ^ v),
    "exch": ("atomicExch", lambda o, v: v),
    "inc": ("atomicInc", lambda o, v: 0 if o >= v else o + 1),
    "dec": ("atomicDec", lambda o, v: v if o == 0 or o > v else o - 1),
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_are_sequential_in_lane_order(name: str, space: str) -> None:
    call, step = ATOMICS[name]
    where = "(cells + 8 * blockIdx.x)" if space == "global" else "own"
    source = f"""extern "C" __global__ void kernel(unsigned* cells, const int* at,
                                  const unsigned* v, unsigned* old) {{
  __shared__ unsigned own[8];
  if (threadIdx.x < 8) own[threadIdx.x] = cells[blockIdx.x * 8 + threadIdx.x];
  __syncthreads();
  int i = blockIdx.x * 64 + threadIdx.x;
  if (at[i] >= 0) old[i] = {call}(&{where}[at[i]], v[i]);
  __syncthreads();
  if ({int(space == "shared")} && threadIdx.x < 8)
    cells[blockIdx.x * 8 + threadIdx.x] = own[threadIdx.x];
}}"""
    rng = np.random.default_rng(3)
    cells = rng.integers(0, 9, 24).astype(U)
    at = rng.integers(-1, 8, 192).astype(I)
    v = rng.integers(0, 12, 192).astype(U)
    got = run(source, [cells, at, v, np.zeros(192, U)], grid=(3,), block=(64,)).arrays
    model, old = cells.tolist(), [0] * 192
    for i in range(192):
        if at[i] >= 0:
            cell = i // 64 * 8 + int(at[i])
            old[i] = model[cell]
            model[cell] = step(model[cell], int(v[i])) & 0xFFFFFFFF
    assert got[0].tolist() == model
    assert got[3].tolist() == old


def test_float_double_long_and_half_atomics() -> None:
    source = """#include <cuda_fp16.h>
extern "C" __global__ void kernel(float* f, double* d, unsigned long long* q, __half2* h,
                                  const float* x) {
  __shared__ unsigned long long s;
  if (threadIdx.x == 0) s = 5;
  __syncthreads();
  int i = threadIdx.x;
  atomicAdd(&f[i % 3], x[i]); atomicAdd(d, (double)x[i]); atomicAdd(&s, (1ull << 40) + i);
  atomicMax(&q[1], (unsigned long long)i << 33);
  atomicAdd(h, __floats2half2_rn(x[i], 1.0f));
  atomicCAS(&q[2], (unsigned long long)i, (unsigned long long)i + 1);
  __syncthreads();
  if (i == 0) q[0] = s;
}"""
    x = np.random.default_rng(4).standard_normal(64).astype(F)
    args = [np.zeros(3, F), np.zeros(1), np.zeros(3, np.uint64), np.zeros(2, np.float16), x]
    f, d, q, h, _ = run(source, args, block=(64,)).arrays
    for k in range(3):
        total = F(0)
        for v in x[k::3]:
            total = F(total + v)
        assert f[k] == total
    wide, half, ones = 0.0, np.float16(0), np.float16(0)
    for v in x:
        wide += float(v)
        half = np.float16(half + np.float16(v))
        ones = np.float16(ones + np.float16(1))
    assert d[0] == wide
    assert (h[0], h[1]) == (half, ones)
    assert q.tolist() == [5 + 64 * (1 << 40) + 64 * 63 // 2, 63 << 33, 64]


def test_global_float_atomics_flush_subnormals_and_shared_ones_do_not() -> None:
    source = """extern "C" __global__ void kernel(float* a, float* b) {
  __shared__ float s;
  s = 0; __syncthreads();
  if (threadIdx.x < 1) { atomicAdd(a, 1e-40f); atomicAdd(&s, 1e-40f); }
  __syncthreads();
  b[0] = s;
}"""
    a, b = run(source, [np.zeros(1, F), np.zeros(1, F)]).arrays
    assert a[0] == 0
    assert b[0] == F(1e-40)
