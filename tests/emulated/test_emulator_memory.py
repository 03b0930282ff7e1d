"""Memory checks: every kind of illegal access is found, with line, thread, block and offset."""

from __future__ import annotations

import numpy as np
import pytest
from cudacase import ptx, run

from gpulab.emulator.machine import Machine
from gpulab.errors import FaultError, UsageError

N = 256
F = np.float32


def fault(source: str, *args: object, **options: object) -> FaultError:
    with pytest.raises(FaultError) as caught:
        run(source, args, **options)  # type: ignore[arg-type]
    return caught.value


def details(error: FaultError) -> tuple[object, ...]:
    d = error.details
    return d["fault"], d["space"], d["line"], tuple(d["thread"]), tuple(d["block"])


STORE = """extern "C" __global__ void kernel(float* a, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  a[i] = i;
}"""


def test_store_past_the_end_names_thread_block_line_and_offset() -> None:
    error = fault(STORE, np.zeros(150, F), 150, grid=(3,), block=(64,))
    assert details(error) == ("out_of_bounds", "global", 3, (22, 0, 0), (2, 0, 0))
    assert error.details["offset"] == 600
    assert error.details["allocation"] == "argument 0"
    assert error.details["lanes"] == 42
    assert error.details["file"].endswith("case.cu")
    assert "case.cu:3" in str(error)


def test_a_single_element_past_the_end() -> None:
    error = fault(STORE, np.zeros(191, F), 191, grid=(3,), block=(64,))
    assert error.details["lanes"] == 1
    assert error.details["offset"] == 764


def test_in_bounds_is_silent() -> None:
    (a,) = run(STORE, [np.zeros(192, F), 192], grid=(3,), block=(64,)).arrays
    assert np.array_equal(a, np.arange(192))


def test_load_before_the_start() -> None:
    source = """extern "C" __global__ void kernel(float* a, float* b) {
  b[threadIdx.x] =
      a[(int)threadIdx.x - 5];
}"""
    error = fault(source, np.zeros(32, F), np.zeros(32, F))
    assert details(error) == ("out_of_bounds", "global", 3, (0, 0, 0), (0, 0, 0))
    assert error.details["offset"] == -20


def test_guarded_lanes_may_hold_any_address() -> None:
    source = """extern "C" __global__ void kernel(float* a, float* b, int n) {
  int i = threadIdx.x * 100000;
  if (threadIdx.x < 1) b[0] = a[i] + 1;
}"""
    assert run(source, [np.ones(1, F), np.zeros(1, F), 1]).arrays[1][0] == 2


def test_null_and_integer_overflowed_pointers() -> None:
    source = """extern "C" __global__ void kernel(float* a) {
  a[threadIdx.x] = 1;
}"""
    assert details(fault(source, np.uint64(0)))[0] == "out_of_bounds"
    source = """extern "C" __global__ void kernel(float* a, int n) {
  int row = n + threadIdx.x;
  a[row * 65536] = 1;
}"""
    error = fault(source, np.zeros(64, F), 32767)
    assert details(error)[0] == "out_of_bounds"


def test_misaligned_vector_load() -> None:
    source = """extern "C" __global__ void kernel(const float* a, float4* b) {
  b[threadIdx.x] = *(const float4*)(a + threadIdx.x);
}"""
    error = fault(source, np.zeros(40, F), np.zeros(128, F))
    assert details(error) == ("misaligned", "global", 2, (1, 0, 0), (0, 0, 0))
    assert error.details["nbytes"] == 16


def test_shared_bounds_static_and_dynamic() -> None:
    source = """extern "C" __global__ void kernel(float* a, int n) {
  extern __shared__ float tile[];
  tile[threadIdx.x + n] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = tile[n + 31 - threadIdx.x];
}"""
    got = run(source, [np.arange(32, dtype=F), 3], shared=35 * 4).arrays[0]
    assert np.array_equal(got, np.arange(32)[::-1])
    error = fault(source, np.arange(32, dtype=F), 3, shared=34 * 4)
    assert details(error) == ("out_of_bounds", "shared", 3, (31, 0, 0), (0, 0, 0))
    assert error.details["offset"] == 34 * 4


def test_local_array_bounds() -> None:
    source = """extern "C" __global__ void kernel(float* a, int n) {
  float own[4];
  for (int i = 0; i < 4; i++) own[i] = a[i];
  own[n + 60] = 7;
  a[threadIdx.x] = own[n & 3];
}"""
    error = fault(source, np.zeros(32, F), 5)
    assert details(error)[:3] == ("out_of_bounds", "local", 4)


