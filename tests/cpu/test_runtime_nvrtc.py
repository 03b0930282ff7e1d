"""Compilation without a driver: what the options mean, and what a refusal says."""

import dataclasses
import os

import pytest

from gpulab.errors import BuildError, DeviceMissingError
from gpulab.runtime import diagnostics, nvrtc, resources, toolkit
from gpulab.runtime.nvrtc import compile_text

SUM = """
extern "C" __global__ void sum(const float* a, const float* b, float* c) {
    c[threadIdx.x] = a[threadIdx.x] * b[threadIdx.x] + c[threadIdx.x];
}
"""
HALF_SUM = """
#include <cuda_fp16.h>
extern "C" __global__ void sum(const __half* a, const __half* b, __half* c) {
    c[threadIdx.x] = __hadd(__hmul(a[threadIdx.x], b[threadIdx.x]), c[threadIdx.x]);
}
"""
TEMPLATE = """
template <typename T, int N>
__global__ void fill(T* out) {
    __shared__ T tile[N];
    tile[threadIdx.x] = T(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = tile[N - 1 - threadIdx.x];
}
"""
CAPABILITIES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


def body(ptx: str) -> str:
    return ptx[ptx.index("{") : ptx.rindex("}")]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_card_and_emulator_run_the_same_ptx(capability):
    """The PTX beside the cubin (sm_XX) is the PTX of compute_XX."""
    both = compile_text(HALF_SUM, "sum.cu", "sum", capability)
    alone = compile_text(HALF_SUM, "sum.cu", "sum", capability, cubin=False)
    assert both.ptx == alone.ptx
    assert alone.cubin is None
    assert both.cubin is not None
    assert both.cubin[:4] == b"\x7fELF"
    assert f".target {both.target}" in both.ptx


def test_nothing_is_contracted_unless_asked():
    plain = body(compile_text(SUM, "sum.cu", "sum", (8, 9)).ptx)
    assert "mul.rn.f32" in plain
    assert "add.rn.f32" in plain
    assert "fma" not in plain
    assert "fma.rn.f32" in body(compile_text(SUM, "sum.cu", "sum", (8, 9), contract=True).ptx)


def test_ptxas_is_told_not_to_contract_too():
    """Half arithmetic reaches ptxas without a rounding modifier, which ptxas may fuse."""
    assert "mul.f16" in compile_text(HALF_SUM, "sum.cu", "sum", (8, 9)).ptx
    kit = toolkit.find()
    assert "--ptxas-options=-fmad=false" in nvrtc.options(kit, "sm_89")
    assert "--ptxas-options=-fmad=true" in nvrtc.options(kit, "sm_89", contract=True)
    kept = compile_text(HALF_SUM, "sum.cu", "sum", (8, 9)).cubin
    fused = compile_text(HALF_SUM, "sum.cu", "sum", (8, 9), contract=True).cubin
    assert kept != fused


def test_the_drivers_compute_cache_is_not_asked():
    """What NVRTC takes from there comes without ptxas' words. 12.8 has no such cache or option."""
    kit = toolkit.find()
    for version, there in (((12, 8), False), ((12, 9), True), ((13, 0), True)):
        chosen = nvrtc.options(dataclasses.replace(kit, version=version), "sm_89")
        assert ("-no-cache" in chosen) == there


def test_one_source_tells_of_each_of_its_kernels():
    two = SUM + SUM.replace("sum(", "other(")
    for entry in ("sum", "other"):
        made = compile_text(two, "two.cu", entry, (9, 0))
        assert resources.parse(made.log, made.lowered).registers > 0


def test_subnormals_are_kept():
    assert ".ftz" not in compile_text(SUM, "sum.cu", "sum", (7, 5)).ptx
    assert "-ftz=false" in nvrtc.options(toolkit.find(), "sm_75")


def test_template_arguments_and_lines():
    made = compile_text(TEMPLATE, "/src/fill.cu", "fill<float, 64>", (8, 0))
    assert "fill" in made.lowered
    assert f".entry {made.lowered}" in made.ptx
    assert '"/src/fill.cu"' in made.ptx
    used = resources.parse(made.log, made.lowered, made.ptx)
    assert used.shared_bytes == 64 * 4
    assert used.barriers == 1
    assert used.spill_bytes == 0
    assert 0 < used.registers < 64
    assert used.max_threads_per_block is None


def test_defines_reach_the_source():
    text = 'extern "C" __global__ void k(int* x) { *x = VALUE; }'
    assert "1234" in compile_text(text, "k.cu", "k", (8, 0), defines=["VALUE=1234"]).ptx


