"""Teams: blocks that wait for each other through global memory, and loops that wait in vain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from team_kernels import HOPPER, ROW_SUMS, launched

from gpulab.emulator import executor
from gpulab.errors import KernelTimeoutError
from gpulab.registry import LaunchPlan, Param, RawBuild
from gpulab.runtime.emulated import EmulatedDevice

Array = NDArray[Any]
FIRST = 2**32 - 3  # tags wrap
NOBODY = 9999
PARAMS = (
    Param("x", "in", "fp32", ("rows", "cols")),
    Param("y", "out", "fp32", ("rows", "two")),
    Param("tags", "out", "int32", ("rows",)),
    Param("rows", "dim", "int32"),
    Param("cols", "dim", "int32"),
)


class Rows:
    """The kernel of ``team_kernels``, built for teams of one size."""

    def __init__(
        self, folder: Any, team: int, volatile: int = 0, lost: int = NOBODY, **device: Any
    ) -> None:
        self.path, self.team = folder / "rows.cu", team
        self.path.write_text(ROW_SUMS)
        self.device = EmulatedDevice(HOPPER, **device)
        self.device.machine.lanes = 64  # of chunks, for those who do not wait for each other
        wanted = {"TEAM": team, "TEAMS": 3, "VOLATILE": volatile, "LOST": lost, "FIRST": FIRST}
        defines = tuple(f"{name}={value}u" for name, value in wanted.items())
        self.function = self.device.build(RawBuild(str(self.path), "row_sums", defines), PARAMS)

    def run(self, x: Array, threads: int, persistent: bool = True) -> tuple[Array, Array]:
        """(sums and second meetings, tags) of a launch."""
        rows, cols = x.shape
        plan = LaunchPlan(
            (self.team * rows, 1, 1), (threads, 1, 1), 4 * cols // self.team,
            persistent=persistent, team=self.team,
        )  # fmt: skip
        held = self.device.upload(x, "x")
        y = self.device.empty((rows, 2), np.dtype(np.float32), name="y")
        tags = self.device.empty((rows,), np.dtype(np.int32), name="tags")
        self.device.launch(self.function, plan, [held, y, tags, rows, cols])
        found = self.device.download(y), self.device.download(tags).view(np.uint32)
        self.device.free(held, y, tags)
        return found


def integers(rows: int, cols: int) -> Array:
    """Whose sums are exact in any order."""
    return np.random.default_rng(rows).integers(-9, 9, (rows, cols)).astype(np.float32)


@pytest.mark.parametrize(("volatile", "sanitize"), [(0, False), (0, True), (1, True)])
def test_teams_take_turns_and_the_next_launch_goes_on_with_the_tags(
    tmp_path: Any, volatile: int, sanitize: bool
) -> None:
    kernel = Rows(tmp_path, 3, volatile, sanitize=sanitize)
    tag = FIRST
    for rows, turns in ((5, [0, 0, 1, 1, 2]), (1, [0]), (4, [0, 0, 1, 1])):  # of two teams
        x = integers(rows, 3 * 96)
        y, tags = kernel.run(x, 64)
        assert np.array_equal(y, np.repeat(x.sum(axis=1)[:, None], 2, axis=1))
        assert tags.tolist() == [(tag + 2 * turn) % 2**32 for turn in turns]
        tag += 2 * (turns[-1] + 1)


def test_variables_belong_to_what_was_built(tmp_path: Any) -> None:
    x = integers(1, 96)
    for _ in range(2):
        kernel = Rows(tmp_path, 3)
        assert [kernel.run(x, 32)[1].tolist() for _ in range(2)] == [[FIRST], [FIRST + 2]]


def test_a_team_of_large_blocks(tmp_path: Any) -> None:
    kernel = Rows(tmp_path, 33)
    x = integers(3, 33 * 49 * 1024)  # 196 KiB of shared memory a block, 42240 lanes
    assert np.array_equal(kernel.run(x, 640)[0][:, 0], x.sum(axis=1))


def test_a_launch_that_is_not_persistent_has_all_its_teams(tmp_path: Any) -> None:
    kernel = Rows(tmp_path, 3)
    assert kernel.run(integers(3, 96), 32, persistent=False)[1].tolist() == [FIRST] * 3


@pytest.mark.parametrize("rows", [1, 3])
def test_a_team_that_loses_a_member_is_told_where_it_waits(tmp_path: Any, rows: int) -> None:
    kernel = Rows(tmp_path, 5, lost=3)
    with pytest.raises(KernelTimeoutError, match=r"none of the .* blocks .* left to write") as told:
        kernel.run(integers(rows, 5 * 64), 64)
    line = kernel.path.read_text().splitlines()[told.value.details["line"] - 1]
    assert "ld.relaxed.gpu.global.u64" in line
    assert kernel.device.machine.running.steps < 100_000, "without using up the budget"


# -- who runs when ---------------------------------------------------------------------------------


RING = """__device__ unsigned word;
extern "C" __global__ void kernel(unsigned* o) {
  unsigned turn = gridDim.x - 1 - blockIdx.x;
  if (threadIdx.x == 0) {
    while (*(volatile unsigned*)&word != turn) {}
    o[blockIdx.x] = turn + 1;
    *(volatile unsigned*)&word = turn + 1;
  }
}"""


def test_all_blocks_run_together_whatever_the_chunks_and_whichever_are_wanted() -> None:
    got, _ = launched(RING, 6, grid=6, lanes=64, only=[4])
    assert got.tolist() == [6, 5, 4, 3, 2, 1]


def test_blocks_of_different_chunks_that_wait_are_stopped() -> None:
    with pytest.raises(KernelTimeoutError, match="none of the 2 blocks that run together") as told:
        launched(RING, 6, grid=6, lanes=128, together=False)
    assert told.value.details["line"] == 5


LOW = """__device__ unsigned word;
extern "C" __global__ void kernel(unsigned* o, int work) {
  if (blockIdx.x == 0 && threadIdx.x < 32) {
    unsigned found;
    do { LOOK } while (found != 77);
    o[threadIdx.x] = found;
  } else {
    unsigned s = blockIdx.x + threadIdx.x;
    for (int i = 0; i < work; ++i) {
      s = s * 3 + 1;
      __syncwarp();
      if (s % 8 == 5) s += 2;
      __syncwarp();
    }
    o[64 + threadIdx.x] = s;
    if (blockIdx.x == 1 && threadIdx.x == 0) *(volatile unsigned*)&word = 77;
  }
}"""
LOOKS_LOW = {
    "load": "found = *(volatile unsigned*)&word;",
    "votes": "found = *(volatile unsigned*)&word; found = __any_sync(~0u, found) ? found : 0;"
    " found = __all_sync(~0u, found == 77) ? 77 : 0;",
    "atomic": "found = atomicAdd(&word, 0);",
}


@pytest.mark.parametrize(("look", "work"), [("load", 500), ("votes", 500), ("atomic", 3)])
def test_who_waits_lets_the_others_work(look: str, work: int) -> None:
    """The loop that waits comes first in program order; those it waits for take many turns."""
    got, machine = launched(LOW.replace("LOOK", LOOKS_LOW[look]), 128, work, budget=100_000)
    assert got[:32].tolist() == [77] * 32
    assert machine.running.steps < 20_000 or look == "atomic"


@pytest.mark.parametrize("look", ["load", "votes"])
def test_a_wait_for_nobody_is_stopped(look: str) -> None:
    source = LOW.replace("LOOK", LOOKS_LOW[look]).replace("= 77;\n  }", "= 78;\n  }")
    with pytest.raises(KernelTimeoutError, match="none of the 2 blocks that run together"):
        launched(source, 128, 1, budget=200_000)


def test_a_wait_for_an_mbarrier_that_hangs_on_a_word_is_stopped() -> None:
    """The second warp waits for the first one, which waits for a word."""
    source = """__device__ unsigned word;
