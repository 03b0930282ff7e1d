"""The real card: what only hardware can show. Skipped, with the reason, where there is none."""

import json
import subprocess
import sys

import numpy as np
import pytest
from runtime_card import CONNECTION, ONE, PAIR, SIZED, run, source

from gpulab.errors import DeviceMissingError, UsageError
from gpulab.registry import LaunchPlan, NumbaBuild, Param
from gpulab.runtime import nvrtc, resources, sources
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.device import PtxBuild

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def card(store):
    return CudaDevice(connection=CONNECTION, store=store)


@pytest.fixture
def raw(tmp_path):
    return lambda text: source(tmp_path, text)


def test_ptxas_speaks_although_the_driver_has_the_code_already(card):
    """Two kernels of one source are one cubin to the driver's compute cache."""
    text = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 3.0f; }\n'
    text += text.replace("void k(", "void l(")
    for entry in ("k", "l", "k"):
        made = nvrtc.compile_text(text, "two.cu", entry, card.capability)
        assert resources.parse(made.log, made.lowered).registers > 0


def test_float32_subnormals_survive(card, raw):
    function = card.build(
        raw('extern "C" __global__ void k(const float* x, float* y)'
            "{ int i = threadIdx.x; y[i] = x[i] + x[i]; }"), PAIR,
    )  # fmt: skip
    x = np.full(32, 3e-42, np.float32)
    y = run(card, function, ONE, x)
    assert np.all(y == x + x)
    assert np.all(y > 0)


def test_nothing_is_contracted(card, raw):
    """(1 + 2^-12)^2 - (1 + 2^-11): 0 with two roundings, 2^-24 fused."""
    function = card.build(
        raw('extern "C" __global__ void k(const float* x, float* y)'
            "{ int i = threadIdx.x; y[i] = x[i] * x[i] - 1.00048828125f; }"), PAIR,
    )  # fmt: skip
    x = np.full(32, 1 + 2.0**-12, np.float32)
    assert np.all(run(card, function, ONE, x) == 0.0)


def test_half_products_are_not_contracted(card, raw):
    """(1 + 2^-6)^2 - (1 + 2^-5) in fp16: 0 with two roundings, 2^-12 fused."""
    params = (Param("x", "in", "fp16", ("n",)), Param("y", "out", "fp16", ("n",)))
    function = card.build(
        raw('#include <cuda_fp16.h>\nextern "C" __global__ void k(const __half* x, __half* y)'
            "{ int i = threadIdx.x; y[i] = __hsub(__hmul(x[i], x[i]), __half(1.03125f)); }"),
        params,
    )  # fmt: skip
    x = np.full(32, 1 + 2.0**-6, np.float16)
    assert np.all(run(card, function, ONE, x) == 0.0)