def test_uninitialised_global_is_per_byte_and_can_be_switched_off() -> None:
    source = """extern "C" __global__ void kernel(const float* a, float* b) {
  b[threadIdx.x] = a[threadIdx.x];
}"""
    error = fault(source, np.zeros(32, F), np.zeros(32, F), unwritten=(0,))
    assert details(error) == ("uninitialised", "global", 2, (0, 0, 0), (0, 0, 0))
    got = run(source, [np.zeros(32, F), np.zeros(32, F)], unwritten=(0,), track_uninitialised=False)
    assert np.all(got.arrays[1].view(np.uint32) == 0xA5A5A5A5)
    partly = """extern "C" __global__ void kernel(unsigned char* a, unsigned* b) {
  if (threadIdx.x < 31) a[4 * threadIdx.x + 1] = 1;
  a[4 * threadIdx.x] = 2; a[4 * threadIdx.x + 2] = 3; a[4 * threadIdx.x + 3] = 4;
  b[threadIdx.x] = *(unsigned*)(a + 4 * threadIdx.x);
}"""
    error = fault(partly, np.zeros(128, np.uint8), np.zeros(32, np.uint32), unwritten=(0,))
    assert details(error) == ("uninitialised", "global", 4, (31, 0, 0), (0, 0, 0))


def test_uninitialised_shared_after_a_partial_fill() -> None:
    source = """extern "C" __global__ void kernel(float* a) {
  __shared__ float tile[64];
  if (threadIdx.x < 40) tile[threadIdx.x] = 1;
  __syncthreads();
  a[threadIdx.x] = tile[63 - threadIdx.x];
}"""
    error = fault(source, np.zeros(64, F), block=(64,))
    assert details(error) == ("uninitialised", "shared", 5, (0, 0, 0), (0, 0, 0))
    whole = source.replace("threadIdx.x < 40", "true")
    assert np.all(run(whole, [np.zeros(64, F)], block=(64,)).arrays[0] == 1)


def test_uninitialised_shared_that_differs_between_blocks() -> None:
    source = """extern "C" __global__ void kernel(float* a) {
  __shared__ unsigned short tile[64];
  tile[(threadIdx.x + blockIdx.x) % 64] = 1;
  if (blockIdx.x == 2 && threadIdx.x == 9) a[0] = tile[63];
  a[threadIdx.x] = tile[(threadIdx.x + blockIdx.x) % 64];
}"""
    error = fault(source, np.zeros(64, F), grid=(4,), block=(32,))
    assert details(error) == ("uninitialised", "shared", 4, (9, 0, 0), (2, 0, 0))


def test_constant_memory_cannot_be_written() -> None:
    source = """__constant__ float table[4] = {1, 2, 3, 4};
extern "C" __global__ void kernel(float* a) {
  a[threadIdx.x] = table[threadIdx.x & 3];
  unsigned long long p;
  asm volatile("mov.u64 %0, %1;" : "=l"(p) : "l"(&table[1]));
  if (a[3] > 5) *(float*)p = 3;
}"""
    got = run(source, [np.zeros(32, F)]).arrays[0]
    assert np.array_equal(got, np.tile([1, 2, 3, 4], 8))
    error = fault(source.replace("> 5", "< 5"), np.zeros(32, F))
    assert error.details["fault"] == "read_only"


def test_some_lanes_store_to_constant_memory() -> None:
    source = """__constant__ float table[32];
extern "C" __global__ void kernel(float* a) {
  float* p = a + threadIdx.x;
  if (threadIdx.x == 7) asm volatile("mov.u64 %0, %1;" : "=l"(p) : "l"(&table[3]));
  *p = 1;
}"""
    error = fault(source, np.zeros(32, F))
    assert details(error) == ("read_only", "global", 5, (7, 0, 0), (0, 0, 0))
    assert error.details["lanes"] == 1


def test_generic_pointers_reach_every_space() -> None:
    source = """__device__ __noinline__ float twice(const float* p) { return *p * 2; }
extern "C" __global__ void kernel(float* a, float* b) {
  __shared__ float tile[32];
  float own[2] = {5, 6};
  tile[threadIdx.x] = 100 + threadIdx.x;
  const float* p = threadIdx.x % 3 == 0 ? a + threadIdx.x
                 : threadIdx.x % 3 == 1 ? tile + threadIdx.x : own + (threadIdx.x & 1);
  b[threadIdx.x] = twice(p);
}"""
    got = run(source, [np.arange(32, dtype=F), np.zeros(32, F)]).arrays[1]
    i = np.arange(32)
    assert np.array_equal(
        got, np.where(i % 3 == 0, 2 * i, np.where(i % 3 == 1, 200 + 2 * i, 10 + 2 * (i & 1)))
    )


