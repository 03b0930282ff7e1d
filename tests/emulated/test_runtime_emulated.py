"""The emulated device behind the common interface."""

import numpy as np
import pytest

from gpulab.errors import BuildError, FaultError, KernelTimeoutError, UsageError
from gpulab.registry import LaunchPlan, NumbaBuild, Param, RawBuild
from gpulab.runtime import nvrtc
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda_clock import clock_of
from gpulab.runtime.device import POISONS, PtxBuild
from gpulab.runtime.emulated import EmulatedDevice

SCALE = """
extern "C" __global__ void scale(const float* x, float* y, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * factor;
}
"""
PARAMS = (
    Param("x", "in", "fp32", ("n",)),
    Param("y", "out", "fp32", ("n",)),
    Param("n", "dim", "int32"),
    Param("factor", "scalar", "fp32"),
)
N = 77
PLAN = LaunchPlan((3, 1, 1), (32, 1, 1))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    return str(path)


def run(device, build, n=N, plan=PLAN):
    x = (np.arange(n) - 20).astype(np.float32)
    sent, got = device.upload(x, "x"), device.empty((n,), np.dtype(np.float32), name="y")
    device.launch(device.build(build, PARAMS), plan, [sent, got, n, 1.5])
    result = device.download(got)
    device.free(sent, got)
    np.testing.assert_array_equal(result, x * np.float32(1.5))


def test_a_raw_kernel(store, source):
    device = EmulatedDevice((8, 6), store=store)
    run(device, RawBuild(source, "scale"))
    function = device.build(RawBuild(source, "scale"), PARAMS)
    assert function.resources.registers > 0
    assert function.entry == "scale"
    assert ".target sm_86" in function.ptx
    assert device.name == "emulated sm_86"


def test_foreign_ptx(store):
    made = nvrtc.compile_text(SCALE, "/scale.cu", "scale", (7, 5))
    device = EmulatedDevice((8, 9), store=store)
    run(device, PtxBuild(made.ptx, made.lowered))


def numba_scale():
    from numba import cuda

    def scale(x, y, n, factor):
        i = cuda.grid(1)
        if i < n:
            y[i] = x[i] * factor

    return scale


def test_a_numba_kernel(store):
    run(EmulatedDevice(store=store), NumbaBuild(numba_scale, "scale"))


def test_code_of_an_older_target(store, source):
    device = EmulatedDevice((9, 0), target=(7, 5), store=store)
    run(device, RawBuild(source, "scale"))
    assert ".target sm_75" in device.build(RawBuild(source, "scale"), PARAMS).ptx
    assert device.name == "emulated sm_90 running sm_75 code"
    assert (device.capability, device.target) == ((9, 0), (7, 5))


def test_unknown_capabilities_and_targets_are_refused():
    with pytest.raises(UsageError, match=r"no capability 7\.0") as caught:
        EmulatedDevice((7, 0))
    assert "7.5, 8.0" in caught.value.fix
    with pytest.raises(UsageError, match="does not run"):
        EmulatedDevice((8, 0), target=(8, 9))


def test_outputs_are_poisoned_and_count_as_unwritten(store, source):
    device = EmulatedDevice(store=store)
    out = device.empty((N,), np.dtype(np.float32))
    assert set(device.download(out).view(np.uint8)) == {POISONS[0]}
    device.refill(out, POISONS[1])
    assert set(device.download(out).view(np.uint8)) == {POISONS[1]}
    function = device.build(RawBuild(source, "scale"), PARAMS)
    again = device.empty((N,), np.dtype(np.float32))
    with pytest.raises(FaultError) as caught:
        device.launch(function, PLAN, [out, again, N, 1.0])
    assert caught.value.details["fault"] == "uninitialised"
    assert caught.value.details["line"] == 4


def test_a_fault_names_the_array_and_the_line(store, tmp_path):
    path = tmp_path / "wild.cu"
    path.write_text(SCALE.replace("if (i < n) ", ""))
    device = EmulatedDevice(store=store)
    x = device.upload(np.zeros(N, np.float32), "x")
    y = device.empty((N,), np.dtype(np.float32), name="y")
    function = device.build(RawBuild(str(path), "scale"), PARAMS)
    with pytest.raises(FaultError) as caught:
        device.launch(function, PLAN, [x, y, N, 1.0])
    assert caught.value.details["fault"] == "out_of_bounds"
    assert caught.value.details["file"] == str(path)
    assert caught.value.details["line"] == 4


