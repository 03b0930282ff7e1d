"""The doctor: a finding for each part, also when the part is missing or broken."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest
import runtime_fakes

from gpulab.errors import DeviceMissingError
from gpulab.runtime import cuda_context, doctor, nvjitlink, sources, toolkit
from gpulab.runtime import driver as driver_facts
from gpulab.runtime.doctor import Finding


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    monkeypatch.setattr(driver_facts, "query", lambda library=None: None)


def found(name):
    return {finding.name: finding for finding in doctor.examine()}[name]


def test_every_part_has_a_finding_and_this_machine_is_usable():
    findings = doctor.examine()
    assert [f.name for f in findings] == [
        "Python", "NumPy", "ml_dtypes", "NVRTC", "CUDA headers", "nvJitLink", "Numba",
        "compile cache", "driver", "CuPy", "card", "emulated device",
    ]  # fmt: skip
    assert doctor.usable(findings)
    for finding in findings:
        assert finding.status in ("ok", "missing", "warning")
        assert finding.detail
        assert "\n" not in finding.detail
    assert set(doctor.ESSENTIAL) <= {f.name for f in findings}


def test_what_is_missing_has_one_command(monkeypatch):
    monkeypatch.setattr(toolkit, "installed", lambda: ())
    finding = found("NVRTC")
    assert finding.status == "missing"
    assert finding.fix.startswith("pip install")
    assert not doctor.usable(doctor.examine())


def test_missing_headers_are_found_before_a_kernel_needs_them(monkeypatch):
    kit = toolkit.find()
    bare = toolkit.Toolkit(kit.nvrtc, kit.version, (), None)
    monkeypatch.setattr(toolkit, "default", lambda *a: bare)
    finding = found("CUDA headers")
    assert finding.status == "missing"
    assert "nvidia-cuda-runtime" in finding.fix


def test_headers_of_another_minor_are_a_warning(monkeypatch):
    kit = toolkit.find()
    other = toolkit.Toolkit(kit.nvrtc, kit.version, kit.headers, (kit.version[0], 0))
    monkeypatch.setattr(toolkit, "default", lambda *a: other)
    assert found("CUDA headers").status == "warning"


@pytest.mark.parametrize(
    ("version", "status"),
    [("1.26.4", "missing"), ("2.0.0", "ok"), ("2.4.6", "ok"), ("2.5.0", "warning")],
)
def test_the_numpy_that_numba_needs(monkeypatch, version, status):
    monkeypatch.setattr("numpy.__version__", version)
    assert doctor._numpy().status == status
    assert (doctor._numpy().fix is None) == (status == "ok")


def test_nvjitlink_missing_or_old(monkeypatch):
    monkeypatch.setattr(nvjitlink, "version", lambda major: None)
    assert (found("nvJitLink").status, "nvidia-nvjitlink" in found("nvJitLink").fix) == (
        "missing", True,
    )  # fmt: skip
    monkeypatch.setattr(nvjitlink, "version", lambda major: (major, 0))
    assert found("nvJitLink").status == "warning"


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("GPULAB_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.delenv("GPULAB_CACHE", raising=False)
    assert found("compile cache") == Finding("compile cache", "ok", str(tmp_path / "here"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("GPULAB_CACHE_DIR", str(blocked / "below"))
    finding = found("compile cache")
    assert finding.status == "warning"
    assert "GPULAB_CACHE_DIR" in finding.fix
    monkeypatch.setenv("GPULAB_CACHE", "off")
    assert "off" in found("compile cache").detail


def with_driver(monkeypatch, **facts):
    monkeypatch.setattr(driver_facts, "query", lambda library=None: runtime_fakes.driver(**facts))


def test_without_cupy_a_card_needs_the_right_extra(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "cupy" else real(n, *a)
    )
    assert found("CuPy").status == "ok"  # no card: nothing is missing
    with_driver(monkeypatch, cuda=(12, 4))
    finding = found("CuPy")
    assert finding.status == "missing"
    assert "[cuda12]" in finding.fix


def test_a_card_that_cannot_be_used_keeps_its_reason_and_fix(monkeypatch):
    with_driver(monkeypatch)

    def refuse():
        raise DeviceMissingError("driver 535 is older than CuPy", fix="pip install this")

    monkeypatch.setattr(cuda_context, "connect", refuse)
    assert found("card") == Finding(
        "card", "missing", "driver 535 is older than CuPy", "pip install this"
    )


def test_a_usable_card(monkeypatch):
    with_driver(monkeypatch)
    made = runtime_fakes.connection(runtime_fakes.FakeCupy())
    monkeypatch.setattr(cuda_context, "connect", lambda: made)
    assert found("card").detail == "NVIDIA H200, sm_90"
    assert found("driver").detail == "driver 580.65.06 (CUDA 13.0): extra cuda13"


def test_an_old_driver_is_named(monkeypatch):
    with_driver(monkeypatch, cuda=(11, 8))
    assert "too old" in found("driver").detail


def test_a_broken_part_is_a_finding_and_no_crash(monkeypatch):
    broken = SimpleNamespace(EmulatedDevice=lambda: 1 / 0)
    monkeypatch.setitem(sys.modules, "gpulab.runtime.emulated", broken)
    finding = found("emulated device")
    assert finding.status == "missing"
    assert "ZeroDivisionError" in finding.detail


def test_it_works_without_cupy_and_numba():
    code = (
        "import sys\n"
        "sys.modules['cupy'] = sys.modules['numba'] = None\n"
        "from gpulab.runtime import doctor\n"
        "found = {f.name: f for f in doctor.examine()}\n"
        "assert found['Numba'].status == 'missing', found['Numba']\n"
        "assert 'numba-cuda' in found['Numba'].fix\n"
        "assert doctor.usable(list(found.values())), found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=sources.root().parent)