def test_all_the_shared_memory_of_a_block(card, raw):
    """227 KiB on sm_90: asked for by attribute, written and read to the last byte."""
    from gpulab import arch

    nbytes = arch.get(card.capability).shared_per_block_bytes
    function = card.build(
        raw("""extern "C" __global__ void k(const float* x, float* y, int n) {
            extern __shared__ float tile[];
            for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[n - 1 - i];
        }"""), SIZED,
    )  # fmt: skip
    x = np.arange(nbytes // 4, dtype=np.float32)
    y = run(card, function, LaunchPlan((1, 1, 1), (256, 1, 1), nbytes), x, x.size)
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(UsageError, match="shared memory"):
        run(card, function, LaunchPlan((1, 1, 1), (256, 1, 1), nbytes + 4), x, x.size)


def test_an_empty_grid_writes_nothing(card, raw):
    function = card.build(
        raw('extern "C" __global__ void k(const float* x, float* y) { y[0] = 1.0f; }'), PAIR
    )
    y = run(card, function, LaunchPlan((0, 1, 1), (32, 1, 1)), np.zeros(32, np.float32))
    assert set(y.view(np.uint8)) == {0xA5}


def test_the_driver_says_how_many_clusters_fit(card, raw):
    """Each block of a persistent launch counts itself: whole clusters, no more than fit."""
    if card.capability < (9, 0):
        pytest.skip("clusters need sm_90")
    function = card.build(
        raw('extern "C" __global__ void __cluster_dims__(8) k(float* y)'
            "{ if (threadIdx.x == 0) atomicAdd(y, 1.0f); }"), PAIR[1:],
    )  # fmt: skip
    y = card.upload(np.zeros(1, np.float32), "y")
    plan = LaunchPlan((8 * 4096, 1, 1), (128, 1, 1), persistent=True, cluster=8)
    card.launch(function, plan, [y])
    card.synchronize()
    clusters, left = divmod(int(card.download(y)[0]), 8)
    assert left == 0
    assert 1 <= clusters <= card.multiprocessors // 8


def test_scalars_of_every_width_arrive_exactly(card, raw):
    params = (
        Param("y", "out", "fp32", ("n",)),
        Param("a", "scalar", "fp32"),
        Param("b", "scalar", "fp16"),
        Param("c", "scalar", "int8"),
        Param("n", "dim", "int32"),
    )
    function = card.build(
        raw("""#include <cuda_fp16.h>
        extern "C" __global__ void k(float* y, float a, __half b, signed char c, int n) {
            y[0] = a; y[1] = float(b); y[2] = c; y[3] = n;
        }"""), params,
    )  # fmt: skip
    y = card.empty((2**20 + 1,), np.dtype("f4"))
    card.launch(function, ONE, [y, 0.1, 0.1, -128, 2**20 + 1])
    got = card.download(y)[:4]
    assert list(got) == [np.float32(0.1), np.float32(np.float16(0.1)), -128.0, 2**20 + 1]


def test_out_of_memory_says_what_is_needed_and_free(card):
    free, total = CONNECTION.cupy.cuda.runtime.memGetInfo()
    with pytest.raises(DeviceMissingError) as caught:
        card.empty((total,), np.dtype("f4"), name="matrix A")
    assert caught.value.details["needed_bytes"] == 4 * total
    assert 0 < caught.value.details["free_bytes"] <= total
    assert f"needs {4 * total} bytes" in caught.value.message
    # The card is as usable as before.
    np.testing.assert_array_equal(card.download(card.upload(np.arange(5))), np.arange(5))
    assert free > 0


@pytest.mark.parametrize(
    ("kind", "count"), [("u1", 7), ("u2", 13), ("f4", 5), ("f4", 6), ("u8", 3)]
)
def test_bits_are_compared_on_the_card(card, kind, count):
    """In words of 1 to 8 bytes; a NaN equals itself, one other bit at the end does not."""
    host = np.arange(count).astype(kind)
    host[0] = np.nan if kind == "f4" else host[0]
    other = host.copy()
    other[-1:].view(np.uint8)[-1] ^= 1
    assert card.same(card.upload(host), card.upload(host.copy()))
    assert not card.same(card.upload(host), card.upload(other))


CHILD = """
import json, sys
import numpy as np
from gpulab.errors import GpulabError
from gpulab.registry import LaunchPlan, Param, RawBuild
from gpulab.runtime.cuda import CudaDevice
card = CudaDevice()
params = (Param("x", "in", "fp32", ("n",)), Param("y", "out", "fp32", ("n",)))
function = card.build(RawBuild(sys.argv[1], "k"), params)
x, y = card.upload(np.zeros(32, np.float32)), card.empty((32,), np.dtype("f4"))
errors = []
for _ in range(2):
    try:
        card.launch(function, LaunchPlan((1, 1, 1), (32, 1, 1)), [x, y])
        card.synchronize()
    except GpulabError as error:
        errors.append(error.to_json())
print(json.dumps(errors))
"""


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("y[1ll << 40] = x[0];", "out_of_bounds"),
        ("*(float*)((char*)y + 2) = x[0];", "misaligned"),
        ("__trap();", "crash|illegal_instruction"),
    ],
)
def test_a_fault_in_a_child_process(raw, statement, fault):
    """The context dies with it, so a process of its own; the parent's card stays usable."""
    build = raw(f'extern "C" __global__ void k(const float* x, float* y) {{ {statement} }}')
    done = subprocess.run(
        [sys.executable, "-c", CHILD, build.source],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=sources.root().parent,
    )
    errors = json.loads(done.stdout.strip().splitlines()[-1])
    assert [e["exit_code"] for e in errors] == [6, 6]
    assert errors[0]["fault"] in fault.split("|")
    assert errors[1]["fault"] == "context_dead"
    assert "start a new process" in errors[0]["message"]