def test_every_width_and_vector() -> None:
    source = """struct V {
  unsigned char b[2]; unsigned short h; unsigned w; unsigned long long q; };
extern "C" __global__ void kernel(const V* in, V* out, const int4* v4, int4* w4,
                                  const double2* d, double2* e,
                                  const short2* s, short2* t, const signed char* c, int* wide) {
  __shared__ V tile[32];
  __shared__ int4 fours[32];
  __shared__ double2 pairs[32];
  int i = threadIdx.x, j = 31 - i;
  tile[i] = in[i]; fours[i] = v4[i]; pairs[i] = d[i];
  __syncthreads();
  V x = tile[j];
  x.b[0] ^= 1;
  out[i] = x; w4[i] = fours[j]; e[i] = pairs[j]; t[i] = s[j]; wide[i] = c[j];
}"""
    rng = np.random.default_rng(0)
    raw = [rng.integers(0, 256, 32 * n, dtype=np.uint8) for n in (16, 16, 16, 4, 1)]
    v, v4, d, s, c = raw
    zero = [np.zeros_like(x) for x in (v, v4, d, s)]
    args = [v, zero[0], v4, zero[1], d, zero[2], s, zero[3], c, np.zeros(32, np.int32)]
    got = run(source, args).arrays
    want = v.reshape(32, 16)[::-1].copy()
    want[:, 0] ^= 1
    assert np.array_equal(got[1].reshape(32, 16), want)
    for i, x in ((3, v4), (5, d)):
        assert np.array_equal(got[i].reshape(32, 16), x.reshape(32, 16)[::-1])
    assert np.array_equal(got[7].reshape(32, 4), s.reshape(32, 4)[::-1])
    assert np.array_equal(got[9], c.view(np.int8)[::-1].astype(np.int32))


def test_guard_zone_is_verified_when_freed() -> None:
    machine = Machine()
    address = machine.alloc(100, "victim")
    machine.write(address, b"x" * 100)
    machine.memory.data[address - (0x7F << 40) + 100] = 0  # as a stray store would
    with pytest.raises(FaultError, match=r"guard zone after victim .* offset 100"):
        machine.free(address)
    other = machine.alloc(8, "clean")
    machine.free(other)
    with pytest.raises(UsageError):
        machine.free(other)


COPY = """extern "C" __global__ void kernel(const float* a, float* b) {
  b[threadIdx.x] = a[threadIdx.x];
}"""


@pytest.mark.parametrize("made", ["filled again", "allocated where another was"])
def test_what_was_valid_before_is_not_any_more(made: str) -> None:
    machine = Machine((8, 0))
    program = machine.load(ptx(COPY, (8, 0)))
    to = machine.alloc(128, "to")
    source = machine.alloc(128, "from")
    machine.write(source, np.ones(32, F))
    params = [np.uint64(x).tobytes() for x in (source, to)]
    machine.launch(program, "kernel", (1,), (32,), params)
    if made == "filled again":
        machine.fill(source, 128, 0xA5)
    else:
        machine.free(source)
        assert machine.alloc(128, "new") == source
    with pytest.raises(FaultError) as caught:
        machine.launch(program, "kernel", (1,), (32,), params)
    assert caught.value.details["fault"] == "uninitialised"


def test_freed_memory_is_guard_zone_again() -> None:
    machine = Machine()
    large = machine.alloc(4096, "large")
    machine.write(large, bytes(4096))
    machine.free(large)
    small = machine.alloc(16, "small")
    assert small == large
    machine.free(small)


def test_host_access_is_bounded() -> None:
    machine = Machine()
    address = machine.alloc(16, "a")
    with pytest.raises(UsageError):
        machine.write(address, b"x" * 17)
    with pytest.raises(UsageError):
        machine.read(address + 8, 9)


def test_use_after_free() -> None:
    machine = Machine((8, 0))
    program = machine.load(ptx(STORE, (8, 0)))
    address = machine.alloc(1024, "gone")
    machine.free(address)
    params = [np.uint64(address).tobytes(), np.int32(4).tobytes()]
    with pytest.raises(FaultError):
        machine.launch(program, "kernel", (1,), (32,), params)


def test_memory_is_reused_after_many_allocations() -> None:
    machine = Machine()
    for _ in range(200):
        kept = [machine.alloc(1 << 20, f"b{i}") for i in range(3)]
        for address in kept:
            machine.free(address)
    assert machine.memory.size < 16 << 20
