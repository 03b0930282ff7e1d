"""What every device refuses before a launch, and the bytes of what it lets through."""

import struct

import ml_dtypes
import numpy as np
import pytest

from gpulab.errors import BuildError, UsageError
from gpulab.registry import LaunchPlan, Param, RawBuild
from gpulab.runtime import packing, resources
from gpulab.runtime.checks import check_arguments, check_host_array, check_plan
from gpulab.runtime.device import (
    Device,
    DeviceArray,
    Function,
    LaunchReport,
)
from gpulab.runtime.resources import Resources
from gpulab.runtime.targets import check_target

PARAMS = (
    Param("a", "in", "fp16", ("m", "k")),
    Param("c", "out", "fp32", ("m", "n")),
    Param("m", "dim", "int32"),
    Param("n", "dim", "int32"),
    Param("alpha", "scalar", "fp32"),
    Param("count", "scalar", "int8"),
)


def array(dtype, *shape):
    return DeviceArray(shape, np.dtype(dtype), 0)


A = DeviceArray((3, 5), np.dtype(np.float16), 0x1000, "a")
C = DeviceArray((3, 4), np.dtype(np.float32), 0x2000, "c")
GOOD = (A, C, 3, 4, 0.5, -7)


class Nowhere(Device):
    """A device that records launches."""

    kind, name, capability, target = "cuda", "a test card", (8, 9), (8, 9)

    def __init__(self):
        self.launched = []

    def _bind(self, function, plan, args):
        def launch():
            self.launched.append((plan, tuple(args)))
            return LaunchReport()

        return launch

    upload = empty = refill = download = free = build = synchronize = None


Nowhere.__abstractmethods__ = frozenset()


def function(params=PARAMS, used=None):
    return Function("k<float>", params, None, RawBuild("k.cu", "k"), used, "")


def change(position, value):
    return (*GOOD[:position], value, *GOOD[position + 1 :])


def test_right_arguments_are_launched():
    card = Nowhere()
    card.launch(function(), LaunchPlan((1, 1, 1), (32, 1, 1)), GOOD)
    card.launch(function(), LaunchPlan((1, 1, 1), (32, 1, 1)), change(2, np.int64(3)))
    assert [args for _, args in card.launched] == [GOOD, GOOD]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (GOOD[:-1], r"takes 6 arguments \(a, c, m, n, alpha, count\), got 5"),
        ((*GOOD, 1), "takes 6 arguments .*, got 7"),
        (change(0, np.zeros((3, 5), np.float16)), "argument a must be a device array, got ndarray"),
        (change(0, 7), "argument a must be a device array, got int"),
        (change(0, array(np.float32, 3, 5)), "argument a holds float32, needs float16"),
        (change(1, array(np.float32, 3, 5)), r"c has shape \(3, 5\), needs \(m=3, n=4\)"),
        (change(1, array(np.float32, 12)), r"argument c has shape \(12,\)"),
        (change(1, array(np.float32, 3)), r"argument c has shape \(3,\), needs \(m=3, n=4\)"),
        (change(0, array(np.float16, 4, 5)), r"argument a has shape \(4, 5\), needs \(m=3, k\)"),
        (change(2, A), "argument m must be a number, got DeviceArray"),
        (change(2, True), "argument m must be a number, got bool"),
        (change(4, np.True_), "argument alpha must be a number"),
        (change(2, 3.0), "argument m is 3.0, must be an integer"),
        (change(2, -1), "argument m is -1"),
        (change(2, 2**31), "argument m is 2147483648, must be an integer in 0 .. 2147483647"),
        (change(5, 128), "argument count is 128, must be an integer in -128 .. 127"),
        (change(5, 1.5), "argument count is 1.5"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(args, message):
    card = Nowhere()
    with pytest.raises(UsageError, match=message):
        card.launch(function(), LaunchPlan((1, 1, 1), (32, 1, 1)), args)
    assert card.launched == []


def test_the_largest_dim_is_accepted():
    params = (Param("n", "dim", "int32"),)
    check_arguments("k", params, (2**31 - 1,))
    check_arguments("k", params, (0,))


def test_a_scalar_of_a_narrow_float_takes_a_number_not_a_code():
    bf16 = Param("x", "scalar", "bf16")
    check_arguments("k", (bf16,), (1,))
    assert packing.scalar(bf16, 1) == b"\x80\x3f"
    assert packing.scalar(bf16, 1.0) == b"\x80\x3f"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (LaunchPlan((1, 1, 1), (0, 1, 1)), "block"),
        (LaunchPlan((1, 1, 1), (1025, 1, 1)), "block"),
        (LaunchPlan((1, 1, 1), (32, 33, 1)), "block"),
        (LaunchPlan((1, 1, 1), (1, 1, 65)), "block"),
        (LaunchPlan((2**31, 1, 1), (32, 1, 1)), "grid"),
        (LaunchPlan((1, 65536, 1), (32, 1, 1)), "grid"),
        (LaunchPlan((1, 1, 65536), (32, 1, 1)), "grid"),
        (LaunchPlan((-1, 1, 1), (32, 1, 1)), "grid"),
        (LaunchPlan((1, 1, 1), (32, 1, 1), -1), "shared"),
        (LaunchPlan((1, 1, 1), (32, 1, 1), 99 * 1024 + 1), "101377 bytes .* allows 101376"),
    ],
)
def test_launch_shapes_no_card_takes_are_refused(plan, message):
    with pytest.raises(UsageError, match=message):
        check_plan("k", plan, "a test card", (8, 9))


