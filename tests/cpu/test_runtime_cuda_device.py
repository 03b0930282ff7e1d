"""The card's device over a fake CuPy: what it launches, and what it says when it goes wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import runtime_fakes
from runtime_fakes import CUDADriverError, CUDARuntimeError, FakeCupy

from gpulab.errors import (
    BuildError,
    DeviceMissingError,
    FaultError,
    KernelTimeoutError,
    UsageError,
)
from gpulab.registry import LaunchPlan, Param, RawBuild
from gpulab.runtime import nvjitlink, residency
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.numba_launch import NumbaKernel

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, int n, float factor) {
    extern __shared__ float dynamic[];
    __shared__ float tile[256];
    tile[threadIdx.x] = dynamic[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = tile[0] * dynamic[1] * factor;
}
"""
PARAMS = (
    Param("x", "in", "fp32", ("n",)),
    Param("y", "out", "fp32", ("n",)),
    Param("n", "dim", "int32"),
    Param("factor", "scalar", "fp32"),
)
PLAN = LaunchPlan((1, 1, 1), (8, 1, 1), 64)


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def make(cupy, tmp_path):
    def device(**options):
        connection = runtime_fakes.connection(cupy)
        return CudaDevice(connection=connection, store=Store(tmp_path / "cache"), **options)

    return device


@pytest.fixture
def card(make):
    return make()


