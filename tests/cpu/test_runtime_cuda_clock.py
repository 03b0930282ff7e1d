"""Telemetry, and a card's clock over a fake CuPy."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import runtime_fakes

from gpulab.errors import FaultError
from gpulab.runtime import driver as driver_facts
from gpulab.runtime import telemetry
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.cuda_clock import CudaClock
from gpulab.runtime.telemetry import Telemetry
from gpulab.runtime.timing import CaptureError

# -- telemetry -------------------------------------------------------------------------------------


def test_nvidia_smis_line():
    assert telemetry.parse_smi("1980, 3201, 698.12, 65, 0x0000000000000004\n") == Telemetry(
        1980, 3201, 698.12, 65, ("power cap",)
    )
    assert telemetry.parse_smi("1980, 3201, [N/A], 65, 0x60\n") == Telemetry(
        1980, 3201, None, 65, ("software thermal slowdown", "hardware thermal slowdown")
    )
    assert telemetry.parse_smi("300, 405, 70.0, 30, 0x0000000000000001").throttle == ()  # idle
    assert "said" in telemetry.parse_smi("No devices were found").unavailable


def test_without_binding_and_program_the_reason_is_recorded(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(telemetry.shutil, "which", lambda name: None)
    reading = telemetry.reader("0000:1b:00.0")()
    assert reading.sm_clock_mhz is None
    assert "pynvml" in reading.unavailable
    assert "nvidia-smi is not there" in reading.unavailable


def test_the_binding_is_preferred(monkeypatch):
    class NVMLError(Exception):
        pass

    def unsupported(handle):
        raise NVMLError("not supported")

    binding = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda pci: pci,
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1755, 2: 3201}[kind],
        nvmlDeviceGetPowerUsage=unsupported,
        nvmlDeviceGetTemperature=lambda handle, sensor: 50,
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x8,
    )
    monkeypatch.setitem(sys.modules, "pynvml", binding)
    assert telemetry.reader("0000:1b:00.0")() == Telemetry(
        1755, 3201, None, 50, ("hardware slowdown",)
    )


# -- the card's clock over a fake CuPy -------------------------------------------------------------


class FakeGraphStream(runtime_fakes.Stream):
    capturing = False
    broken = False

    def begin_capture(self):
        self.capturing = True

    def end_capture(self):
        self.capturing = False
        if self.broken:
            raise runtime_fakes.CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated")
        return SimpleNamespace(upload=lambda s: None, launch=lambda s: self.cupy.launches.append(s))


@pytest.fixture
def clock(monkeypatch):
    cupy = runtime_fakes.FakeCupy(total=1 << 30)
    card = SimpleNamespace(
        use=lambda: None, attributes={"L2CacheSize": 60 << 20}, pci_bus_id="0000:1b:00.0"
    )
    cupy.cuda.Device = lambda index: card
    cupy.cuda.Stream = lambda non_blocking: FakeGraphStream(cupy)
    return CudaClock(CudaDevice(connection=runtime_fakes.connection(cupy)))


def test_the_flush_is_twice_the_queried_l2(clock):
    assert clock.l2_bytes == 60 << 20
    assert clock.flush_bytes == 120 << 20
    clock.flush()
    assert set(np.unique(clock._buffer.array)) == {1}
    clock.flush()
    assert set(np.unique(clock._buffer.array)) == {2}


@pytest.mark.parametrize("told", [{}, {"L2CacheSize": 0}])
def test_a_card_that_does_not_tell_its_l2_is_not_timed(clock, told):
    clock.device.cupy.cuda.Device(0).attributes = told
    with pytest.raises(FaultError, match="does not tell the L2 size of") as caught:
        CudaClock(clock.device)
    assert caught.value.fix == "without times: gpulab run"


def test_a_captured_graph_is_replayed_on_the_devices_stream(clock):
    called = []
    replay = clock.capture(lambda: called.append(clock.device.stream.capturing))
    assert called == [True]
    replay()
    assert clock.device.cupy.launches == [clock.device.stream]


def test_a_failed_capture_ends_and_says_why(clock):
    def body():
        raise runtime_fakes.CUDARuntimeError(900, "cudaErrorStreamCaptureUnsupported: no")

    with pytest.raises(CaptureError, match="Unsupported"):
        clock.capture(body)
    assert not clock.device.stream.capturing
    clock.device.stream.broken = True
    with pytest.raises(CaptureError, match="Invalidated"):
        clock.capture(lambda: None)


@pytest.mark.parametrize("status", [0, 801])
def test_persisting_lines_are_reset_where_a_card_has_them(clock, status):
    called = []
    CudaClock(clock.device, lambda: called.append(status) or status).reset_persisting()
    assert called == [status]


def test_the_reset_is_the_drivers(clock, monkeypatch):
    called = []
    made = SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: called.append(1) or 999)
    monkeypatch.setattr(driver_facts, "load", lambda: made)
    with pytest.raises(FaultError, match="error 999"):
        clock.reset_persisting()
    assert called == [1]


def test_a_driver_that_refuses_the_reset_is_heard(clock):
    with pytest.raises(FaultError, match="error 999"):
        CudaClock(clock.device, lambda: 999).reset_persisting()


def test_peaks_are_what_the_driver_tells(clock):
    assert clock.peaks() == {}
    card = clock.device.cupy.cuda.Device(0)
    card.attributes |= {"ClockRate": 1_980_000, "GlobalMemoryBusWidth": 6144}
    assert clock.peaks() == {"sm_khz": 1_980_000, "memory_bits": 6144}