def test_the_largest_launch_shapes_are_accepted():
    for plan in (
        LaunchPlan((2**31 - 1, 65535, 65535), (1024, 1, 1)),
        LaunchPlan((1, 1, 1), (4, 4, 64)),
        LaunchPlan((1, 1, 1), (32, 1, 1), 99 * 1024),
    ):
        check_plan("k", plan, "a test card", (8, 9))


def used(**figures):
    return Resources(**{**dict.fromkeys(
        ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "shared_bytes",
         "barriers"), 0), **figures})  # fmt: skip


def test_what_the_kernel_uses_counts_too():
    full = LaunchPlan((1, 1, 1), (1024, 1, 1))
    check_plan("k", full, "a test card", (8, 9), used(registers=64))
    with pytest.raises(UsageError, match="1024 threads of 65 registers"):
        check_plan("k", full, "a test card", (8, 9), used(registers=65))
    with pytest.raises(UsageError, match="compiled for at most 256"):
        check_plan("k", full, "a test card", (8, 9), used(registers=8, max_threads_per_block=256))
    dynamic = LaunchPlan((1, 1, 1), (32, 1, 1), 90 * 1024)
    check_plan("k", dynamic, "a test card", (8, 9), used(shared_bytes=9 * 1024))
    with pytest.raises(UsageError, match="shared memory"):
        check_plan("k", dynamic, "a test card", (8, 9), used(shared_bytes=9 * 1024 + 1))


@pytest.mark.parametrize(
    ("registers", "warps", "fits"),
    [(255, 8, True), (255, 9, False), (200, 8, True), (200, 9, False), (200, 10, False)],
)
def test_registers_are_asked_for_on_all_four_parts_of_an_sm(registers, warps, fits):
    """Ten warps of 6400 registers are below 65536, but the card counts twelve: three a part."""
    plan = LaunchPlan((1, 1, 1), (32 * warps - 31, 1, 1))  # a begun warp counts as a whole one
    if fits:
        check_plan("k", plan, "a test card", (8, 9), used(registers=registers))
        return
    with pytest.raises(UsageError, match=f"{32 * warps - 31} threads of {registers} registers"):
        check_plan("k", plan, "a test card", (8, 9), used(registers=registers))


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_an_empty_grid_launches_nothing(grid):
    card = Nowhere()
    report = card.launch(function(), LaunchPlan(grid, (32, 1, 1)), GOOD)
    assert card.launched == []
    assert report.notes == ["empty grid: nothing launched"]


def test_arguments_of_an_empty_grid_are_still_checked():
    with pytest.raises(UsageError, match="got 5"):
        Nowhere().launch(function(), LaunchPlan((0, 1, 1), (32, 1, 1)), GOOD[:-1])


@pytest.mark.parametrize(
    "host",
    [
        np.zeros(3, ml_dtypes.bfloat16),
        np.zeros(3, ml_dtypes.float8_e4m3fn),
        np.zeros(3, bool),
        np.zeros(3, complex),
        np.zeros(3, ">f4"),
        np.array(["a"]),
        np.zeros((4, 4), np.float32).T[:, 1:],
        np.zeros((4, 4), np.float32)[:, ::2],
    ],
)
def test_host_arrays_that_cannot_be_copied_as_they_stand(host):
    with pytest.raises(UsageError, match="array x"):
        check_host_array(host, "x")


def test_packed_bytes_in_the_c_abi():
    packed = packing.pack(PARAMS, GOOD, lambda array: array.handle)
    assert packed == [
        struct.pack("<Q", 0x1000),
        struct.pack("<Q", 0x2000),
        struct.pack("<i", 3),
        struct.pack("<i", 4),
        struct.pack("<f", 0.5),
        struct.pack("<b", -7),
    ]


def test_packed_bytes_of_a_numba_array():
    """meminfo, parent, items, item size, data, shape, strides in bytes."""
    array = DeviceArray((2, 3, 5), np.dtype(np.uint16), 0xABC)
    param = Param("x", "in", "bf16", ("i", "j", "k"))
    packed = packing.pack((param,), (array,), lambda a: a.handle, "numba")
    assert [struct.unpack("<q", p)[0] for p in packed] == [
        0, 0, 30, 2, 0xABC, 2, 3, 5, 30, 10, 2,
    ]  # fmt: skip


def test_targets_below_the_device_are_possible():
    assert check_target(None, (9, 0)) == (9, 0)
    assert check_target((7, 5), (9, 0)) == (7, 5)
    with pytest.raises(UsageError, match="sm_90 does not run on sm_89"):
        check_target((9, 0), (8, 9))
    with pytest.raises(UsageError, match="sm_70"):
        check_target((7, 0), (8, 9))


LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     24 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 1024+16 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 360 bytes cmem[0]
"""


def test_figures_of_each_entry_are_its_own():
    first = resources.parse(LOG, "first", ".entry first(\n)\n.maxntid 16, 8, 2\n{\n}")
    assert (first.registers, first.spill_bytes, first.stack_bytes) == (255, 32, 24)
    assert (first.shared_bytes, first.barriers) == (1040, 2)
    assert first.max_threads_per_block == 256
    second = resources.parse(LOG, "second")
    assert (second.registers, second.spill_bytes, second.shared_bytes) == (10, 0, 0)
    assert second.max_threads_per_block is None
    assert "C7510" in second.warnings[0]
    with pytest.raises(BuildError, match="third"):
        resources.parse(LOG, "third")
    # Figures that are not there are not taken from the next entry.
    with pytest.raises(BuildError, match="first"):
        resources.parse(LOG.replace("Used 255 registers", "Used registers"), "first")
