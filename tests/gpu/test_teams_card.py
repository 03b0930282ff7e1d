"""Teams on the real card: blocks meet through global memory, and what does not fit is refused."""

import numpy as np
import pytest
from runtime_card import CONNECTION, PAIR, SIZED, run, source

from gpulab.errors import UsageError
from gpulab.registry import LaunchPlan, NumbaBuild
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.cuda_clock import clock_of
from gpulab.runtime.timing import Subject, time_kernel

pytestmark = pytest.mark.gpu

# Every member of a row's team gets twice = the sum over members m of (sum of the row + m). Whoever
# waits longer than a second gives up and says so, so that a mistake does not hang the card.
MEET = """
__device__ unsigned first_tag = 0xfffffffd, finished;
__device__ unsigned long long words[2][2048];

__device__ float meet(unsigned tag, float mine) {
    unsigned member = blockIdx.x % TEAM;
    unsigned long long* box = words[tag % 2] + (blockIdx.x - member), start, now;
    if (threadIdx.x == 0)
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(box + member),
                     "l"((unsigned long long)tag << 32 | __float_as_uint(mine)) : "memory");
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    float all = 0;
    for (unsigned i = threadIdx.x; i < TEAM; i += 32) {
        unsigned long long word;
        do {
            asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(box + i)
                         : "memory");
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
            if (now - start > 1000000000) return -1e30f;
        } while ((unsigned)(word >> 32) != tag);
        all += __uint_as_float((unsigned)word);
    }
    __syncwarp();
    for (int d = 16; d; d /= 2) all += __shfl_xor_sync(~0u, all, d);
    return all;
}

extern "C" __global__ void k(const float* x, float* y, int n) {
    unsigned member = blockIdx.x % TEAM, teams = gridDim.x / TEAM, tag, turn = 0;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(tag) : "l"(&first_tag) : "memory");
    for (unsigned row = blockIdx.x / TEAM; row < n / TEAM; row += teams, turn += 2) {
        if (threadIdx.x < 32) {
            float once = meet(tag + turn, x[row * TEAM + member]);
            float twice = meet(tag + turn + 1, once + member);
            if (threadIdx.x == 0) y[row * TEAM + member] = twice;
        }
    }
    unsigned turns = (n / TEAM + teams - 1) / teams;
    if (threadIdx.x == 0 && atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1)
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
                     :: "l"(&first_tag), "r"(tag + 2 * turns) : "memory");
}
"""


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    return CudaDevice(connection=CONNECTION, store=Store(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def built(card, tmp_path):
    return lambda team: card.build(source(tmp_path, MEET.replace("TEAM", f"{team}u")), SIZED)


def plan(team, rows, threads=32, an_sm=1):
    return LaunchPlan(
        (team * rows, 1, 1), (threads, 1, 1), persistent=True, team=team, blocks_an_sm=an_sm
    )


def given(team, rows, seed=0):
    """Rows of small integers, and what every member of each team gets."""
    x = np.random.default_rng(seed).integers(-3, 4, (rows, team)).astype(np.float32)
    sums = team * x.sum(axis=1, keepdims=True) + np.float32(team * (team - 1) // 2)
    return x.ravel(), np.repeat(sums, team, axis=1).ravel()


@pytest.mark.parametrize("share", [4, 1])
def test_teams_meet_twice_a_row_and_launch_after_launch(card, built, share):
    """Teams of a part of the card, and of all its multiprocessors."""
    team = card.multiprocessors // share
    function = built(team)
    for seed, rows in enumerate((1, 9, 4, 40)):
        x, want = given(team, rows, seed)
        np.testing.assert_array_equal(run(card, function, plan(team, rows), x, x.size), want)


def test_members_may_share_a_multiprocessor(card, built):
    team = 2 * card.multiprocessors
    x, want = given(team, 3)
    got = run(card, built(team), plan(team, 3, an_sm=2), x, x.size)
    np.testing.assert_array_equal(got, want)


def test_a_graph_of_cooperative_launches_is_timed(card, built):
    team, rows = card.multiprocessors // 4, 8
    function, sets = built(team), 3
    pairs = [given(team, rows, seed) for seed in range(sets)]
    x = [card.upload(pair[0]) for pair in pairs]
    y = [card.empty((team * rows,), np.dtype("f4")) for _ in range(sets)]
    bound = [
        card.bind(function, plan(team, rows), [a, b, team * rows])
        for a, b in zip(x, y, strict=True)
    ]

    def verify(i):
        return None if np.array_equal(card.download(y[i]), pairs[i][1]) else "other sums"

    measured = time_kernel(
        clock_of(card),
        Subject(
            lambda i: bound[i](), sets, 8 * team * rows, lambda i: card.refill(y[i], 0x5A), verify
        ),
    )
    assert measured.method == "graph", measured.note
    assert measured.wrong == []


def test_a_team_that_does_not_fit_is_refused(card, built):
    team = card.multiprocessors + 1
    x, _ = given(team, 1)
    with pytest.raises(UsageError, match=f"{team} blocks wait for each other"):
        run(card, built(team), plan(team, 1), x, x.size)


def test_the_driver_refuses_what_the_plan_is_wrong_about_and_lives(card, built):
    team = 3 * card.multiprocessors
    function = built(team)
    x, want = given(team, 1)
    with pytest.raises(UsageError, match="the driver refuses the launch"):
        run(card, function, plan(team, 1, threads=1024, an_sm=3), x, x.size)
    got = run(card, function, plan(team, 1, threads=32, an_sm=3), x, x.size)
    np.testing.assert_array_equal(got, want)


def test_a_numba_kernel_is_launched_as_a_team(card):
    def make():
        from numba import cuda

        def kernel(x, y):
            i = cuda.grid(1)
            y[i] = x[i] + 1

        return kernel

    function = card.build(NumbaBuild(make, "add one"), PAIR)
    x = np.arange(256, dtype=np.float32)
    np.testing.assert_array_equal(run(card, function, plan(4, 2), x), x + 1)
