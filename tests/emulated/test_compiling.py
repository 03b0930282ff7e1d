"""Rows are compiled before they are judged: Numba's by another process, into the cache."""

from concurrent.futures.process import BrokenProcessPool

import pytest

from gpulab import registry
from gpulab.errors import BuildError
from gpulab.lab.compiling import Ahead, compile_ahead
from gpulab.lab.runner import KernelRunner
from gpulab.registry import RawBuild
from gpulab.runtime import assembly, cache, numba_ptx
from gpulab.runtime.emulated import EmulatedDevice

DIMS = {"rows": 2, "cols": 33}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba_ptx, "_COMPILED", {})
    return cache.default_store()


def refuse(*arguments, **options):
    raise BuildError("compiled here after all")


def rows(backend):
    return list(registry.cases("crossentropy", backend=backend, kernel="online", format="bf16"))


def test_another_process_compiles_numbas_kernels_and_this_one_finds_them(store, monkeypatch):
    device = EmulatedDevice((8, 9))
    with Ahead(device, processes=1) as ahead:
        for dims in (DIMS, DIMS | {"rows": 3}):  # one kernel for both
            ahead.submit(rows("numba"), dims)
        assert len(ahead._numba) == 1
        ahead.wait(*rows("numba"), DIMS)
    monkeypatch.setattr(numba_ptx, "_compile", refuse)
    KernelRunner(*rows("numba"), device, DIMS)
    monkeypatch.setattr(numba_ptx, "_COMPILED", {})
    with pytest.raises(BuildError, match="compiled here after all"):
        KernelRunner(*rows("numba"), EmulatedDevice((8, 0)), DIMS)  # the target was another


def test_cuda_kernels_are_compiled_when_they_were_waited_for(store, monkeypatch):
    device, compiled = EmulatedDevice((8, 9)), []
    monkeypatch.setattr(
        assembly, "prepare", lambda request, *a, **k: compiled.append(request) or refuse()
    )
    compile_ahead([*rows("raw"), *rows("numba"), *rows("raw")], device, DIMS)
    (request,) = compiled  # once; Numba's are left to this process, which emulates
    assert isinstance(request, RawBuild)


def test_a_process_that_dies_leaves_the_work_to_this_one(monkeypatch):
    asked = []

    class Gone:
        def result(self):
            asked.append(self)
            raise RuntimeError("a process was killed")

    with Ahead(EmulatedDevice((8, 9)), processes=1) as ahead:
        monkeypatch.setattr(ahead, "_elsewhere", lambda *arguments: Gone())
        ahead.submit(rows("numba"), DIMS)
        ahead.wait(*rows("numba"), DIMS)
    assert len(asked) == 1


def test_processes_that_died_before_take_no_more_and_this_one_compiles(store, monkeypatch):
    class Broken:
        def submit(self, *arguments):
            raise BrokenProcessPool("a process was killed")

        def shutdown(self, **how):
            pass

    device = EmulatedDevice((8, 9))
    with Ahead(device, processes=1) as ahead:
        monkeypatch.setattr(ahead, "_others", Broken())
        ahead.submit([*rows("numba"), *rows("raw")], DIMS)
        for case in (*rows("numba"), *rows("raw")):
            ahead.wait(case, DIMS)
        assert len(ahead._rows) == 2
    monkeypatch.setattr(numba_ptx, "_compile", refuse)
    with pytest.raises(BuildError, match="compiled here after all"):
        KernelRunner(*rows("numba"), device, DIMS)
