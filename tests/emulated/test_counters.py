"""Counters fed with synthetic accesses whose cost was worked out by hand."""

import numpy as np
import pytest
from numpy.typing import NDArray

from gpulab.emulator.counters import KEYS, Counters
from gpulab.emulator.observe import Access, Lanes, LaunchInfo, lanes_of

T = 32
LANE = np.arange(T, dtype=np.int64)[:, None]
LD = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
ST = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"


def everyone(threads: int = T, blocks: int = 1) -> Lanes:
    return Lanes(threads, np.arange(blocks))


def count(*accesses: Access, block: int = T) -> dict[str, float]:
    counters = Counters()
    counters.begin(LaunchInfo("k", (1, 1, 1), (block, 1, 1), 4096))
    for access in accesses:
        counters.access(access)
    return counters.end()


def global_load(address: NDArray[np.int64], nbytes: int, lanes: Lanes | None = None) -> Access:
    return Access("global", "load", address, nbytes, lanes or everyone(), "ld.global.f32")


def shared(
    address: NDArray[np.int64],
    nbytes: int = 4,
    kind: str = "load",
    lanes: Lanes | None = None,
    opcode: str = "ld.shared.f32",
    phase: str = "now",
) -> Access:
    return Access("shared", kind, address, nbytes, lanes or everyone(), opcode, phase=phase)


@pytest.mark.parametrize(
    ("address", "nbytes", "sectors"),
    [
        (4 * LANE, 4, 4),  # stride 1: 128 bytes in a row
        (8 * LANE, 4, 8),  # stride 2: 256 bytes, every second word
        (256 * LANE, 4, 32),  # stride 64: a sector each
        (16 * LANE, 16, 16),  # float4: 512 bytes in a row
        (2 * LANE, 2, 2),  # half: 64 bytes
        (8 * LANE, 8, 8),
        (4 * LANE + 16, 4, 5),  # stride 1 off the sector boundary
        (0 * LANE, 4, 1),  # everybody the same word
        (4 * LANE[::-1], 4, 4),  # backwards: order does not matter
        (4 * (LANE % 2) * 64, 4, 2),  # two words, interleaved
        (np.int64([[64]]), 4, 1),  # a uniform address, shape (1, 1)
    ],
)
def test_sectors_per_request(address: NDArray[np.int64], nbytes: int, sectors: int) -> None:
    found = count(global_load(address, nbytes))
    assert (found[REQUESTS], found[SECTORS]) == (1, sectors)
    assert found["l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"] == sectors
    assert found["global_load_bytes"] == 32 * nbytes
    assert found["global_sector_bytes"] == 32 * sectors


def test_half_storage_halves_the_sectors() -> None:
    wide, narrow = count(global_load(4 * LANE, 4)), count(global_load(2 * LANE, 2))
    assert wide[SECTORS] == 2 * narrow[SECTORS]


def test_sectors_of_a_masked_warp() -> None:
    # Lanes 0 and 31 of stride 1: words 0 and 124, two sectors; the idle lanes' addresses are junk.
    address = np.where((LANE == 0) | (LANE == 31), 4 * LANE, 10**9 + 4096 * LANE)
    found = count(global_load(address, 4, lanes_of(T, [0, 31], [0, 0])))
    assert (found[REQUESTS], found[SECTORS], found["global_load_bytes"]) == (1, 2, 8)


def test_idle_warps_make_no_request() -> None:
    lanes = lanes_of(96, [33, 34], [0, 0])  # only the second of three warps
    found = count(global_load(4 * np.arange(96, dtype=np.int64)[:, None], 4, lanes), block=96)
    assert (found[REQUESTS], found[SECTORS]) == (1, 1)
    nobody = Lanes(T, np.arange(1), np.bool_([[False]]))
    assert count(global_load(4 * LANE, 4, nobody))[REQUESTS] == 0


def test_a_short_last_warp() -> None:
    # 40 threads: 32 words are 4 sectors, the 8 words of the last warp one.
    address = 4 * np.arange(40, dtype=np.int64)[:, None]
    found = count(global_load(address, 4, everyone(40)), block=40)
    assert (found[REQUESTS], found[SECTORS]) == (2, 5)


