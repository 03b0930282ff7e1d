"""Timing on the real card: known durations, graphs, cold caches."""

import time

import numpy as np
import pytest
from runtime_card import CONNECTION, ONE, PAIR, SIZED, source

from gpulab.registry import LaunchPlan, NumbaBuild, Param
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.cuda_clock import clock_of
from gpulab.runtime.timing import Subject, rotation_sets, time_interleaved, time_kernel

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    return CudaDevice(connection=CONNECTION, store=Store(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def raw(tmp_path):
    return lambda text: source(tmp_path, text)


SPIN = """extern "C" __global__ void k(const float* x, float* y, int n) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < n);
    y[threadIdx.x] = x[threadIdx.x] + 1.0f;
}"""


def subject(card, function, numbers, sets=3, plan=ONE, count=32):
    x = [card.upload(np.full(count, i, np.float32)) for i in range(sets)]
    y = [card.empty((count,), np.dtype("f4")) for _ in range(sets)]
    bound = [card.bind(function, plan, [a, b, *numbers]) for a, b in zip(x, y, strict=True)]

    def verify(i):
        got = card.download(y[i])
        return None if np.all(got == i + 1) else f"got {got[:4]}"

    return Subject(
        lambda i: bound[i](), sets, 2 * 4 * count, lambda i: card.refill(y[i], 0x5A), verify
    )


def test_a_known_duration_is_measured(card, raw):
    """The kernel waits for the card's own nanosecond timer."""
    function = card.build(raw(SPIN), (*PAIR, Param("n", "scalar", "int32")))
    clock = clock_of(card)
    for microseconds in (200, 2000):
        measured = time_kernel(clock, subject(card, function, [microseconds * 1000]))
        assert measured.method == "events"
        assert measured.l2 == "flushed"
        # globaltimer advances in steps of up to about a microsecond, on some cards 32.
        assert measured.summary.median * 1000 == pytest.approx(microseconds, abs=40)
        assert measured.summary.median * 1000 > microseconds - 33
        assert measured.wrong == []
        assert measured.verified == 10
        assert measured.note == ""


def test_short_kernels_are_timed_as_a_graph(card, raw):
    function = card.build(
        raw('extern "C" __global__ void k(const float* x, float* y)'
            "{ y[threadIdx.x] = x[threadIdx.x] + 1.0f; }"), PAIR,
    )  # fmt: skip
    measured = time_kernel(clock_of(card), subject(card, function, []))
    assert measured.method == "graph", measured.note
    assert measured.launches >= 10
    assert 0.0003 < measured.summary.median < 0.02
    assert measured.wrong == []
    assert measured.summary.p90 >= measured.summary.median >= measured.summary.min


def test_numbas_launch_is_captured_too(card):
    def make():
        from numba import cuda

        def kernel(x, y):
            i = cuda.grid(1)
            y[i] = x[i] + 1

        return kernel

    measured = time_kernel(
        clock_of(card), subject(card, card.build(NumbaBuild(make, "add one"), PAIR), [])
    )
    assert measured.method == "graph", measured.note
    assert measured.summary.median < 0.02
    assert measured.wrong == []


def test_the_flush_makes_reads_cold(card, raw):
    """A sum over an array that fits the L2: a flushed run is slower than one in a warm batch."""
    function = card.build(
        raw("""extern "C" __global__ void k(const float* x, float* y, int n) {
            float sum = 0;
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
                sum += x[i];
            if (sum == -1.0f) y[0] = sum;
        }"""), SIZED,
    )  # fmt: skip
    clock = clock_of(card)
    n = clock.l2_bytes // 16
    x, y = card.upload(np.ones(n, np.float32)), card.empty((n,), np.dtype("f4"))
    launch = card.bind(function, LaunchPlan((264, 1, 1), (512, 1, 1)), [x, y, n])
    cold = []
    for _ in range(5):
        clock.flush()
        start = clock.record()
        launch()
        stop = clock.record()
        launch()
        again = clock.record()
        clock.synchronize()
        cold.append((clock.elapsed_ms(start, stop), clock.elapsed_ms(stop, again)))
    flushed, warm = np.median(np.array(cold), axis=0)
    assert flushed > 1.1 * warm
    assert rotation_sets(4 * n, clock.l2_bytes) == 8


def test_variants_take_turns_and_telemetry_is_read(card, raw):
    function = card.build(raw(SPIN), (*PAIR, Param("n", "scalar", "int32")))
    measured = time_interleaved(
        clock_of(card),
        {name: subject(card, function, [us * 1000]) for name, us in (("a", 100), ("b", 300))},
        runs=5,
    )
    assert measured["a"].summary.median < measured["b"].summary.median
    reading = measured["a"].after
    if reading.unavailable is not None:
        pytest.skip(f"no telemetry: {reading.unavailable}")
    assert 100 < reading.sm_clock_mhz < 4000


def test_work_on_another_stream_is_waited_for(card, raw):
    function = card.build(raw(SPIN), (*PAIR, Param("n", "scalar", "int32")))
    x, y = card.upload(np.zeros(32, np.float32)), card.empty((32,), np.dtype("f4"))
    addresses = (np.uint64(x.handle.data.ptr), np.uint64(y.handle.data.ptr))
    other = CONNECTION.cupy.cuda.Stream(non_blocking=True)
    begun = time.perf_counter()
    with other:
        function.handle[1]((1, 1, 1), (32, 1, 1), (*addresses, np.int32(50_000_000)))
    card.synchronize()
    assert time.perf_counter() - begun > 0.045
