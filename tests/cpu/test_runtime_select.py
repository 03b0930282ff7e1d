"""Which device is opened, and what a choice that cannot be met says."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest
import runtime_fakes
from runtime_fakes import FakeCupy

from gpulab import arch
from gpulab.errors import DeviceMissingError, UsageError
from gpulab.runtime import driver as driver_facts
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.cuda_context import connect
from gpulab.runtime.driver import Card
from gpulab.runtime.emulated import EmulatedDevice
from gpulab.runtime.select import open_device

ROOT = Path(__file__).resolve().parents[2]
V100 = Card(0, "Tesla V100", (7, 0))
T4 = Card(1, "Tesla T4", (7, 5))


def no_card():
    raise DeviceMissingError("no NVIDIA driver is installed", fix="install it")


def hopper(**facts):
    return lambda: runtime_fakes.connection(FakeCupy(), **facts)


def test_auto_takes_a_usable_card_and_says_so():
    device = open_device("auto", connect=hopper())
    assert isinstance(device, CudaDevice)
    assert (device.name, device.capability, device.target) == ("NVIDIA H200", (9, 0), (9, 0))
    assert device.reason == "a usable card: NVIDIA H200"


def test_auto_without_a_card_is_emulated_and_says_why():
    device = open_device("auto", connect=no_card)
    assert isinstance(device, EmulatedDevice)
    assert device.capability == (8, 9)
    assert device.reason == "no usable card: no NVIDIA driver is installed"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"capability": (7, 5)}, "--capability 7.5"),
        ({"sanitize": True}, "--sanitize"),
        ({"counters": True}, "--counters"),
    ],
)
def test_what_only_the_emulated_device_has_selects_it(options, reason):
    device = open_device("auto", connect=hopper(), **options)
    assert isinstance(device, EmulatedDevice)
    assert device.reason == f"{reason} is for the emulated device"


def test_cuda_without_a_card_is_an_error_with_exit_code_7():
    with pytest.raises(DeviceMissingError, match="no NVIDIA driver") as caught:
        open_device("cuda", connect=no_card)
    assert caught.value.exit_code == 7
    assert caught.value.fix


def test_options_that_do_not_go_with_a_card():
    with pytest.raises(UsageError, match=r"--capability 7\.5: NVIDIA H200 has 9\.0"):
        open_device("cuda", capability=(7, 5), connect=hopper())
    assert open_device("cuda", capability=(9, 0), connect=hopper()).kind == "cuda"
    for option in ("sanitize", "counters"):
        with pytest.raises(UsageError, match=f"--{option} needs the emulated device"):
            open_device("cuda", connect=hopper(), **{option: True})


def test_emulated_is_taken_although_a_card_is_there():
    device = open_device("emulated", connect=hopper(), capability=(8, 0), target=(7, 5))
    assert isinstance(device, EmulatedDevice)
    assert (device.capability, device.target, device.reason) == ((8, 0), (7, 5), "")


def test_an_unknown_device():
    with pytest.raises(UsageError, match="'gpu'"):
        open_device("gpu")


def refused(query, cupy=FakeCupy):
    with pytest.raises(DeviceMissingError) as caught:
        connect(query=lambda: query, import_cupy=cupy)
    assert caught.value.fix
    return caught.value


def no_cupy():
    raise ModuleNotFoundError("No module named 'cupy'", name="cupy")


def broken_cupy():
    raise ImportError("libcudart.so.13: cannot open shared object file")


def test_each_thing_in_the_way_of_a_card_is_named():
    assert "no NVIDIA driver" in refused(None).message
    assert "no CUDA-capable device" in refused(
        runtime_fakes.driver(cards=(), problem="cuInit: no CUDA-capable device is detected")
    ).message  # fmt: skip
    old = refused(runtime_fakes.driver(cards=(V100,)))
    assert "Tesla V100 (7.0)" in old.message
    assert "7.5" in old.message
    missing = refused(runtime_fakes.driver(), no_cupy)
    assert "CuPy is not installed" in missing.message
    assert "[cuda13]" in missing.fix
    assert "libcudart.so.13" in refused(runtime_fakes.driver(), broken_cupy).message
    assert "[cuda12]" in refused(runtime_fakes.driver(cuda=(12, 4)), no_cupy).fix
    ancient = refused(runtime_fakes.driver(cuda=(11, 8), release="520.61.05"))
    assert "520.61.05 (CUDA 11.8) is too old" in ancient.message


def test_a_driver_older_than_the_cupy_build_names_both_versions_and_the_extra():
    error = refused(
        runtime_fakes.driver(cuda=(12, 2), release="535.104.05"), lambda: FakeCupy(13020)
    )
    assert "driver 535.104.05 (CUDA 12.2)" in error.message
    assert "CUDA 13.2 that CuPy 14.2.0 is built for" in error.message
    assert "[cuda12]" in error.fix
    assert "uninstall -y cupy-cuda13x" in error.fix


@pytest.mark.parametrize(("driver_cuda", "cupy_cuda"), [((13, 0), 13020), ((13, 0), 12090)])
def test_a_newer_minor_or_an_older_major_of_cupy_works(driver_cuda, cupy_cuda):
    made = connect(
        query=lambda: runtime_fakes.driver(cuda=driver_cuda),
        import_cupy=lambda: FakeCupy(cupy_cuda),
    )
    assert made.card.name == "NVIDIA H200"


def test_the_first_card_that_is_new_enough_is_taken():
    made = connect(query=lambda: runtime_fakes.driver(cards=(V100, T4)), import_cupy=FakeCupy)
    assert made.card == T4


def test_a_card_that_cannot_be_used_is_named():
    def busy():
        cupy = FakeCupy()

        def free(pointer):
            raise runtime_fakes.CUDARuntimeError(46, "cudaErrorDevicesUnavailable: busy")

        cupy.cuda.runtime.free = free
        return cupy

    assert "cudaErrorDevicesUnavailable" in refused(runtime_fakes.driver(), busy).message


# -- driver facts ----------------------------------------------------------------------------------


class Library:
    """libcuda of a machine with one card."""

    def __init__(self, version, init=0, capability=(9, 0)):
        self.version, self.init, self.capability = version, init, capability

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version
        return 0

    def cuInit(self, flags):
        return self.init

    def cuGetErrorString(self, code, out):
        out._obj.value = b"no CUDA-capable device is detected"
        return 0

    def cuDeviceGetCount(self, out):
        out._obj.value = 1
        return 0

    def cuDeviceGet(self, out, index):
        out._obj.value = index
        return 0

    def cuDeviceGetName(self, out, size, device):
        ctypes.memmove(out, b"NVIDIA Test\0", 12)
        return 0

    def cuDeviceGetAttribute(self, out, attribute, device):
        out._obj.value = self.capability[{75: 0, 76: 1}[attribute]]
        return 0


def test_the_driver_is_asked():
    found = driver_facts.query(Library(12040, capability=(8, 6)))
    assert found.cuda == (12, 4)
    assert found.cards == (Card(0, "NVIDIA Test", (8, 6)),)
    assert found.problem is None
    broken = driver_facts.query(Library(13000, init=100))
    assert broken.cards == ()
    assert broken.problem == "cuInit: no CUDA-capable device is detected"


@pytest.mark.parametrize(
    ("found", "extra", "words"),
    [
        (None, None, "no NVIDIA driver"),
        (runtime_fakes.driver(cuda=(13, 1)), "cuda13", "CUDA 13.1"),
        (runtime_fakes.driver(cuda=(14, 0)), "cuda13", "CUDA 14.0"),
        (runtime_fakes.driver(cuda=(12, 9)), "cuda12", "CUDA 12.9"),
        (runtime_fakes.driver(cuda=(12, 0)), "cuda12", "CUDA 12.0"),
        (runtime_fakes.driver(cuda=(11, 8)), None, "too old: update it to 525"),
        (runtime_fakes.driver(cards=(V100,)), None, "Tesla V100 (sm_70): too old"),
        (runtime_fakes.driver(cards=(), problem="cuInit: no device"), None, "cuInit: no device"),
    ],
)
def test_the_extra_for_a_driver(found, extra, words):
    chosen, reason = driver_facts.extra(found)
    assert chosen == extra
    assert words in reason


def test_the_release_of_the_kernel_module(tmp_path):
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n")
    assert driver_facts.release(file) == "580.65.06"
    assert driver_facts.release(tmp_path / "nothing") is None


def test_the_lowest_capability_is_the_one_of_the_architectures():
    """driver.py runs before anything is installed, so it cannot import it."""
    assert driver_facts.LOWEST == arch.LOWEST


def test_choose_extra_needs_only_the_standard_library():
    """-S -I: no site-packages, no current folder."""
    done = subprocess.run(
        [sys.executable, "-S", "-I", str(ROOT / "scripts" / "choose_extra.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"(cuda1[23]\n)?", done.stdout)
    assert done.stderr.count("\n") == 1
