"""Teams: blocks that wait for each other through global memory, and loops that wait in vain."""

from __future__ import annotations

from typing import Any

import cudacase
import numpy as np
import pytest
import team_kernels
from numpy.typing import NDArray

from gpulab.emulator import executor
from gpulab.emulator.machine import Machine
from gpulab.errors import FaultError, KernelTimeoutError
from gpulab.registry import LaunchPlan, Param, RawBuild
from gpulab.runtime.emulated import EmulatedDevice

Array = NDArray[Any]
HOPPER = (9, 0)
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
        self.path.write_text(team_kernels.ROW_SUMS)
        self.device = EmulatedDevice(HOPPER, **device)
        wanted = {"TEAM": team, "TEAMS": 2, "VOLATILE": volatile, "LOST": lost, "FIRST": FIRST}
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
    x = integers(2, 96)
    kernel = Rows(tmp_path, 3)
    assert kernel.run(x, 32, persistent=False)[1].tolist() == [FIRST] * 2
    assert kernel.device.machine.running.shape[1] == 6


@pytest.mark.parametrize("rows", [1, 3])
def test_a_team_that_loses_a_member_is_told_where_it_waits(tmp_path: Any, rows: int) -> None:
    kernel = Rows(tmp_path, 5, lost=3)
    with pytest.raises(KernelTimeoutError, match=r"none of the .* blocks .* left to write") as told:
        kernel.run(integers(rows, 5 * 64), 64)
    line = kernel.path.read_text().splitlines()[told.value.details["line"] - 1]
    assert "ld.relaxed.gpu.global.u64" in line
    assert kernel.device.machine.running.steps < 100_000, "without using up the budget"


# -- who runs when ---------------------------------------------------------------------------------