# -- Numba -----------------------------------------------------------------------------------------


def numba_square():
    from numba import cuda

    def kernel(x, y, n):
        i = cuda.grid(1)
        if i < n:
            y[i] = x[i] * x[i] + x[i]

    return kernel


@pytest.mark.parametrize("format_", ["fp32", "fp16"])
def test_numbas_launch_and_ours_give_the_same_bits(card, store, format_):
    params = (
        Param("x", "in", format_, ("n",)),
        Param("y", "out", format_, ("n",)),
        Param("n", "dim", "int32"),
    )
    ours = CudaDevice(connection=CONNECTION, store=store, numba_launch=False)
    rng = np.random.Generator(np.random.PCG64(1))
    x = rng.standard_normal(1000).astype(params[0].dtype)
    plan = LaunchPlan((8, 1, 1), (128, 1, 1))
    build = NumbaBuild(numba_square, f"square {format_}")
    results = [run(d, d.build(build, params), plan, x, x.size) for d in (card, ours)]
    assert results[0].tobytes() == results[1].tobytes()
    # Two roundings an element, as written: no contraction on the card either.
    want = (x * x).astype(x.dtype) + x
    assert results[0].tobytes() == want.astype(x.dtype).tobytes()


def test_a_numba_kernel_sees_two_dims(card):
    def make():
        from numba import cuda

        def kernel(x, y, m, n):
            i, j = cuda.grid(2)
            if i < m and j < n:
                y[j, i] = x[i, j]

        return kernel

    params = (
        Param("x", "in", "bf16", ("m", "n")),
        Param("y", "out", "bf16", ("n", "m")),
        Param("m", "dim", "int32"),
        Param("n", "dim", "int32"),
    )
    x = np.arange(5 * 7, dtype=np.uint16).reshape(5, 7)
    sent, got = card.upload(x), card.empty((7, 5), np.dtype(np.uint16))
    function = card.build(NumbaBuild(make, "transpose"), params)
    card.launch(function, LaunchPlan((1, 1, 1), (8, 8, 1)), [sent, got, 5, 7])
    np.testing.assert_array_equal(card.download(got), x.T)


# -- targets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [(7, 5), (8, 0), (8, 6), (8, 9)])
def test_code_of_an_older_target_runs(store, raw, target):
    if target >= CONNECTION.card.capability:
        pytest.skip(f"{target} is not below the card's capability")
    card = CudaDevice(connection=CONNECTION, store=store, target=target)
    text = """extern "C" __global__ void k(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] * ARCH;
    }""".replace("ARCH", "(__CUDA_ARCH__ / 10)")
    function = card.build(raw(text), SIZED)
    x = np.ones(100, np.float32)
    y = run(card, function, LaunchPlan((4, 1, 1), (32, 1, 1)), x, 100)
    assert set(y) == {10.0 * target[0] + target[1]}
    assert card.name.endswith(f"running sm_{target[0]}{target[1]} code")


def test_foreign_ptx_runs(card):
    made = nvrtc.compile_text(
        'extern "C" __global__ void k(const float* x, float* y)'
        "{ y[threadIdx.x] = -x[threadIdx.x]; }",
        "/k.cu", "k", (7, 5), cubin=False,
    )  # fmt: skip
    x = np.arange(32, dtype=np.float32)
    y = run(card, card.build(PtxBuild(made.ptx, "k"), PAIR), ONE, x)
    np.testing.assert_array_equal(y, -x)


def test_what_the_driver_says_agrees_with_ptxas(card, raw):
    function = card.build(
        raw("""extern "C" __global__ void __launch_bounds__(128) k(const float* x, float* y) {
            __shared__ float tile[128];
            tile[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            y[threadIdx.x] = tile[127 - threadIdx.x];
        }"""), PAIR,
    )  # fmt: skip
    kernel, used = function.handle[1], function.resources
    assert used.registers == kernel.num_regs
    # Where the system reserves a KiB of each block's memory the driver may count it in.
    assert kernel.shared_size_bytes - used.shared_bytes in (0, 1024)
    assert used.stack_bytes == kernel.local_size_bytes
    assert used.max_threads_per_block == kernel.max_threads_per_block
