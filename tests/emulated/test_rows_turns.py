"""Row kernels whose blocks take row after row, which a launch of a block a row does not show."""

from dataclasses import replace
from hashlib import sha256

import pytest
from changed_sources import changed, seen
from row_runs import HONEST, case

from gpulab import ops
from gpulab.kernels import row_tables
from gpulab.kernels.row_shape import Behind, Kept, Streamed
from gpulab.lab.runner import KernelRunner
from gpulab.runtime.emulated import EmulatedDevice

HOPPER = (9, 0)
FP32 = [c for c in HONEST if c.spec.backend == "raw" and c.variant.format == "fp32"]
LOOPING = [c for c in FP32 if c.spec.name != "plain"]


TRAILING = replace(next(s for s in row_tables.PLAIN if isinstance(s, Behind)), fit="kWhole")
"""Of the shortest rows that are summed behind others."""


def outputs(one, dims, blocks=None, sanitize=False, store=None, family="normal"):
    """Digests of the outputs, of a launch of so many blocks."""
    if blocks is not None:
        plan = replace(one.spec.plan(one.variant, HOPPER, dims), grid=(blocks, 1, 1))
        one = replace(one, spec=replace(one.spec, plan=lambda *_: plan))
    stored = ops.get(one.spec.op).stored_inputs(one.variant, dims, family, 0)
    runner = KernelRunner(one, EmulatedDevice(HOPPER, sanitize=sanitize, store=store), dims)
    found = runner(stored, poison=0x5A).outputs
    return {name: sha256(a.tobytes()).hexdigest() for name, a in found.items()}


def taken(one, dims):
    """The instantiation and the blocks of a row."""
    plan = one.spec.plan(one.variant, HOPPER, dims)
    return one.spec.build(one.variant, HOPPER, dims).entry, plan.cluster


@pytest.mark.parametrize("one", LOOPING, ids=lambda c: f"{c.spec.op}-{c.spec.name}")
def test_a_block_that_takes_several_rows_gives_the_bits_of_a_block_a_row(one):
    dims = {"rows": 5, "cols": 20000 if one.spec.name.startswith("residual") else 4100}
    assert outputs(one, dims) == outputs(one, dims, blocks=2)


@pytest.mark.parametrize(
    ("op", "name", "cols", "shape", "cluster"),
    [
        ("rmsnorm", "row", 4100, "Streamed<512, 1, 8, 3, 0, 2, kWithin>", 1),
        ("rmsnorm", "row", 4 * TRAILING.packs, TRAILING.cpp(), TRAILING.cluster),
        ("rmsnorm", "residual", 20000, "Streamed<512, 1, 8, 3, 0, 1, kWithin>", 2),
        ("rmsnorm", "residual", 33000, "Streamed<512, 1, 4, 3, 0, 1, kWithin, true, true>", 8),
        ("rmsnorm", "row", 16400, "Streamed<512, 1, 24, 6, 8, 1, kWithin>", 1),
        ("layernorm", "welford", 6000, "Streamed<512, 1, 8, 6, 0, 1, kWithin, true>", 1),
        ("layernorm", "two_pass", 6000, "Streamed<512, 1, 8, 6, 0, 1, kWithin, true>", 1),
        ("softmax", "two_pass", 33000, "Streamed<512, 1, 12, 3, 4, 2, kWithin>", 2),
        ("softmax", "online", 33000, "Streamed<512, 1, 10, 7, 6, 2, kWithin>", 2),
        ("crossentropy", "online", 2500, "Ahead<64, 1, 4, 16, kWithin>", 1),
        ("crossentropy", "online", 500, "Ahead<8, 16, 4, 8, kWithin>", 1),
    ],
)
def test_no_thread_races_another_while_rows_follow_each_other(op, name, cols, shape, cluster):
    """Three turns of one block, or of one cluster, under the race detector."""
    one = case(op, name, "fp32")
    rows = 33 if "16, 4, 8" in shape else 3
    dims = {"rows": rows, "cols": cols}
    entry, blocks = taken(one, dims)
    assert shape in entry
    assert blocks == cluster
    assert outputs(one, dims) == outputs(one, dims, blocks=cluster, sanitize=True)