@pytest.fixture
def request_(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    return RawBuild(str(path), "scale")


def arrays(card):
    return card.upload(np.arange(8, dtype=np.float32), "x"), card.empty((8,), np.dtype("f4"))


def test_a_launch_passes_exact_bytes_on_the_devices_stream(card, cupy, request_):
    x, y = arrays(card)
    function = card.build(request_, PARAMS)
    card.launch(function, PLAN, [x, y, 8, 0.1])
    name, grid, block, args, shared = cupy.launches[0]
    assert (name, grid, block, shared) == ("scale", (1, 1, 1), (8, 1, 1), 64)
    assert [type(a) for a in args] == [np.uint64, np.uint64, np.uint32, np.uint32]
    assert args[0] == x.handle.data.ptr
    assert args[2] == 8
    assert args[3].tobytes() == np.float32(0.1).tobytes()  # a double would be 8 other bytes
    assert card.stream.used
    assert cupy.streams == []


def test_devices_of_a_process_share_one_stream(make):
    one, other = make(), make(target=(7, 5))
    assert one.stream is other.stream
    assert one.driver == "580.65.06"


def test_the_cubin_of_the_card_is_loaded_from_the_cache(card, cupy, request_):
    function = card.build(request_, PARAMS)
    path, name = cupy.loaded[0]
    assert Path(path).read_bytes()[:4] == b"\x7fELF"
    assert name == "scale"
    assert ".target sm_90" in function.ptx
    assert function.resources.shared_bytes == 1024


def test_code_of_an_older_target_is_assembled_for_the_card(make, cupy, request_):
    own = make().build(request_, PARAMS)
    older = make(target=(7, 5)).build(request_, PARAMS)
    assert ".target sm_75" in older.ptx
    assert ".target sm_90" in own.ptx
    images = [Path(path).read_bytes() for path, _ in cupy.loaded]
    assert images[0] != images[1]
    assert images[1] == nvjitlink.assemble(older.ptx, "sm_90", major=13).image
    assert older.resources.registers > 0


def test_large_shared_memory_is_asked_for_before_the_launch(card, request_):
    x, y = arrays(card)
    function = card.build(request_, PARAMS)
    kernel = function.handle[1]
    card.launch(function, PLAN, [x, y, 8, 1.0])
    assert kernel.max_dynamic_shared_size_bytes == 47 * 1024
    # 48 KiB hold static and dynamic memory together.
    card.launch(function, LaunchPlan((1, 1, 1), (8, 1, 1), 49152), [x, y, 8, 1.0])
    assert kernel.max_dynamic_shared_size_bytes == 49152
    card.launch(function, LaunchPlan((1, 1, 1), (8, 1, 1), 226 * 1024), [x, y, 8, 1.0])
    assert kernel.max_dynamic_shared_size_bytes == 226 * 1024
    with pytest.raises(UsageError, match="allows 232448"):
        card.launch(function, LaunchPlan((1, 1, 1), (8, 1, 1), 227 * 1024), [x, y, 8, 1.0])


@pytest.mark.parametrize("cluster", [1, 8])
def test_a_persistent_numba_kernel_has_as_many_clusters_as_fit(
    card, cupy, request_, monkeypatch, cluster
):
    """Numba starts its own kernels; one with clusters is loaded, so that the driver can tell."""
    x, y = arrays(card)
    function = card.build(request_, PARAMS)
    started, asked = [], []

    class Stand(NumbaKernel):
        def __init__(self, cubin):
            self.cubin = cubin

        def bind(self, plan, args):
            return lambda: started.append(plan.grid)

    mine = replace(function, handle=(function.handle[0], Stand(Path(cupy.loaded[0][0]))))
    monkeypatch.setattr(
        residency, "clusters_at_once", lambda function, plan: asked.append(function) or 15
    )
    plan = LaunchPlan((2048, 1, 1), (8, 1, 1), 64, persistent=True, cluster=cluster)
    before = len(cupy.launches)
    card.launch(mine, plan, [x, y, 8, 1.0])
    if cluster == 1:
        assert started == [(132, 1, 1)]
        assert (len(cupy.launches), asked) == (before, [])
    else:
        assert started == []
        assert cupy.launches[-1][1] == (15 * 8, 1, 1)
        assert asked == [7], "the loaded function"


def test_out_of_memory_says_what_is_needed_and_free(card, cupy):
    with pytest.raises(DeviceMissingError) as caught:
        card.upload(np.zeros(1 << 20, np.float32), "matrix A")
    assert "matrix A needs 4194304 bytes" in caught.value.message
    assert "1048576 are free" in caught.value.message
    assert caught.value.details == {"needed_bytes": 4194304, "free_bytes": 1048576}
    assert caught.value.exit_code == 7
    assert cupy.freed == 1  # what the pool holds back was released before giving up


@pytest.mark.parametrize("rows", [3, 4, 7, 100])
def test_rows_are_repeated_on_the_card_and_compared_there_in_pieces(card, rows):
    host = np.arange(15, dtype=np.uint16).reshape(3, 5)
    sent = card.upload(host, "x", rows)
    np.testing.assert_array_equal(card.download(sent), np.resize(host, (rows, 5)))
    assert card.holds(sent, host)
    for at in (0, rows - 1):
        sent.handle.array[at, 4] ^= 1 << 15
        assert not card.holds(sent, host)
        sent.handle.array[at, 4] ^= 1 << 15


def test_an_array_is_compared_on_the_card_piece_by_piece(card, monkeypatch):
    host = np.arange(35, dtype=np.uint16).reshape(7, 5)
    sent, pieces, upload = card.upload(host, "x"), [], card.upload
    monkeypatch.setattr("gpulab.runtime.cuda.SENT_BYTES", 25)  # 12 elements and a half
    monkeypatch.setattr(card, "upload", lambda x, name: pieces.append(len(x)) or upload(x, name))
    monkeypatch.delattr(type(card), "download")
    assert card.holds(sent, host)
    assert pieces == [12, 12, 11]
    for at in (0, 3, 6):
        sent.handle.array[at, 4] ^= 1
        assert not card.holds(sent, host)
        sent.handle.array[at, 4] ^= 1
    assert card.holds(card.empty((0, 5), np.dtype(np.uint16)), host[:0])


def test_poison_fills_every_byte(card):
    out = card.empty((3, 5), np.dtype(np.uint16), 0x5A)
    assert set(card.download(out).view(np.uint8).reshape(-1)) == {0x5A}
    card.refill(out, 0xA5)
    assert set(card.download(out).view(np.uint8).reshape(-1)) == {0xA5}
    assert card.download(card.empty((0,), np.dtype("f4"))).shape == (0,)


@pytest.mark.parametrize(
    ("status", "fault"),
    [(700, "out_of_bounds"), (716, "misaligned"), (715, "illegal_instruction"), (719, "crash")],
)
def test_a_fault_names_the_kernel_and_the_context_stays_dead(card, cupy, request_, status, fault):
    x, y = arrays(card)
    function = card.build(request_, PARAMS)
    card.launch(function, PLAN, [x, y, 8, 1.0])
    cupy.pending = CUDARuntimeError(status, f"cudaError{status}: it went wrong")
    with pytest.raises(FaultError, match="waiting for scale") as caught:
        card.synchronize()
    assert caught.value.details["fault"] == fault
    assert "start a new process" in caught.value.message
    assert "--device emulated" in caught.value.fix
    cupy.pending = None  # whatever CuPy would say now, the context is gone
    for call in (
        card.synchronize,
        lambda: card.download(y),
        lambda: card.launch(function, PLAN, [x, y, 8, 1.0]),
        lambda: card.upload(np.zeros(1, np.float32)),
    ):
        with pytest.raises(FaultError, match=f"first error: .*cudaError{status}"):
            call()


def test_a_launch_that_is_refused_is_a_usage_error_and_kills_nothing(card, cupy, request_):
    x, y = arrays(card)
    function = card.build(request_, PARAMS)
    cupy.refuse = CUDADriverError(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many")
    with pytest.raises(UsageError, match="launching scale: the driver refuses"):
        card.launch(function, PLAN, [x, y, 8, 1.0])
    cupy.refuse = None
    card.launch(function, PLAN, [x, y, 8, 1.0])


def test_the_drivers_time_limit_is_a_timeout(card, cupy):
    cupy.pending = CUDARuntimeError(702, "cudaErrorLaunchTimeout: the launch timed out")
    with pytest.raises(KernelTimeoutError) as caught:
        card.synchronize()
    assert caught.value.exit_code == 5


def test_a_cubin_the_driver_does_not_load_names_both_versions(card, cupy, request_):
    cupy.load_error = CUDADriverError(209, "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image")
    with pytest.raises(BuildError) as caught:
        card.build(request_, PARAMS)
    assert "driver 580.65.06 (CUDA 13.0) does not load" in caught.value.message
    assert "NO_BINARY_FOR_GPU" in caught.value.message
    assert "nvidia-cuda-nvrtc<" in caught.value.fix


class CUBLASError(RuntimeError):
    status = 15  # of cuBLAS' own numbering


def test_a_library_call_runs_on_the_devices_stream(card, cupy):
    x, y = arrays(card)
    seen = []
    launch = card.bind_library("cublas fp32", lambda: seen.append(list(cupy.streams)), (x, y))
    launch()
    launch()
    assert seen == [[card.stream]] * 2

    def refuse():
        raise CUBLASError("CUBLAS_STATUS_NOT_SUPPORTED")

    with pytest.raises(FaultError, match="launching cublas int8: CUBLAS_STATUS_NOT_SUPPORTED"):
        card.bind_library("cublas int8", refuse, ())()
    launch()  # the context lives


def test_errors_that_are_not_cudas_are_left_alone(card, cupy):
    cupy.pending = ZeroDivisionError("a mistake in the program")
    with pytest.raises(ZeroDivisionError):
        card.synchronize()