extern "C" __global__ void kernel(unsigned* o) {
  __shared__ alignas(8) unsigned long long full;
  unsigned at = (unsigned)__cvta_generic_to_shared(&full);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at) : "memory");
  __syncthreads();
  if (threadIdx.x >= 32)
    asm volatile("{.reg .pred p;\\nL: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;\\n"
                 "@!p bra L;}" :: "r"(at) : "memory");
  else
    while (*(volatile unsigned*)&word == 0) {}
  if (threadIdx.x == 0) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");
}"""
    with pytest.raises(KernelTimeoutError, match="none of the 2 blocks that run together"):
        launched(source, 1, budget=200_000)


def test_work_between_looks_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block counts, the other looks at every number."""
    monkeypatch.setattr(executor, "VAIN", 100)
    source = """__device__ unsigned word;
extern "C" __global__ void kernel(unsigned* o) {
  for (int i = 0; i < 200; ++i) {
    if (threadIdx.x == 0 && blockIdx.x == i % 2) *(volatile unsigned*)&word = i + 1;
    while (*(volatile unsigned*)&word < i + 1) {}
    o[blockIdx.x] = i;
  }
}"""
    assert launched(source, 2, block=32)[0].tolist() == [199, 199]


WAITS = {
    "counts": "for (int i = 0; i < 400 && *(volatile unsigned*)&word == 0; ++i) {}",
    "counts inside": "do for (int i = 0; i < 400 && *(volatile unsigned*)&word == 0; ++i) {}"
    " while (*(volatile unsigned*)&word == 5);",
    "looks at the clock": "long long last = clock64() + 4000;"
    " while (*(volatile unsigned*)&word == 0 && clock64() < last) {}",
    "does something": "while (*(volatile unsigned*)&word < 32 * 400)"
    ' asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(&word) : "memory");',
}


@pytest.mark.parametrize("form", WAITS)
def test_a_loop_that_ends_by_itself_is_no_hang(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "VAIN", 300)
    source = """__device__ unsigned word;
extern "C" __global__ void kernel(unsigned* o) { WAIT
  o[threadIdx.x] = 1;
}""".replace("WAIT", WAITS[form])
    assert launched(source, 32, grid=1, block=32)[0].all()
