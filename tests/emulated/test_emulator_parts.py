"""Parts of the emulator by themselves: local frames, products under way, boxes on their way."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cudacase import run

from gpulab.emulator.landings import Landing, landings_of
from gpulab.emulator.products import Products
from gpulab.emulator.sharedmem import SharedMemory
from gpulab.errors import FaultError

LOCAL = """extern "C" __global__ void kernel(int* o, int bytes) {
  int own[8];
  for (int i = 0; i < 8; i++) own[i] = o[i];
  o[threadIdx.x] = *(const int*)((const char*)own + bytes);
}"""


@pytest.mark.parametrize(
    ("at", "fault"),
    [(0, ""), (28, ""), (4096, "out_of_bounds"), (-4096, "out_of_bounds"), (2, "misaligned")],
)
def test_a_threads_own_array(at: int, fault: str) -> None:
    given = np.arange(10, 42, dtype=np.int32)
    if not fault:
        assert (run(LOCAL, [given, at]).arrays[0] == 10 + at // 4).all()
        return
    with pytest.raises(FaultError) as caught:
        run(LOCAL, [given, at])
    told = caught.value.details
    assert (told["fault"], told["space"], told["line"]) == (fault, "local", 4)


def test_a_product_reads_its_operands_until_its_group_is_waited_for() -> None:
    """Two warpgroups of two blocks; one product each in two groups of one warpgroup."""
    products = Products((256, 2))
    group, block = np.array([1]), np.array([0])
    for first in (0, 8):
        products.add(group, block, np.arange(first, first + 8)[None])
        products.commit(None)

    def read(word: int, column: int = 0) -> bool:
        return products.reads(np.array([word]), np.array([column]))

    assert read(3)
    assert read(11)
    assert not read(3, column=1), "another block's memory"
    products.wait(None, 1)
    assert not read(3), "the older group is done"
    assert read(11), "the newest may still be under way"
    only_the_other = np.arange(256)[:, None] < 128
    products.wait(only_the_other, 0)
    assert read(11), "another warpgroup waited"
    products.wait(None, 0)
    assert not read(11)


def test_what_is_not_committed_is_not_waited_for() -> None:
    products = Products((128, 1))
    products.add(np.array([0]), np.array([0]), np.arange(4)[None])
    products.wait(None, 0)
    assert products.reads(np.array([2]), np.array([0]))


def test_a_box_on_its_way_to_one_block_takes_nothing_from_another() -> None:
    shared = SharedMemory(32, 2, True)
    shared.row_valid[:] = 0xFF  # whole and in both blocks
    state = SimpleNamespace(shared=shared, boxes=None, signals=0)
    words = np.zeros((2, 1), np.uint32)
    landing = Landing(np.array([0, 1]), np.array([0]), words, 8)
    landings_of(state).add(state, 24, landing)
    assert shared.cell_valid is not None
    assert shared.cell_valid[:2].tolist() == [[0, 0xFFFFFFFF]] * 2
    assert shared.in_flight is not None
    assert shared.in_flight[:2].tolist() == [[True, False]] * 2
    assert not shared.row_valid[:8].any()
    assert shared.row_valid[8:].all()