def test_an_error_names_file_and_line():
    with pytest.raises(BuildError, match=r"^/src/k\.cu:3: identifier \"undefined_name\"") as caught:
        compile_text(
            '\nextern "C" __global__ void k(float* x) {\n  x[0] = undefined_name;\n}\n',
            "/src/k.cu",
            "k",
            (8, 0),
        )
    assert caught.value.details["line"] == 3
    assert caught.value.details["file"] == "/src/k.cu"
    assert "undefined_name" in caught.value.details["log"]


def test_the_first_error_is_named():
    with pytest.raises(BuildError, match=r"k\.cu:1: .*first_missing"):
        compile_text(
            "__device__ int a = first_missing;\n__device__ int b = second_missing;\n"
            'extern "C" __global__ void k() {}',
            "k.cu",
            "k",
            (8, 0),
        )


COPY_ASYNC = """
extern "C" __global__ void k(const float* a) {
    __shared__ float tile[32];
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(a));
}
"""


def test_an_instruction_the_target_lacks_is_refused_with_its_source_line():
    compile_text(COPY_ASYNC, "copy.cu", "k", (8, 0))
    with pytest.raises(BuildError, match=r"cp\.async") as caught:
        compile_text(COPY_ASYNC, "/src/copy.cu", "k", (7, 5))
    assert caught.value.details["line"] == 5
    assert "sm_75" in caught.value.message
    # compute_75 alone would let it through, which is why we always assemble.
    assert "cp.async" in compile_text(COPY_ASYNC, "copy.cu", "k", (7, 5), cubin=False).ptx


def test_a_wrong_instantiation_names_the_entry():
    with pytest.raises(BuildError, match="nowhere<int>"):
        compile_text("", "k.cu", "nowhere<int>", (8, 0))


def test_a_missing_cuda_header_names_the_command(monkeypatch):
    kit = toolkit.find()
    bare = toolkit.Toolkit(kit.nvrtc, kit.version, (), None)
    # NVRTC brings some headers itself; this one it does not.
    with pytest.raises(BuildError, match="cannot open source file") as caught:
        compile_text('#include <cuda_nothing.h>\nextern "C" __global__ void k(){}', "k.cu", "k",
                     (8, 0), kit=bare)  # fmt: skip
    assert "no CUDA" in caught.value.message
    assert "pip install" in caught.value.fix


def test_a_missing_header_of_ones_own_asks_for_no_wheel():
    with pytest.raises(BuildError, match=r"tile_of_mine\.cuh") as caught:
        compile_text('#include "tile_of_mine.cuh"', "k.cu", "k", (8, 0))
    assert caught.value.fix is None


def test_headers_in_the_working_folder_are_not_found(tmp_path, monkeypatch):
    """Includes are written from raw_kernels/: the same source must not depend on the process."""
    (tmp_path / "local.cuh").write_text("#define VALUE 1\n")
    monkeypatch.chdir(tmp_path)
    text = '#include "local.cuh"\nextern "C" __global__ void k(int* x) { *x = VALUE; }'
    with pytest.raises(BuildError, match=r"local\.cuh"):
        compile_text(text, "k.cu", "k", (8, 0))


def test_no_nvrtc_names_the_command(monkeypatch):
    monkeypatch.setattr(toolkit, "installed", lambda: ())
    with pytest.raises(DeviceMissingError, match="NVRTC") as caught:
        toolkit.find()
    assert "nvidia-cuda-nvrtc" in caught.value.fix


def test_a_driver_gets_an_nvrtc_of_its_major(monkeypatch):
    def kit(major, minor):
        return toolkit.Toolkit(toolkit.Path(f"/lib{major}"), (major, minor), (), None)

    monkeypatch.setattr(toolkit, "installed", lambda: (kit(13, 5), kit(12, 9)))
    assert toolkit.find().version == (13, 5)
    assert toolkit.find((13, 0)).version == (13, 5)  # minor versions are compatible
    assert toolkit.find((12, 2)).version == (12, 9)
    monkeypatch.setattr(toolkit, "installed", lambda: (kit(13, 5),))
    with pytest.raises(DeviceMissingError, match="newer than the driver") as caught:
        toolkit.find((12, 2))
    assert "cu12" in caught.value.fix


def test_without_a_name_the_cards_nvrtc_is_taken(monkeypatch):
    """So that the emulated device runs the PTX that the card beside it runs."""
    kits = tuple(toolkit.Toolkit(toolkit.Path("/lib"), v, (), None) for v in ((13, 5), (12, 9)))
    monkeypatch.setattr(toolkit, "installed", lambda: kits)
    for present, version in ((None, (13, 5)), ((13, 0), (13, 5)), ((12, 2), (12, 9))):
        monkeypatch.setattr(toolkit, "_driver_cuda", lambda present=present: present)
        assert toolkit.default().version == version
    monkeypatch.setattr(toolkit, "_driver_cuda", lambda: (11, 8))  # no card can be used there
    assert toolkit.default().version == (13, 5)


