"""Control flow: divergence, loops, calls, switches, barriers, spinning, budgets, printf."""

from __future__ import annotations

import numpy as np
import pytest
from cudacase import run

from gpulab.emulator.machine import Machine
from gpulab.errors import BuildError, FaultError, KernelTimeoutError, UsageError

F, I = np.float32, np.int32


@pytest.mark.parametrize("block", [(32,), (50,), (7, 3, 2), (1,)])
def test_collatz_lengths_diverge(block: tuple[int, ...]) -> None:
    source = """extern "C" __global__ void kernel(int* out, int n) {
  int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int i = blockIdx.x * blockDim.x * blockDim.y * blockDim.z + t;
  if (i >= n) return;
  unsigned x = i + 1; int steps = 0;
  while (x != 1) { if (x & 1) x = 3 * x + 1; else x >>= 1; steps++; }
  out[i] = steps;
}"""
    n = 300
    threads = int(np.prod(block))
    got = run(source, [np.zeros(n, I), n], grid=(-(-n // threads),), block=block).arrays[0]

    def length(x: int) -> int:
        steps = 0
        while x != 1:
            x = 3 * x + 1 if x % 2 else x // 2
            steps += 1
        return steps

    assert got.tolist() == [length(i + 1) for i in range(n)]


def test_chunks_of_blocks_give_the_same_result() -> None:
    source = """extern "C" __global__ void kernel(float* a) {
  __shared__ float t[64];
  t[threadIdx.x] = blockIdx.x + blockIdx.y * 10.0f; __syncthreads();
  a[(blockIdx.y * gridDim.x + blockIdx.x) * 64 + threadIdx.x] = t[63 - threadIdx.x] + threadIdx.x;
}"""
    one = run(source, [np.zeros(64 * 15, F)], grid=(5, 3), block=(64,)).arrays[0]
    two = run(source, [np.zeros(64 * 15, F)], grid=(5, 3), block=(64,), lanes=128).arrays[0]
    by, bx, t = np.meshgrid(np.arange(3), np.arange(5), np.arange(64), indexing="ij")
    assert np.array_equal(one, (bx + 10 * by + t).ravel())
    assert np.array_equal(one, two)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (12, 0)])
def test_switch_calls_structs_and_function_scope(capability: tuple[int, int]) -> None:
    source = """struct S { float a[3]; double d; char c; };
__device__ __noinline__ S change(S s, int4 q) { s.a[1] += q.x; s.c += q.w; return s; }
__device__ __noinline__ int pick(int n) {
  switch (n) { case 0: return 10; case 1: return 21; case 2: return 32; case 3: return 5;
               case 4: return 77; case 5: return 1; case 6: return 9; default: return -1; }
}
__device__ __noinline__ void out2(int* a, int* b, int v) { *a = v + 1; *b = v * 2; }
extern "C" __global__ void kernel(S s, float* o, int* p) {
  int i = threadIdx.x, x, y;
  S r = change(s, make_int4(i, 1, 2, 3));
  o[i] = r.a[0] + r.a[1] + r.a[2] + r.d + r.c;
  if (i & 1) out2(&x, &y, i); else out2(&y, &x, -i);
  p[i] = pick(i % 9) + 100 * x + 10000 * y;
}"""
    record = np.zeros(1, [("a", "f4", 3), ("pad", "u4"), ("d", "f8"), ("c", "i1"), ("e", "u1", 7)])
    record["a"], record["d"], record["c"] = [1, 2, 3], 0.5, 7
    got = run(source, [record[0], np.zeros(32, F), np.zeros(32, I)], capability=capability).arrays
    i = np.arange(32)
    assert np.array_equal(got[0], 1 + 2 + i + 3 + 0.5 + 10)
    table = np.array([10, 21, 32, 5, 77, 1, 9, -1, -1])[i % 9]
    x = np.where(i & 1, i + 1, -2 * i)
    y = np.where(i & 1, 2 * i, -i + 1)
    assert np.array_equal(got[1], table + 100 * x + 10000 * y)


def test_recursion_is_refused_by_name() -> None:
    source = """__device__ __noinline__ int fib(int n) {
  return n < 2 ? n : fib(n - 1) + fib(n - 2);
}
extern "C" __global__ void kernel(int* o) { o[0] = fib(o[1]); }"""
    with pytest.raises(BuildError, match="recursive"):
        run(source, [np.zeros(2, I)])


def test_unknown_instruction_stops_at_load_with_text_and_line() -> None:
    source = """extern "C" __global__ void kernel(unsigned* o) {
  unsigned x = o[0];
  asm volatile("vadd4.u32.u32.u32 %0, %0, %0, %0;" : "+r"(x));
  o[0] = x;
}"""
    with pytest.raises(BuildError) as caught:
        run(source, [np.zeros(1, np.uint32)])
    assert "vadd4.u32.u32.u32" in str(caught.value)
    assert caught.value.details["line"] == 3


def test_unknown_modifier_stops() -> None:
    source = """extern "C" __global__ void kernel(float* o) {
  asm volatile("ld.global.L1::evict_never.f32 %0, [%1];" : "=f"(o[1]) : "l"(o));
}"""
    with pytest.raises(BuildError, match="evict_never"):
        run(source, [np.zeros(2, F)])


BARRIERS = """extern "C" __global__ void kernel(int* o, int n) {
  __shared__ int s;
  if (threadIdx.x == 0) s = 0;
  __syncthreads();
  if (threadIdx.x < n) {
    atomicAdd(&s, 1);
    __syncthreads();
  }
  o[threadIdx.x] = s;
}"""


def test_divergent_barrier_is_reported_with_its_line() -> None:
    assert np.all(run(BARRIERS, [np.zeros(64, I), 64], block=(64,)).arrays[0] == 64)
    for n in (1, 32, 63):
        with pytest.raises(FaultError) as caught:
            run(BARRIERS, [np.zeros(64, I), n], block=(64,))
        assert caught.value.details["fault"] == "barrier_divergence"
        assert caught.value.details["line"] == 7


def test_lanes_may_come_to_one_barrier_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another block loops for long, a group that was put off arrives after its warp."""
    monkeypatch.setattr("gpulab.emulator.executor.PATIENCE", 3)
    source = """extern "C" __global__ void kernel(int* o, const int* steps) {
  __shared__ int s[64];
  int sum = 0;
  for (int i = 0; i < steps[blockIdx.x]; ++i) {
    if (steps[i & 1] > 0) sum += steps[i & 1] ^ i;
  }
  s[threadIdx.x] = sum;
  if (threadIdx.x % 32 == 0) {
    for (int i = 0; i < 4; ++i) s[threadIdx.x] = s[threadIdx.x] * 3 % 1009 + steps[i & 1];
  }
  __syncthreads();
  o[64 * blockIdx.x + threadIdx.x] = s[63 - threadIdx.x];
}"""
    for short in range(1, 12):
        steps = np.array([short, 60], I)
        got = run(source, [np.zeros(128, I), steps], grid=(2,), block=(64,)).arrays[0]
        for block in range(2):
            total = sum(int(steps[i & 1]) ^ i for i in range(steps[block]))
            want = np.full(64, total)
            for i in range(4):
                want[::32] = want[::32] * 3 % 1009 + steps[i & 1]
            assert np.all(got[64 * block : 64 * block + 64] == want[::-1])


def test_a_whole_block_may_leave_early() -> None:
    source = """extern "C" __global__ void kernel(int* o, int n) {
  __shared__ int s[32];
  if (blockIdx.x >= n) return;
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  o[blockIdx.x * 32 + threadIdx.x] = s[31 - threadIdx.x];
}"""
    got = run(source, [np.zeros(128, I), 3], grid=(4,)).arrays[0].reshape(4, 32)
    assert np.array_equal(got[:3], np.tile(np.arange(32)[::-1], (3, 1)))
    assert np.all(got[3] == 0)


def test_barrier_reductions() -> None:
    source = """extern "C" __global__ void kernel(int* o) {
  int i = blockIdx.x * 64 + threadIdx.x;
  int p = o[i];
  int c = __syncthreads_count(p), a = __syncthreads_and(p), b = __syncthreads_or(p);
  o[i] = c + 1000 * (a != 0) + 2000 * (b != 0);
}"""
    rng = np.random.default_rng(0)
    data = (rng.random((3, 64)) < 0.3).astype(I)
    data[1], data[2] = 1, 0
    got = run(source, [data], grid=(3,), block=(64,)).arrays[0]
    want = data.sum(1) + 1000 * data.all(1) + 2000 * data.any(1)
    assert np.array_equal(got, np.repeat(want[:, None], 64, 1))


def test_named_barriers_producer_and_consumer() -> None:
    source = """extern "C" __global__ void kernel(int* o) {
  __shared__ int s[32];
  if (threadIdx.x >= 32) {
    int j = threadIdx.x - 32;
    asm volatile("bar.sync 1, 64;" ::: "memory");
    o[j] = s[31 - j];
    asm volatile("bar.arrive 2, 64;" ::: "memory");
  } else {
    s[threadIdx.x] = 3 * threadIdx.x;
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    asm volatile("bar.sync 2, 64;" ::: "memory");
    o[32 + threadIdx.x] = o[threadIdx.x];
  }
}"""
    got = run(source, [np.zeros(64, I)], block=(64,)).arrays[0]
    assert np.array_equal(got[:32], 3 * np.arange(32)[::-1])
    assert np.array_equal(got[32:], got[:32])


def test_spin_lock_inside_a_warp_makes_progress() -> None:
    source = """extern "C" __global__ void kernel(int* lock, int* o) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      o[0] = o[0] + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}"""
    assert run(source, [np.zeros(1, I), np.zeros(1, I)], grid=(3,)).arrays[1][0] == 96


def test_spinning_below_the_code_that_frees_it_makes_progress() -> None:
    """The waiting loop comes first in program order: lowest-first alone would never leave it."""
    text = """.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(.param .u64 flag) {
  .reg .b64 %p; .reg .b32 %t, %v; .reg .pred %q, %r;
  ld.param.u64 %p, [flag]; mov.u32 %t, %tid.x; setp.eq.u32 %q, %t, 7;
  @%q bra FREE;
SPIN: ld.volatile.global.u32 %v, [%p]; setp.eq.u32 %r, %v, 0; @%r bra SPIN;
  bra DONE;
FREE: mov.u32 %v, 5; st.volatile.global.u32 [%p], %v;
DONE: ret;
}"""
    assert run("", [np.zeros(1, I)], text=text, budget=50_000).arrays[0][0] == 5


def test_waiting_for_another_block_makes_progress() -> None:
    source = """extern "C" __global__ void kernel(volatile int* flag, int* o) {
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) while (flag[0] == 0) {}
    __syncthreads();
    o[threadIdx.x] = flag[0];
  } else if (threadIdx.x == 0) { flag[0] = 42; }
}"""
    assert np.all(run(source, [np.zeros(1, I), np.zeros(32, I)], grid=(2,)).arrays[1] == 42)


def test_endless_loop_stops_at_the_budget_with_its_line() -> None:
    source = """extern "C" __global__ void kernel(volatile int* flag) {
  if (threadIdx.x == 3)
    while (flag[0] == 0) {
    }
}"""
    with pytest.raises(KernelTimeoutError) as caught:
        run(source, [np.zeros(1, I)], budget=20_000)
    assert caught.value.details["line"] == 3
    assert "case.cu:3" in str(caught.value)


def test_trap_and_assert() -> None:
    source = """extern "C" __global__ void kernel(int* o) {
  if (o[threadIdx.x] < 0)
    __trap();
}"""
    data = np.zeros(32, I)
    run(source, [data])
    data[17] = -1
    with pytest.raises(FaultError) as caught:
        run(source, [data])
    assert (caught.value.details["fault"], caught.value.details["line"]) == ("trap", 3)
    assert caught.value.details["thread"] == [17, 0, 0]


def test_printf() -> None:
    source = r"""extern "C" __global__ void kernel(float* x) {
  if (threadIdx.x < 2)
    printf("b%u t%d %5.2f|%-6s|%lld %x %c %% %e\n", blockIdx.x, threadIdx.x, x[threadIdx.x], "ab",
           -5000000000LL * (threadIdx.x + 1), 255, 'q', 1e10);
}"""
    printed = run(source, [np.array([1.5, -2.25], F)], grid=(2,)).printed
    want = [
        f"b{b} t{t} {v:5.2f}|ab    |{-5000000000 * (t + 1)} ff q % 1.000000e+10\n"
        for b in range(2)
        for t, v in enumerate((1.5, -2.25))
    ]
    assert printed == "".join(want)


def test_launch_shape_and_parameters_are_checked() -> None:
    source = 'extern "C" __global__ void __launch_bounds__(64) kernel(int* o, int n) { o[0] = n; }'
    with pytest.raises(UsageError, match="64 threads"):
        run(source, [np.zeros(1, I), 1], block=(65,))
    with pytest.raises(UsageError, match="2 parameters"):
        run(source, [np.zeros(1, I)])
    with pytest.raises(UsageError, match="4 bytes"):
        run(source, [np.zeros(1, I), np.int64(1)])
    with pytest.raises(UsageError, match="impossible"):
        run(source, [np.zeros(1, I), 1], grid=(0,))


def test_not_ptx() -> None:
    with pytest.raises(BuildError, match="PTX line 1"):
        Machine().load("int main() {}")
    with pytest.raises(BuildError):
        Machine().load("")


def test_inlined_lines_name_the_callers_chain() -> None:
    source = """__device__ inline void put(float* p, int i) {
  p[i] = 1;
}
extern "C" __global__ void kernel(float* a) {
  put(a, threadIdx.x);
}"""
    with pytest.raises(FaultError) as caught:
        run(source, [np.zeros(31, F)])
    assert caught.value.details["line"] == 2
    assert [line for _, line in caught.value.details["inlined_at"]] == [5]
