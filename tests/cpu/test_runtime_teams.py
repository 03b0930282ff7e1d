"""Teams of blocks that wait for each other: how many are launched, and that the driver refuses."""

import ctypes
import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import runtime_fakes
from runtime_fakes import CUDADriverError, FakeCupy

from gpulab.errors import UsageError
from gpulab.registry import LaunchPlan, Param, RawBuild
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.numba_launch import NumbaKernel
from gpulab.runtime.residency import blocks_along_x

SOURCE = """
extern "C" __global__ void meet(const float* x, float* y, int n, float factor) {
    y[threadIdx.x] = x[threadIdx.x] * factor;
}
"""
PARAMS = (
    Param("x", "in", "fp32", ("n",)),
    Param("y", "out", "fp32", ("n",)),
    Param("n", "dim", "int32"),
    Param("factor", "scalar", "fp32"),
)


def plan(teams, size, persistent=True, an_sm=1, equal=False):
    return LaunchPlan(
        (teams * size, 1, 1),
        (8, 1, 1),
        64,
        persistent=persistent,
        team=size,
        blocks_an_sm=an_sm,
        equal_shares=equal,
    )


def never():
    raise AssertionError("only clusters are asked for")


@pytest.mark.parametrize(
    ("given", "teams"),
    [
        (plan(1, 33), 1),
        (plan(3, 33), 3),
        (plan(100, 33), 4),  # 4 * 33 are all the multiprocessors
        (plan(100, 40), 3),  # 12 stay idle
        (plan(100, 40, an_sm=2), 6),
        (plan(100, 132), 1),
        (plan(100, 200, an_sm=2), 1),  # members may share a multiprocessor
        (plan(7, 33, equal=True), 4),  # two turns: 4 and 3
        (plan(5, 33, equal=True), 3),  # two turns: 3 and 2
        (plan(9, 33, equal=True), 3),  # three turns either way
        (plan(4, 33, equal=True), 4),
        (plan(4, 33, persistent=False), 4),
        (plan(2, 132, persistent=False, an_sm=2), 2),
    ],
)
def test_whole_teams_are_launched_as_many_as_fit(given, teams):
    assert blocks_along_x(given, 132, never) == teams * given.team


@pytest.mark.parametrize(
    ("given", "blocks", "held"),
    [
        (plan(100, 133), 133, 132),  # of persistent teams one must fit
        (plan(1, 265, an_sm=2), 265, 264),
        (plan(5, 33, persistent=False), 165, 132),  # of others all must
    ],
)
def test_blocks_that_would_wait_for_ever_are_refused(given, blocks, held):
    with pytest.raises(UsageError, match=f"{blocks} blocks wait .* holds {held} at once") as caught:
        blocks_along_x(given, 132, never)
    assert "fewer or smaller blocks" in caught.value.fix


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def card(cupy, tmp_path):
    return CudaDevice(connection=runtime_fakes.connection(cupy), store=Store(tmp_path / "cache"))


@pytest.fixture
def function(card, tmp_path):
    path = tmp_path / "meet.cu"
    path.write_text(SOURCE)
    return card.build(RawBuild(str(path), "meet"), PARAMS)


def arrays(card):
    return card.upload(np.arange(8, dtype=np.float32), "x"), card.empty((8,), np.dtype("f4"))


def passed(table, sizes):
    """The bytes that a table of addresses points to."""
    places = (ctypes.c_void_p * len(sizes)).from_address(table)
    return [ctypes.string_at(place, size) for place, size in zip(places, sizes, strict=True)]


def test_a_team_is_launched_so_that_the_driver_holds_all_its_blocks(card, cupy, function):
    x, y = arrays(card)
    launch = card.bind(function, plan(100, 40), [x, y, 8, 0.1])
    gc.collect()
    noise = [ctypes.create_string_buffer(b"\xff" * size, size) for size in (8, 4) * 64]
    launch()
    launch()
    assert cupy.launches == [], "CuPy's own launch would make the grid smaller"
    (*how, table), again = cupy.together
    assert again == (*how, table)
    assert noise, "it has taken the place of what was let go"
    assert how == [7, (120, 1, 1), (8, 1, 1), 64, card.stream.ptr]
    assert passed(table, (8, 8, 4, 4)) == [
        x.handle.data.ptr.to_bytes(8, "little"),
        y.handle.data.ptr.to_bytes(8, "little"),
        (8).to_bytes(4, "little"),
        np.float32(0.1).tobytes(),
    ]


def test_blocks_that_do_not_wait_are_launched_as_ever(card, cupy, function):
    card.launch(function, replace(plan(100, 40), team=1), [*arrays(card), 8, 0.1])
    assert cupy.together == []
    assert cupy.launches[-1][1] == (132, 1, 1)


def test_a_team_of_a_numba_kernel_is_launched_by_the_driver(card, cupy, function):
    """Numba's own launch cannot ask for all blocks at once."""

    class Stand(NumbaKernel):
        def __init__(self, cubin):
            self.cubin = cubin

        def bind(self, plan, args):
            raise AssertionError("launched by Numba")

    mine = replace(function, handle=(function.handle[0], Stand(Path(cupy.loaded[0][0]))))
    card.launch(mine, plan(100, 40), [*arrays(card), 8, 0.1])
    assert cupy.together[-1][1] == (120, 1, 1)


def test_what_the_driver_does_not_hold_is_a_usage_error_and_kills_nothing(card, cupy, function):
    cupy.refuse = CUDADriverError(720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks")
    with pytest.raises(UsageError, match=r"driver refuses .*LAUNCH_TOO_LARGE") as caught:
        card.launch(function, plan(3, 40), [*arrays(card), 8, 0.1])
    assert caught.value.details["cuda_error"] == 720
    cupy.refuse = None
    card.launch(function, plan(3, 40), [*arrays(card), 8, 0.1])