def test_parameters_in_registers_give_the_bits_of_parameters_that_are_read(monkeypatch):
    one, dims = case("layernorm", "two_pass", "fp32"), {"rows": 3, "cols": 6000}
    assert taken(one, dims)[0].endswith(", true>>")
    held, chosen = outputs(one, dims, blocks=1), row_tables.shape
    monkeypatch.setattr(row_tables, "shape", lambda *of: replace(chosen(*of), holds=False))
    assert taken(one, dims)[0].endswith(", kWithin>>")
    assert held == outputs(one, dims, blocks=1)


POLLED = Streamed(64, 4, 3, blocks=1, cluster=2, polls=True, fit="kWhole")
"""512 packs a row, in two blocks of two warps: few enough that both ways add in the same order."""
REDUCE = "common/reduce.cuh"
BARRIER = "parts[place][warp] = value;\n    __syncthreads();"
WRONG = {
    "words": (REDUCE, "(words + lane % kCluster)", "(words)"),
    "warps": (REDUCE, "(parts[place][lane % kWarps])", "(parts[place][0])"),
    "barrier": (REDUCE, BARRIER, BARRIER.partition("\n")[0]),
    "places": (REDUCE, "place = meeting % 2;", "place = 0;"),
}
"""What is to be seen -> where what is replaced, and by what."""


@pytest.fixture
def polled(monkeypatch):
    """Sets the shape of all rows: two turns of both clusters."""
    dims = {"rows": 4, "cols": 4 * POLLED.packs}
    monkeypatch.setattr(row_tables, "shape", lambda *of: POLLED)
    return case("rmsnorm", "residual", "fp32"), dims, "near_max"


def test_blocks_that_poll_for_each_other_give_the_bits_of_those_that_pass_a_barrier(
    polled, monkeypatch
):
    """Rows that are gone over once more, times a tiny power of two, meet twice."""
    one, dims, family = polled
    found = outputs(one, dims, 4, sanitize=True, family=family)
    monkeypatch.setattr(row_tables, "shape", lambda *of: replace(POLLED, polls=False))
    assert outputs(one, dims, 4, family=family) == found


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_of_polling_is_seen(mistake, polled, tmp_path, monkeypatch):
    """A race, or other bits."""
    one, dims, family = polled
    right = outputs(one, dims, 4, family=family)
    store = changed(*WRONG[mistake], tmp_path, monkeypatch)
    found = seen(lambda: outputs(one, dims, 4, True, store, family), right)
    assert found in ("race", "other bits")


AGAIN = "row_meet(row);  // the moments of the first time have been read"
"""Where rows are summed once more, in the place of their first sums."""


@pytest.fixture(params=[1, 2], ids=["block", "cluster"])
def overflowing(request, monkeypatch):
    """Rows whose squares overflow, in blocks of two warps, alone or two a row; one is not full."""
    shape = Kept(64, 4, cluster=request.param)
    monkeypatch.setattr(row_tables, "shape", lambda *of: shape)
    return {"rows": 2, "cols": 4 * shape.packs - 64}, request.param


@pytest.mark.parametrize("name", ["two_pass", "welford"])
def test_no_thread_races_another_where_rows_are_summed_once_more(name, overflowing):
    dims, blocks = overflowing
    one = case("layernorm", name, "fp32")
    found = outputs(one, dims, blocks, family="near_max")
    assert outputs(one, dims, blocks, sanitize=True, family="near_max") == found


@pytest.mark.parametrize("overflowing", [1], indirect=True, ids=["block"])
def test_sums_that_nobody_has_read_yet_are_not_written_over(overflowing, tmp_path, monkeypatch):
    """(Stores into another block's shared memory are not watched.)"""
    dims, blocks = overflowing
    one = case("layernorm", "welford", "fp32")
    right = outputs(one, dims, blocks, family="near_max")
    store = changed("layernorm/row.cu", AGAIN, "", tmp_path, monkeypatch)
    assert seen(lambda: outputs(one, dims, blocks, True, store, "near_max"), right) == "race"