def test_targets():
    kit = toolkit.find()
    assert nvrtc.target_name(kit, (9, 0)) == "sm_90"
    assert nvrtc.target_name(kit, (9, 0), feature_target=True) == "sm_90a"
    assert nvrtc.target_name(kit, (12, 9)) == "sm_121"  # the nearest lower one of its major
    with pytest.raises(BuildError, match="no target sm_70"):
        nvrtc.target_name(kit, (7, 0))
    with pytest.raises(BuildError, match="no target sm_89a"):
        nvrtc.target_name(kit, (8, 9), feature_target=True)
    with pytest.raises(BuildError, match="no target sm_129a"):
        nvrtc.target_name(kit, (12, 9), feature_target=True)


def test_headers_of_another_major_are_not_taken(tmp_path, monkeypatch):
    for major in (12, 13):
        folder = tmp_path / f"cuda{major}" / "include"
        folder.mkdir(parents=True)
        (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {major}030\n")
    monkeypatch.setattr(toolkit, "_site_folders", lambda: iter(()))
    monkeypatch.setattr(
        toolkit, "_system_folders", lambda: iter([tmp_path / "cuda12", tmp_path / "cuda13"])
    )
    assert toolkit._headers_for((13, 5)) == ((tmp_path / "cuda13" / "include",), (13, 3))
    assert toolkit._headers_for((14, 0)) == ((), None)


def headers(folder, version, *parts):
    for part in ("cuda_runtime_api.h", *parts):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text(f"#define CUDART_VERSION {version}\n")
    return folder


def test_headers_that_a_folder_lacks_come_from_one_of_the_same_version(tmp_path, monkeypatch):
    wheel = headers(tmp_path / "site" / "cu13" / "include", 13000)
    other = headers(tmp_path / "cuda-13.1" / "include", 13010, "crt/mma.h", "nv/target")
    system = headers(tmp_path / "cuda-13.0" / "include", 13000, "crt/mma.h", "cccl/nv/target")
    monkeypatch.setattr(toolkit, "_site_folders", lambda: iter([tmp_path / "site"]))
    folders = [other.parent, system.parent]
    monkeypatch.setattr(toolkit, "_system_folders", lambda: iter(folders))
    assert toolkit._headers_for((13, 0)) == ((wheel, system, system / "cccl"), (13, 0))
    headers(wheel, 13000, "crt/mma.h", "nv/target")
    assert toolkit._headers_for((13, 0)) == ((wheel,), (13, 0))


def test_wheels_of_cuda_12_hold_the_parts_beside(tmp_path, monkeypatch):
    runtime = headers(tmp_path / "cuda_runtime" / "include", 12090)
    crt = headers(tmp_path / "cuda_crt" / "include", 12090, "crt/mma.h")
    cccl = headers(tmp_path / "cuda_cccl" / "include", 12090, "nv/target")
    monkeypatch.setattr(toolkit, "_site_folders", lambda: iter([tmp_path]))
    monkeypatch.setattr(toolkit, "_system_folders", lambda: iter(()))
    assert toolkit._headers_for((12, 9)) == ((runtime, crt, cccl), (12, 9))


def test_headers_without_those_they_include_are_a_fault_of_the_installation(tmp_path):
    """Not of the source that includes them: its author can do nothing about it."""
    folder = headers(tmp_path / "include", 13050)
    (folder / "mma.h").write_text('#include "crt/mma.h"\n')
    kit = dataclasses.replace(toolkit.find(), headers=(folder,))
    lacks = r"incomplete: .*mma\.h includes crt/mma\.h"
    with pytest.raises(DeviceMissingError, match=lacks) as told:
        nvrtc.compile_text("#include <mma.h>\n", "a.cu", "f", (8, 0), kit=kit)
    assert told.value.fix == kit.pip_command
    with pytest.raises(BuildError, match="cannot open source file"):
        nvrtc.compile_text('#include "mine.h"\n', "a.cu", "f", (8, 0), kit=kit)


def test_a_library_that_cannot_be_loaded_is_passed_over(tmp_path):
    broken = tmp_path / "libnvrtc.so.13"
    broken.write_bytes(b"not a library")
    assert toolkit.reported_version(broken) is None
    assert os.path.exists(toolkit.find().nvrtc)


def test_line_of_a_ptx_line():
    ptx = '.file 1 "a.cu"\n.file 2 "b.cuh"\n.loc 1 7 3\nadd;\n.loc 2 9 1, inlined_at 1 8 1\nmul;\n'
    assert diagnostics.place_of_ptx_line(ptx, 4) == diagnostics.Place("a.cu", 7)
    assert diagnostics.place_of_ptx_line(ptx, 6) == diagnostics.Place("b.cuh", 9)
    assert diagnostics.place_of_ptx_line(ptx, 1) is None
