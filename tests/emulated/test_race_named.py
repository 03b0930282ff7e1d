"""What a named barrier orders: those who only arrive at it tell, and are told nothing."""

import numpy as np
import pytest
from cudacase import run

from gpulab.errors import FaultError

KERNEL = """
#define AT(what, id) asm volatile("bar." what " %0, 64;" ::"r"(id) : "memory")
extern "C" __global__ void kernel(int* o) {
  __shared__ int s[2][32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  STEPS
}"""
RING = """
  for (int i = 0; i < 5; ++i) {
    if (warp == 0) {
      if (i >= 2) FREE_WAITED;
      s[i & 1][lane] = 10 * i + lane;
      AT("arrive", 1 + (i & 1));
    } else {
      AT("sync", 1 + (i & 1));
      o[32 * i + lane] = s[i & 1][31 - lane];
      if (i < 3) FREE_TOLD;
    }
  }"""
WAITED, TOLD = 'AT("sync", 3 + (i & 1))', 'AT("arrive", 3 + (i & 1))'


def launched(steps: str, threads: int) -> np.ndarray:
    source = KERNEL.replace("STEPS", steps)
    got = run(source, [np.zeros(160, np.int32)], block=(threads,), grid=(2,), sanitize=True)
    return got.arrays[0]


def test_a_ring_of_two_tiles_is_no_race() -> None:
    steps = RING.replace("FREE_WAITED", WAITED).replace("FREE_TOLD", TOLD)
    steps = steps.replace("o[", "if (blockIdx.x == 0) o[")
    want = 10 * np.arange(5)[:, None] + np.arange(32)[::-1]
    assert np.array_equal(launched(steps, 64).reshape(5, 32), want)


@pytest.mark.parametrize(
    "steps",
    [
        RING.replace("FREE_WAITED", "").replace("FREE_TOLD", ""),
        # The store comes after the arrival that is to tell of it.
        """if (warp == 0) { AT("arrive", 1); s[0][lane] = 1; }
        else { AT("sync", 1); if (s[0][lane]) o[0] = 1; }""",
        # Who arrives is told nothing of those who wait.
        """if (warp == 0) { AT("arrive", 1); if (s[0][lane ^ 1] == 7) o[0] = 1; }
        else { s[0][lane] = 1; AT("sync", 1); }""",
        # An arrival counts once: the second wait is met by another one.
        """if (warp == 0) { AT("arrive", 1); s[0][lane] = 1; }
        else if (warp == 1) { AT("sync", 1); AT("sync", 1); if (s[0][lane]) o[0] = 1; }
        else if (warp == 2) { AT("arrive", 1); }""",
    ],
)
def test_what_an_arrival_does_not_tell_is_a_race(steps: str) -> None:
    with pytest.raises(FaultError) as caught:
        launched("s[0][lane] = 0; __syncthreads();" + steps, 96 if "warp == 2" in steps else 64)
    assert caught.value.details["fault"] == "race"


def test_who_arrives_passes_on_what_it_was_told() -> None:
    steps = """if (warp == 0) { s[0][lane] = 5; AT("sync", 1); }
    else if (warp == 1) { AT("sync", 1); AT("arrive", 2); }
    else { AT("sync", 2); if (blockIdx.x == 0) o[lane] = s[0][31 - lane]; }"""
    assert launched(steps, 96)[:32].tolist() == [5] * 32
