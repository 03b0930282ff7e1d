"""Tensor maps over a driver that writes down what it was asked to encode, and persistent grids."""

import ctypes
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import runtime_fakes
from runtime_fakes import FakeCupy

from gpulab.errors import DeviceMissingError, FaultError, UsageError
from gpulab.registry import LaunchPlan, Param, RawBuild, TensorBox
from gpulab.runtime import driver as driver_facts
from gpulab.runtime import packing, residency, tensor_map
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.device import DeviceArray
from gpulab.runtime.emulated import EmulatedDevice

SOURCE = """
struct alignas(64) Map { unsigned long long opaque[16]; };
extern "C" __global__ void look(const __grid_constant__ Map x, float* y, int n) {
    y[threadIdx.x] = n + x.opaque[1];
}
"""
PARAMS = (
    Param("x", "in", "bf16", ("m", "k")),
    Param("y", "out", "fp32", ("n",)),
    Param("n", "dim", "int32"),
)
BOX = TensorBox("x", 8, 64)
PLAN = LaunchPlan((1, 1, 1), (8, 1, 1), maps=(BOX,))


class Driver:
    """Writes the arguments into the map, in the order in which cuda.h names them."""

    def __init__(self, status=0):
        self.status, self.asked = status, 0

    def cuFuncSetAttribute(self, function, attribute, value):
        return self.status

    def cuTensorMapEncodeTiled(self, to, kind, rank, address, dims, strides, box, steps, *modes):
        self.asked += 1
        assert to.value % 64 == 0
        text = struct.pack(
            "<II Q 2Q Q 2I 2I 4I",
            *(kind.value, rank.value, address.value, *dims, *strides, *box, *steps),
            *(mode.value for mode in modes),
        )
        ctypes.memmove(to.value, text.ljust(128, b"\xee"), 128)
        return self.status


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(driver_facts, "load", lambda: made)
    tensor_map.encode.cache_clear()
    yield made
    tensor_map.encode.cache_clear()


def test_the_driver_gets_columns_first_and_bytes_between_rows(driver):
    made = tensor_map.encode(0x7000, 100, 200, 2, TensorBox("x", 16, 64))
    assert len(made) == 128
    kind, rank, address, *rest = struct.unpack("<II Q 2Q Q 2I 2I 4I", made[:72])
    assert (kind, rank, address) == (1, 2, 0x7000)
    assert rest[:2] == [200, 100]
    assert rest[2] == 400
    assert rest[3:5] == [64, 16]
    assert rest[5:7] == [1, 1]
    assert rest[7:] == [0, 3, 2, 0]  # no interleave, swizzle 128, L2 128, zeros outside