@pytest.mark.parametrize("shape", ["(T, 1)", "(T, B)", "(1, B)", "(T, B) masked"])
def test_counts_do_not_depend_on_how_arrays_are_broadcast(shape: str) -> None:
    threads, blocks = 64, 3
    base = 8 * np.arange(threads, dtype=np.int64)[:, None]
    lanes = everyone(threads, blocks)
    want = (threads // 32 * blocks, threads // 32 * blocks * 8)
    if shape == "(T, B)":
        base = base + 4096 * np.arange(blocks)
    elif shape == "(1, B)":
        base, want = 4096 * np.arange(blocks)[None, :], (6, 6)
    elif shape == "(T, B) masked":
        mask = np.ones((threads, blocks), np.bool_)
        mask[32:, 1] = False  # the second warp of the second block idles
        lanes, want = Lanes(threads, np.arange(blocks), mask), (5, 40)
    found = count(global_load(base, 4, lanes), block=threads)
    assert (found[REQUESTS], found[SECTORS]) == want


def test_stores_and_atomics_are_counted_apart() -> None:
    store = Access("global", "store", 4 * LANE, 4, everyone(), "st.global.f32")
    atomic = Access("global", "atomic", 0 * LANE, 4, everyone(), "atom.global.add.f32")
    found = count(store, atomic)
    assert found["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 4
    assert (found["global_atomic_requests"], found["global_atomic_sectors"]) == (1, 1)
    assert found[REQUESTS] == 0


@pytest.mark.parametrize("kind", ["load", "store"])
@pytest.mark.parametrize(
    ("address", "nbytes", "conflicts"),
    [
        (4 * LANE, 4, 0),
        (0 * LANE, 4, 0),  # the same word: broadcast
        (8 * LANE, 4, 1),  # stride 2: two words a bank
        (16 * LANE, 4, 3),
        (128 * LANE, 4, 31),  # a column of [32][32]
        (132 * LANE, 4, 0),  # a column of [32][33]
        (np.where(LANE < 31, 0, 128), 4, 1),  # 31 lanes on one word, one on another of its bank
        (np.where(LANE % 2, 128, 0), 4, 1),
        (2 * LANE, 2, 0),  # two halves a word
        (64 * LANE, 2, 15),  # 16 words in each of two banks
        (8 * LANE, 8, 0),  # half-warps of 32 words each
        (16 * LANE, 8, 2),  # stride 2 in 8-byte units: two words a bank in each half
        (256 * LANE, 8, 30),  # all in banks 0 and 1: 16 a half, one of them free
        (16 * LANE, 16, 0),  # quarter-warps of 32 words each
        (32 * LANE, 16, 4),
        (128 * LANE, 16, 28),  # 8 a quarter, one of them free, four quarters
        (144 * LANE, 16, 0),  # rows padded by 16 bytes
    ],
)
def test_bank_conflicts(address: NDArray[np.int64], nbytes: int, conflicts: int, kind: str) -> None:
    found = count(shared(address, nbytes, kind))
    assert found[LD if kind == "load" else ST] == conflicts
    assert found[ST if kind == "load" else LD] == 0
    least = max(1, nbytes // 4)
    merged = kind == "load" and nbytes > 4 and len(np.unique(address)) < 32
    assert found[f"shared_{kind}_wavefronts"] == (least // 2 if merged else least + conflicts)


@pytest.mark.parametrize(
    ("element", "nbytes", "load", "store"),
    [
        (0 * LANE, 8, 1, 2),  # one element for all: a load merges, a store does not
        (0 * LANE, 16, 2, 4),
        (LANE // 2, 8, 1, 2),  # neighbours share
        ((LANE & 1) + 2 * (LANE // 4), 8, 1, 2),  # lanes i and i + 2 share
        (LANE % 16, 8, 2, 2),  # lanes i and i + 16 share: no merging
        (LANE // 2 * 16, 8, 16, 16),  # neighbours share, but 16 words meet in a bank
    ],
)
def test_vector_loads_that_merge(
    element: NDArray[np.int64], nbytes: int, load: int, store: int
) -> None:
    found = count(shared(element * nbytes, nbytes), shared(element * nbytes, nbytes, "store"))
    assert (found["shared_load_wavefronts"], found["shared_store_wavefronts"]) == (load, store)


def test_conflicts_are_found_inside_half_warps_only() -> None:
    # Words 0 and 32 share bank 0. Lanes 14, 15 sit in one half-warp, 15 and 16 do not.
    def hot(first: int) -> NDArray[np.int64]:
        return np.where(first == LANE, 0, np.where(first + 1 == LANE, 128, 64))

    assert count(shared(hot(14), 8, "store"))[ST] == 1
    assert count(shared(hot(15), 8, "store"))[ST] == 0
    assert count(shared(hot(6), 16, "store"))[ST] == 1
    assert count(shared(hot(7), 16, "store"))[ST] == 0


def test_idle_lanes_do_not_conflict() -> None:
    address = 128 * LANE
    lanes = lanes_of(T, range(4), [0] * 4)
    assert count(shared(address, 4, lanes=lanes))[LD] == 3
    # 16-byte: lanes 0..3 are in the first quarter only; the other quarters take nothing.
    found = count(shared(address, 16, "store", lanes=lanes))
    assert (found["shared_store_wavefronts"], found[ST]) == (4, 3)


def test_conflicts_scale_with_blocks() -> None:
    found = count(shared(128 * LANE, 4, lanes=everyone(T, 7)))
    assert (found[LD], found["shared_load_requests"]) == (7 * 31, 7)


@pytest.mark.parametrize(
    ("pitch", "matrices", "conflicts"),
    [(64, 4, 12), (128, 4, 28), (144, 4, 0), (80, 4, 0), (128, 2, 14)],
)
def test_ldmatrix_conflicts_in_phases_of_eight_rows(
    pitch: int, matrices: int, conflicts: int
) -> None:
    # Rows 64 bytes apart repeat a bank every 2 rows: 4 words a bank, 3 too many a matrix.
    lanes = lanes_of(T, range(8 * matrices), [0] * 8 * matrices)
    opcode = f"ldmatrix.sync.aligned.m8n8.x{matrices}.shared.b16"
    found = count(shared(pitch * LANE, 16, lanes=lanes, opcode=opcode))
    assert found[LD] == conflicts
    assert found["smsp__inst_executed_op_ldsm.sum"] == 1


def test_instructions_divergence_and_barriers() -> None:
    counters = Counters()
    counters.begin(LaunchInfo("k", (2, 1, 1), (48, 1, 1), 0))
    full, few = Lanes(48, np.arange(2)), lanes_of(48, [0, 40], [0, 0])
    counters.instruction("fma.rn.f32", full, None)
    counters.instruction("add.s32", few, None)
    counters.branch(full, np.arange(48)[:, None] < 16, None)  # splits the first warp of each block
    counters.branch(full, np.arange(48)[:, None] < 32, None)  # splits none
    counters.branch(full, np.bool_([[True, False]]), None)  # differs between blocks only
    counters.barrier(np.arange(2), None)
    counters.warp_sync(full, np.uint32([[0xFFFFFFFF]]), "bar.warp.sync", None)
    found = counters.end()
    assert found["instructions"] == 4 + 2
    assert found["thread_instructions"] == 96 + 2
    assert found["partial_warp_instructions"] == 2  # a last warp of 16 threads is whole
    assert (found["branches"], found["divergent_branches"]) == (12, 2)
    assert (found["barriers"], found["warp_syncs"]) == (2, 4)
    assert (found["instructions.fp32"], found["instructions.integer"]) == (4, 2)
    assert found["opcode.add.s32"] == 2
    assert found["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"] == 96


def test_tensor_products() -> None:
    counters = Counters()
    counters.begin(LaunchInfo("k", (1, 1, 1), (128, 1, 1), 0))
    opcode = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    counters.instruction(opcode, everyone(128), None)
    found = counters.end()
    assert found["tensor_products"] == 4 * 16 * 8 * 16
    assert found["tensor_products.f16"] == 4 * 16 * 8 * 16


def test_every_fixed_key_is_there_and_described() -> None:
    found = count()
    assert set(found) >= set(KEYS)
    assert all(value == 0 for value in found.values())
    assert all(key.unit and key.meaning for key in KEYS.values())
    assert not any(
        isinstance(value, np.generic) for value in count(global_load(4 * LANE, 4)).values()
    )


def brute_force_conflicts(address: list[int], nbytes: int) -> int:
    """The rule of the module text, lane by lane, written without arrays."""
    words = max(1, nbytes // 4)
    group = 32 // words
    conflicts = 0
    for first in range(0, 32, group):
        banks: dict[int, set[int]] = {}
        for lane in range(first, first + group):
            for k in range(words):
                word = address[lane] // 4 + k
                banks.setdefault(word % 32, set()).add(word)
        conflicts += max(len(found) for found in banks.values()) - 1
    return conflicts


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_random_patterns_agree_with_a_lane_by_lane_count(nbytes: int) -> None:
    rng = np.random.default_rng(nbytes)
    for _ in range(50):
        address = rng.integers(0, rng.integers(1, 512), (T, 1)) * nbytes
        found = count(shared(address, nbytes), global_load(address, nbytes))
        assert found[LD] == brute_force_conflicts(address[:, 0].tolist(), nbytes)
        assert found[SECTORS] == len(set((address[:, 0] // 32).tolist()))
