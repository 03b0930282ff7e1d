"""PTX made elsewhere, assembled by nvJitLink: options, errors, the cache."""

import re

import pytest

from gpulab.errors import BuildError
from gpulab.registry import Param
from gpulab.runtime import assembly, nvjitlink, nvrtc, resources, toolkit
from gpulab.runtime.cache import Store
from gpulab.runtime.device import PtxBuild

PLAIN = """.version 8.0
.target sm_80
.address_size 64
.visible .entry reciprocal(.param .u64 at)
{
    .reg .b64 %rd<2>;
    .reg .f64 %fd<3>;
    ld.param.u64 %rd1, [at];
    ld.global.f64 %fd1, [%rd1];
    rcp.rn.f64 %fd2, %fd1;
    st.global.f64 [%rd1], %fd2;
    ret;
}
"""


@pytest.mark.parametrize("named", [False, True])
def test_lines_are_asked_for_only_where_the_ptx_names_a_file(monkeypatch, named):
    asked = []
    link = nvjitlink._link
    monkeypatch.setattr(nvjitlink, "_link", lambda *a: asked.append(a[1]) or link(*a))
    ptx = PLAIN + (' .file 1 "reciprocal.cu"\n' if named else '// .file 1 "none.cu"\n')
    assert nvjitlink.assemble(ptx, "sm_80", major=13).image
    assert ("-lineinfo" in asked[0]) == named


def test_no_nvjitlink_names_the_command(monkeypatch):
    monkeypatch.setattr(toolkit, "nvjitlink", lambda major: None)
    with pytest.raises(BuildError, match="nvJitLink") as caught:
        nvjitlink.assemble(".version 8.0", "sm_89", major=13)
    assert "nvidia-nvjitlink" in caught.value.fix
    assert nvjitlink.version(13) is None


# -- assembly --------------------------------------------------------------------------------------

COPY = 'extern "C" __global__ void copy(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }'


def test_ptx_of_a_lower_target_becomes_a_cubin_of_a_higher_one():
    ptx = nvrtc.compile_text(COPY, "/copy.cu", "copy", (7, 5)).ptx
    for target in ("sm_75", "sm_89", "sm_90", "sm_120"):
        linked = nvjitlink.assemble(ptx, target, major=13)
        assert linked.image[:4] == b"\x7fELF"
        assert resources.parse(linked.log, "copy").registers > 0
        assert linked.log.count(f"'{target}'") == 1


def test_ptx_of_a_higher_target_is_refused():
    ptx = nvrtc.compile_text(COPY, "/copy.cu", "copy", (9, 0)).ptx
    with pytest.raises(BuildError, match="higher than default SM"):
        nvjitlink.assemble(ptx, "sm_89", major=13)


def test_a_wrong_instruction_is_refused_with_its_source_line():
    ptx = nvrtc.compile_text(f"\n\n{COPY}", "/copy.cu", "copy", (8, 0)).ptx
    broken = ptx.replace("st.global.u32", "st.global.u33")
    assert broken != ptx
    with pytest.raises(BuildError, match=r"^/copy\.cu:3: ptxas: "):
        nvjitlink.assemble(broken, "sm_80", major=13)


def test_newer_ptx_than_the_assembler_is_refused_by_version():
    ptx = nvrtc.compile_text(COPY, "/copy.cu", "copy", (8, 0)).ptx
    newer = re.sub(r"\.version [\d.]+", ".version 99.0", ptx)
    with pytest.raises(BuildError, match=r"Unsupported \.version 99\.0"):
        nvjitlink.assemble(newer, "sm_80", major=13)


def test_assembled_ptx_is_cached_by_text_target_and_contraction(tmp_path, monkeypatch):
    ptx = nvrtc.compile_text(COPY, "/copy.cu", "copy", (7, 5)).ptx
    store, calls = Store(tmp_path), []
    real = nvjitlink.assemble
    monkeypatch.setattr(nvjitlink, "assemble", lambda *a, **k: calls.append(a) or real(*a, **k))

    def get(text=ptx, target="sm_75", **options):
        return assembly.assemble(text, target, major=13, store=store, **options)

    first = get()
    assert first == get()
    assert len(calls) == 1
    assert first[0].read_bytes()[:4] == b"\x7fELF"
    get(target="sm_80")
    get(contract=True)
    get(text=ptx + "\n")
    assert len(calls) == 4


def test_prepared_ptx_says_what_it_uses(tmp_path):
    made = nvrtc.compile_text(COPY, "/copy.cu", "copy", (8, 0))
    two = (Param("x", "in", "int32", ("n",)), Param("y", "out", "int32", ("n",)))
    code = assembly.prepare(PtxBuild(made.ptx, "copy"), two, (8, 0), store=Store(tmp_path))
    assert (code.label, code.entry, code.abi, code.target) == ("copy", "copy", "c", "sm_80")
    assert code.resources.registers == resources.parse(made.log, "copy").registers