def test_a_runaway_kernel_stops(store, tmp_path):
    path = tmp_path / "spin.cu"
    path.write_text(
        'extern "C" __global__ void scale(const float* x, volatile float* y, int n, float f)'
        "{ while (true) y[0] = f; }\n"
    )
    device = EmulatedDevice(budget=1000, store=store)
    x, y = (device.upload(np.zeros(N, np.float32)) for _ in range(2))
    function = device.build(RawBuild(str(path), "scale"), PARAMS)
    with pytest.raises(KernelTimeoutError):
        device.launch(function, PLAN, [x, y, N, 1.0])


def test_what_the_target_lacks_is_refused_at_build(store):
    """PTX that ptxas refuses is refused here too, although an interpreter could run it."""
    ptx = nvrtc.compile_text(
        'extern "C" __global__ void k() { asm volatile("cp.async.wait_all;"); }', "/k.cu", "k",
        (7, 5), cubin=False,
    ).ptx  # fmt: skip
    with pytest.raises(BuildError, match=r"cp\.async"):
        EmulatedDevice((7, 5), store=store).build(PtxBuild(ptx, "k"), ())


def test_variables_of_a_module_start_afresh_with_each_build(store, tmp_path):
    path = tmp_path / "count.cu"
    path.write_text(
        '__device__ int calls = 0;\nextern "C" __global__ void count(int* y) { y[0] = ++calls; }\n'
    )
    device = EmulatedDevice(store=store)
    y = device.empty((1,), np.dtype(np.int32))
    params = (Param("y", "out", "int32", ("one",)),)
    one = LaunchPlan((1, 1, 1), (1, 1, 1))
    first = device.build(RawBuild(str(path), "count"), params)
    seen = []
    for function in (first, first, device.build(RawBuild(str(path), "count"), params)):
        device.launch(function, one, [y])
        seen.append(int(device.download(y)[0]))
    assert seen == [1, 2, 1]


def test_a_program_is_loaded_again_only_where_it_names_a_variable(store, tmp_path):
    """The constants of C++ templates are variables of the PTX that no instruction names."""
    path = tmp_path / "two.cu"
    path.write_text(
        "template <int N> struct Tile { static constexpr int kCount = N; };\n"
        "__device__ int calls = 0;\n"
        'extern "C" __global__ void quiet(int* y) { y[0] = Tile<3>::kCount; }\n'
        'extern "C" __global__ void count(int* y) {\n'
        "  if (threadIdx.x == 0) y[0] = atomicAdd(&calls, 1); }\n"
    )
    device = EmulatedDevice(store=store)
    params = (Param("y", "out", "int32", ("one",)),)
    for entry, source in (("quiet", "two.cu"), ("count", "two.cu"), ("quiet", "quiet.cu")):
        if source == "quiet.cu":
            text = path.read_text()
            (tmp_path / source).write_text(text[: text.index('extern "C" __global__ void count')])
        requests = [device.build(RawBuild(str(tmp_path / source), entry), params) for _ in "12"]
        first, again = (request.handle[1] for request in requests)
        assert first.addresses, "a variable that could be named"
        assert (first is again) == (source == "quiet.cu")


def test_downloads_are_copies(store):
    device = EmulatedDevice(store=store)
    sent = device.upload(np.arange(6, dtype=np.uint16).reshape(2, 3))
    first = device.download(sent)
    first[:] = 0
    np.testing.assert_array_equal(device.download(sent), np.arange(6).reshape(2, 3))


def test_rows_are_repeated(store):
    device, host = EmulatedDevice(store=store), np.arange(15, dtype=np.uint16).reshape(3, 5)
    sent = device.upload(host, "x", 8)
    np.testing.assert_array_equal(device.download(sent), np.resize(host, (8, 5)))
    assert device.holds(sent, host)
    assert not device.holds(sent, host + np.uint16(1))
    last = device.part(sent, 7, 8)
    np.testing.assert_array_equal(device.download(last), host[1:2])
    device.machine.write(last.handle, np.zeros(5, np.uint16))
    assert not device.holds(sent, host)


def test_arrays_without_elements(store):
    device = EmulatedDevice(store=store)
    sent = device.upload(np.zeros((0, 3), np.float32))
    got = device.empty((2, 0), np.dtype(np.uint8))
    device.refill(got, POISONS[1])
    assert (device.download(sent).shape, device.download(got).shape) == ((0, 3), (2, 0))
    device.free(sent, got)


def test_it_runs_no_libraries(store):
    with pytest.raises(UsageError, match="library row"):
        EmulatedDevice(store=store).bind_library("cublas fp32", lambda: None, ())


def test_it_has_no_gpu_time(store):
    with pytest.raises(UsageError, match="no GPU time"):
        clock_of(EmulatedDevice(store=store))