def launched(
    source: str, out: int, *scalars: int, grid: int = 2, block: int = 64, **options: Any
) -> tuple[Array, Machine]:
    """``kernel(unsigned* o, int...)`` with all blocks together: o, and the machine."""
    only = options.pop("only", None)
    together = options.pop("together", True)
    machine = Machine(HOPPER, **options)
    machine.blocks = only
    program = machine.load(cudacase.ptx(source, HOPPER))
    o = machine.alloc(4 * out, "o")
    machine.write(o, np.zeros(out, np.uint32))
    params = [np.uint64(o).tobytes(), *(np.int32(s).tobytes() for s in scalars)]
    machine.launch(program, "kernel", (grid,), (block,), params, together=together)
    return machine.read(o, 4 * out).view(np.uint32), machine


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
extern "C" __global__ void kernel(unsigned* o, int work, int all) {
  if (blockIdx.x == 0 && threadIdx.x < 32) {
    unsigned found;
    do {
      found = *(volatile unsigned*)&word;
      if (all) found = __all_sync(~0u, found == 77) ? 77 : 0;
    } while (found != 77);
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


@pytest.mark.parametrize("vote", [0, 1])
def test_who_waits_lets_the_others_work(vote: int) -> None:
    """The loop that waits comes first in program order; those it waits for take 500 turns."""
    got, machine = launched(LOW, 128, 500, vote)
    assert got[:32].tolist() == [77] * 32
    assert machine.running.steps < 20_000


WAITS = {
    "counts": "for (int i = 0; i < 400 && *(volatile unsigned*)&word == 0; ++i) {}",
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


# -- instructions ----------------------------------------------------------------------------------

ORDERS = [("relaxed.gpu", "relaxed.gpu"), ("acquire.gpu", "release.gpu"), ("volatile", "volatile")]
FORMS = {  # of the type, of asm's operands, and words moved
    "b32": ("unsigned a", "%0", "a", 1),
    "b64": ("unsigned long long a", "%0", "a", 2),
    "v2.b32": ("unsigned a, b", "{%0, %1}", "ab", 2),
    "v2.b64": ("unsigned long long a, b", "{%0, %1}", "ab", 4),
}


@pytest.mark.parametrize("window", [".global", ""])
def test_strong_loads_and_stores_move_the_very_bits(window: str) -> None:
    opcodes, body = [], ""
    for load, store in ORDERS:
        for form, (declared, many, names, _) in FORMS.items():
            code, where = "l" if "long" in declared else "r", len(names)
            opcodes += [f"ld.{load}{window}.{form}", f"st.{store}{window}.{form}"]
            to = ", ".join(f'"={code}"({n})' for n in names)
            body += f"""{{ {declared}; to += 128;
  asm volatile("{opcodes[-2]} {many}, [%{where}];" : {to} : "l"(from) : "memory");
  asm volatile("{opcodes[-1]} [%{where}], {many};" :: {to.replace("=", "")}, "l"(to) : "memory"); }}
"""
    source = f"""extern "C" __global__ void kernel(unsigned* o) {{
  unsigned *from = o + 4 * threadIdx.x, *to = from;
{body}}}"""
    given = np.random.default_rng(3).integers(0, 2**32, (32, 4), np.uint32)
    given[0] = 0xFFFFFFFF, 0x7F800001, 0x80000000, 0xFF812345  # signalling NaN, minus zero
    more = np.zeros((len(opcodes) // 2, 32, 4), np.uint32)
    (got,) = cudacase.run(source, [np.concatenate([given[None], more])], capability=HOPPER).arrays
    assert all(f"{opcode} " in cudacase.ptx(source, HOPPER) for opcode in opcodes)
    for at, (_, _, _, words) in enumerate([*FORMS.values()] * len(ORDERS)):
        assert np.array_equal(got[at + 1, :, :words], given[:, :words])
        assert not got[at + 1, :, words:].any()


def test_a_counter_wraps_to_zero() -> None:
    source = """__device__ unsigned count = 3;
extern "C" __global__ void kernel(unsigned* o) {
  o[blockIdx.x * blockDim.x + threadIdx.x] = atomicInc(&count, 4);
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("red.release.gpu.global.inc.u32 [%0], 9;" :: "l"(&count) : "memory");
  if (threadIdx.x == 0)
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], 2;"
                 : "=r"(o[64 + blockIdx.x]) : "l"(&count) : "memory");
}"""
    got, _ = launched(source, 66, block=32)
    counted = (3 + np.arange(64)) % 5
    assert sorted(got[:64]) == sorted(counted)
    # 67 % 5 = 2; both blocks add one: 4; the first finds it above 2 and leaves 0.
    assert got[64:].tolist() == [4, 0]


# -- what orders -----------------------------------------------------------------------------------

HANDED = """__device__ unsigned flag;
__device__ int data[64];
extern "C" __global__ void kernel(unsigned* o) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = 5 + threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) { TELL }
  } else {
    if (threadIdx.x == 0) { unsigned v; do { LOOK } while (v != 1); }
    __syncthreads();
    o[threadIdx.x] = data[threadIdx.x];
  }
}"""
_MEMORY = ' : "memory");'
TELLS = {
    "st.release": f'asm("st.release.gpu.global.u32 [%0], 1;" :: "l"(&flag){_MEMORY}',
    "red.release": f'asm("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(&flag){_MEMORY}',
    "atom.acq_rel": 'unsigned old; asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"'
    f' : "=r"(old) : "l"(&flag){_MEMORY}',
    "fence, st.relaxed": "__threadfence(); "
    f'asm("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(&flag){_MEMORY}',
    "fence, atomicInc": "__threadfence(); atomicInc(&flag, 7);",
    "st.relaxed": f'asm("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(&flag){_MEMORY}',
    "st.volatile": "*(volatile unsigned*)&flag = 1;",
    "atomicInc": "atomicInc(&flag, 7);",
    "plain": "flag = 1;",
}
LOOKS = {
    form: f'asm volatile("ld.{form}.global.u32 %0, [%1];" : "=r"(v) : "l"(&flag){_MEMORY}'
    for form in ("acquire.gpu", "relaxed.gpu", "volatile")
}


def handed(tell: str, look: str) -> str:
    return HANDED.replace("TELL", TELLS[tell]).replace("LOOK", LOOKS[look])


@pytest.mark.parametrize(
    "tell",
    ["st.release", "red.release", "atom.acq_rel", "fence, st.relaxed", "fence, atomicInc"],
)
def test_what_is_released_may_be_read(tell: str) -> None:
    got, _ = launched(handed(tell, "acquire.gpu"), 64, sanitize=True)
    assert got.tolist() == [5 + t for t in range(64)]


@pytest.mark.parametrize(
    ("tell", "look", "what"),
    [
        ("st.relaxed", "acquire.gpu", "data"),
        ("st.relaxed", "relaxed.gpu", "data"),
        ("st.volatile", "volatile", "data"),
        ("atomicInc", "acquire.gpu", "data"),
        ("plain", "acquire.gpu", "flag"),
    ],
)
def test_what_is_not_released_races(tell: str, look: str, what: str) -> None:
    with pytest.raises(FaultError, match=f"race .* of {what}: ") as told:
        launched(handed(tell, look), 64, sanitize=True)
    assert told.value.details["fault"] == "race"
