"""Numba's launch of the lab's cubin, over a driver that is not there: nothing is compiled again."""

from types import SimpleNamespace

import pytest

from gpulab.registry import LaunchPlan, Param
from gpulab.runtime.numba_launch import NumbaKernel
from gpulab.runtime.numba_ptx import NumbaPtx, argument_types

PARAMS = (Param("n", "dim", "int32"), Param("eps", "scalar", "fp32"))
COMPILED = NumbaPtx("", "kernel_v1", "sm_90", lambda n, eps: None, argument_types(PARAMS))


def refuse(*arguments, **options):
    raise AssertionError("compiled again")


@pytest.fixture
def launched(monkeypatch):
    """What reaches the driver."""
    from numba import cuda
    from numba.cuda import codegen, dispatcher
    from numba.cuda.cudadrv import driver

    found = []
    library = codegen.CUDACodeLibrary
    monkeypatch.setattr(dispatcher, "compile_cuda", refuse)
    monkeypatch.setattr(library, "get_asm_str", refuse)
    monkeypatch.setattr(library, "_ensure_cc", lambda self, cc: (9, 0, "a"))

    def load(self):
        loaded = (self._entry_name, self.get_cubin(), self._setup_functions)
        return SimpleNamespace(module=SimpleNamespace(initialized=True), kernel=loaded)

    monkeypatch.setattr(library, "get_cufunc", load)
    monkeypatch.setattr(
        driver, "ObjectCode", SimpleNamespace(from_cubin=lambda image, name: (image, name))
    )
    monkeypatch.setattr(driver, "_to_core_stream", lambda stream: stream)
    monkeypatch.setattr(cuda, "external_stream", lambda address: ("stream", address))
    monkeypatch.setattr(dispatcher, "LaunchConfig", lambda **shape: shape)
    monkeypatch.setattr(dispatcher, "launch", lambda *arguments: found.append(arguments))
    return found


def test_the_cubin_is_launched_with_numbas_arguments_and_nothing_is_compiled(launched, tmp_path):
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(b"ELF")
    kernel = NumbaKernel(COMPILED, cubin, 4096)
    kernel.bind(LaunchPlan((3, 1, 1), (64, 1, 1), 128), [7, 0.5])()
    ((stream, shape, loaded, n, eps),) = launched
    assert stream == ("stream", 4096)
    assert (shape["grid"], shape["block"], shape["shmem_size"]) == ((3, 1, 1), (64, 1, 1), 128)
    assert not shape["is_cooperative"]
    assert loaded == ("kernel_v1", (b"ELF", "kernel_v1"), [])
    assert (n.value, eps.value) == (7, 0.5)