@pytest.mark.parametrize(("itemsize", "kind"), [(1, 0), (2, 1), (4, 2)])
@pytest.mark.parametrize(("swizzle", "code"), [(0, 0), (32, 1), (64, 2), (128, 3)])
def test_types_are_unsigned_integers_of_the_width(driver, itemsize, kind, swizzle, code):
    made = tensor_map.encode(256, 4, 64, itemsize, TensorBox("x", 4, 16 // itemsize, swizzle))
    fields = struct.unpack("<II Q 2Q Q 2I 2I 4I", made[:72])
    assert fields[0] == kind
    assert fields[-3] == code


def test_a_map_is_encoded_once_for_each_array_and_box(driver):
    for _ in range(3):
        tensor_map.encode(256, 8, 64, 2, BOX)
    assert driver.asked == 1
    tensor_map.encode(512, 8, 64, 2, BOX)
    tensor_map.encode(256, 16, 64, 2, BOX)
    tensor_map.encode(256, 8, 64, 2, TensorBox("x", 4, 64))
    assert driver.asked == 4


def test_what_the_driver_refuses_is_named(driver):
    driver.status = 1
    with pytest.raises(FaultError, match=r"8 x 64 elements of 2 bytes at 0x100 .* status 1"):
        tensor_map.encode(256, 8, 64, 2, BOX)
    driver.status = 0
    assert len(tensor_map.encode(256, 8, 64, 2, BOX)) == 128  # a refusal is not kept


def test_a_driver_without_tensor_maps_is_too_old(monkeypatch):
    monkeypatch.setattr(driver_facts, "load", SimpleNamespace)
    tensor_map.encode.cache_clear()
    with pytest.raises(DeviceMissingError, match="knows no tensor maps") as caught:
        tensor_map.encode(256, 8, 64, 2, BOX)
    assert "525" in caught.value.fix


def test_without_a_driver_there_is_no_map(monkeypatch):
    monkeypatch.setattr(driver_facts, "load", lambda: None)
    tensor_map.encode.cache_clear()
    with pytest.raises(DeviceMissingError, match="no NVIDIA driver"):
        tensor_map.encode(256, 8, 64, 2, BOX)


def test_only_the_named_arrays_are_packed_as_maps():
    x, y = (DeviceArray((8, 64), np.dtype("u2"), at) for at in (256, 512))
    packed = packing.pack(
        PARAMS, [x, y, 8], lambda array: array.handle, maps={"x": lambda array: b"m" * 128}
    )
    assert packed == [b"m" * 128, (512).to_bytes(8, "little"), (8).to_bytes(4, "little")]


def test_an_array_that_is_named_twice_is_its_map_first_and_then_its_address():
    x, y = (DeviceArray((8, 64), np.dtype("u2"), at) for at in (256, 512))
    first, second, _ = PARAMS
    for _ in range(2):  # every launch anew
        packed = packing.pack(
            (first, second, first, first),
            [x, y, x, x],
            lambda array: array.handle,
            maps={"x": lambda array: b"m" * 128},
        )
        assert packed == [b"m" * 128, *(at.to_bytes(8, "little") for at in (512, 256, 256))]


# -- on the card -----------------------------------------------------------------------------------


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def card(cupy, tmp_path):
    return CudaDevice(connection=runtime_fakes.connection(cupy), store=Store(tmp_path / "cache"))


@pytest.fixture
def function(card, tmp_path):
    path = tmp_path / "look.cu"
    path.write_text(SOURCE)
    return card.build(RawBuild(str(path), "look"), PARAMS)


def arrays(device, columns=64):
    return (
        device.upload(np.zeros((24, columns), np.uint16), "x"),
        device.empty((8,), np.dtype("f4"), name="y"),
    )


def test_a_map_is_passed_by_value_as_one_structure(card, cupy, function, driver):
    x, y = arrays(card)
    launch = card.bind(function, PLAN, [x, y, 8])
    launch()
    launch()
    assert driver.asked == 1
    args = cupy.launches[1][3]
    assert args[0].dtype == np.dtype("V128")
    assert args[0].size == 1
    address, columns, rows = struct.unpack("<QQQ", args[0].tobytes()[8:32])
    assert (address, columns, rows) == (x.handle.data.ptr, 64, 24)
    assert args[1] == y.handle.data.ptr
    assert type(args[2]) is np.uint32


@pytest.mark.parametrize(
    ("blocks", "cluster", "held", "launched"),
    [
        (1, 1, None, 1), (132, 1, None, 132), (133, 1, None, 132), (1000, 2, 66, 132),
        (130, 2, 66, 130), (999, 9, 15, 126), (1000, 4, 30, 120), (1000, 4, 40, 132),
    ],
)  # fmt: skip
def test_a_persistent_grid_is_capped_by_whole_clusters(
    card, cupy, function, driver, monkeypatch, blocks, cluster, held, launched
):
    """Of what the multiprocessors hold, and of what the driver says fits into their groups."""
    monkeypatch.setattr(residency, "clusters_at_once", lambda function, plan: held)
    x, y = arrays(card)
    plan = LaunchPlan((blocks, 1, 1), (8, 1, 1), maps=(BOX,), persistent=True, cluster=cluster)
    card.launch(function, plan, [x, y, 8])
    assert cupy.launches[-1][1] == (launched, 1, 1)
    whole = LaunchPlan((blocks, 1, 1), (8, 1, 1), maps=(BOX,), cluster=cluster)
    card.launch(function, whole, [x, y, 8])
    assert cupy.launches[-1][1] == (blocks, 1, 1)


@pytest.mark.parametrize(
    ("box", "words"),
    [
        (TensorBox("n", 8, 64), "not a two-dimensional array"),
        (TensorBox("y", 8, 64), "not a two-dimensional array"),
        (TensorBox("x", 257, 64), "exceeds 256"),
        (TensorBox("x", 0, 64), "exceeds 256"),
        (TensorBox("x", 8, 128), "a swizzle spans 128"),
        (TensorBox("x", 8, 40, 64), "box rows of 80 bytes, a swizzle spans 64"),
        (TensorBox("x", 8, 4), "box rows of 8 bytes"),
        (TensorBox("x", 8, 64, 96), "swizzle of 96"),
    ],
)
def test_what_cannot_be_a_map_is_refused_before_the_driver_is_asked(
    card, cupy, function, driver, box, words
):
    x, y = arrays(card)
    with pytest.raises(UsageError, match=words):
        card.launch(function, LaunchPlan((1, 1, 1), (8, 1, 1), maps=(box,)), [x, y, 8])
    assert driver.asked == 0
    assert cupy.launches == []


@pytest.mark.parametrize("columns", [0, 1, 63, 100])
def test_rows_that_are_no_multiple_of_16_bytes_are_refused(card, function, driver, columns):
    x, y = arrays(card, columns)
    with pytest.raises(UsageError, match=f"rows of {2 * columns} bytes; TMA takes multiples of 16"):
        card.launch(function, PLAN, [x, y, 8])


def test_a_grid_of_broken_clusters_is_refused(card, function, driver):
    x, y = arrays(card)
    plan = LaunchPlan((3, 1, 1), (8, 1, 1), maps=(BOX,), cluster=2)
    with pytest.raises(UsageError, match="3 blocks are not whole clusters of 2"):
        card.launch(function, plan, [x, y, 8])


# -- elsewhere -------------------------------------------------------------------------------------


def test_an_older_card_has_no_tensor_maps(cupy, tmp_path, driver):
    ampere = runtime_fakes.Card(0, "NVIDIA A100", (8, 0))
    connection = runtime_fakes.connection(cupy, cards=(ampere,))
    card = CudaDevice(connection=connection, store=Store(tmp_path / "cache"))
    path = tmp_path / "look.cu"
    path.write_text(SOURCE)
    function = card.build(RawBuild(str(path), "look"), PARAMS)
    x, y = arrays(card)
    with pytest.raises(UsageError, match="need sm_90"):
        card.launch(function, PLAN, [x, y, 8])


def test_the_emulated_device_has_maps_of_its_own_and_says_what_it_lacks(tmp_path):
    device = EmulatedDevice((9, 0))
    path = tmp_path / "look.cu"
    path.write_text(SOURCE)
    function = device.build(RawBuild(str(path), "look"), PARAMS)
    x, y = arrays(device)
    device.launch(function, PLAN, [x, y, 8])
    narrow = replace(PLAN, maps=(TensorBox("x", 8, 32),))
    with pytest.raises(UsageError, match="a box of 64 bytes a row in a swizzle of 128") as said:
        device.launch(function, narrow, [x, y, 8])
    assert "--device cuda" in said.value.fix
    assert device.multiprocessors is None
