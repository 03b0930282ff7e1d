"""How rows are shared: every row length has a shape that each card can run."""

from dataclasses import replace

import pytest

from gpulab import arch, registry
from gpulab.device_code import LaunchPlan
from gpulab.kernels import row_shape, row_tables
from gpulab.kernels.row_packs import Packs, packs_of
from gpulab.kernels.row_shape import Behind, Kept, Streamed
from gpulab.runtime import assembly
from gpulab.runtime.residency import blocks_along_x

CAPABILITIES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
COLUMNS = [1, 2, 3, 255, 257, 1000, 4096, 5000, 16384, 50257, 131072, 262144, 1 << 20, 1 << 27]
CASES = [
    c
    for op in ("rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy")
    for c in registry.cases(op)
    if not c.variant.lesson and c.spec.name != "plain"
]
FP32 = [c for c in CASES if c.spec.backend == "raw" and c.variant.format == "fp32"]


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_a_launch_asks_for_no_more_than_the_card_has(capability):
    card = arch.get(capability)
    for case in CASES:
        for cols in COLUMNS:
            plan = case.spec.plan(case.variant, capability, {"rows": 7, "cols": cols})
            threads = plan.block[0]
            assert 32 <= threads <= 1024
            if case.spec.backend == "numba":
                build = case.spec.build(case.variant, capability, {"rows": 7, "cols": cols})
                assert build.bounds[0] == threads
                assert build.bounds[1] * threads <= card.max_threads_per_sm
                assert 1 <= build.bounds[1] <= card.max_blocks_per_sm
            assert plan.shared_bytes <= card.shared_per_block_bytes
            assert plan.grid[0] % plan.cluster == 0
            assert plan.cluster == 1 or capability >= (9, 0)
            if plan.persistent:
                assert plan.blocks_an_sm * threads <= card.max_threads_per_sm
                taken = plan.shared_bytes + card.shared_reserved_bytes
                assert plan.blocks_an_sm * taken <= card.shared_per_sm_bytes


@pytest.mark.parametrize("capability", [(7, 5), (8, 9), (9, 0)], ids=str)
@pytest.mark.parametrize(
    "table",
    ["PLAIN", "LOG_ONLINE", "ONLINE", "MAXIMUM_FIRST", "TWO_PARAMETERS", "TWO_ARRAYS"],
)
def test_a_row_stays_on_the_chip_or_its_rest_is_known(table, capability):
    """What is kept of a row is all of it, or the kernel is told that there is a rest."""
    arrays = 2 if table == "TWO_ARRAYS" else 1
    for count in (1, 7, 512, 513, 4096, 4097, 16384, 32768, 32769, 1 << 20):
        for words in (True, False):
            row = Packs(8, count, words, 16 * arrays, arrays)
            shape = row_tables.shape(getattr(row_tables, table), row, capability)
            if isinstance(shape, Kept):
                assert (shape.fit == "kBeyond") == (count > shape.packs)
            if isinstance(shape, Behind):
                assert shape.threads <= 1024
                assert 4 * count > 3 * shape.packs
                assert count <= shape.packs
                assert capability >= (9, 0)
            assert (shape.fit == "kWhole") <= (count == shape.packs)
            if isinstance(shape, Streamed):
                assert count <= shape.packs
                assert words
                assert shape.turns or shape.blocks > 1
                assert capability >= ((9, 0) if shape.cluster > 1 else (8, 0))
                batch = next(b for b in (4, 2, 1) if shape.shared % b == 0)
                assert shape.ring * batch >= shape.shared, "the ring holds a row"


@pytest.mark.parametrize(
    "name", ["PLAIN", "TWO_PARAMETERS", "MAXIMUM_FIRST", "LOG_ONLINE", "ONLINE", "TWO_ARRAYS"]
)
def test_rows_take_the_shape_that_they_fill(name):
    """From 9.0, in packs of 16 bytes; from three quarters of what the shape holds."""
    table, arrays = getattr(row_tables, name), 1 + (name == "TWO_ARRAYS")

    def chosen(count, capability=(9, 0), bytes_each=16):
        row = Packs(8, count, True, bytes_each * arrays, arrays)
        return row_tables.shape(table, row, capability)

    counts = [shape.packs for shape in table if isinstance(shape, Behind)]
    assert counts
    for count in counts:
        whole, within = chosen(count), chosen(count - count // 4 + 1)
        assert isinstance(whole, Behind)
        assert isinstance(within, Behind)
        assert (whole.packs, whole.fit, within.fit) == (count, "kWhole", "kWithin")
        for other in (
            chosen(count - count // 4),
            chosen(count, (8, 9)),
            chosen(count, bytes_each=8),
        ):
            assert not isinstance(other, Behind) or other.packs < count
            assert not isinstance(other, Streamed) or other.packs >= count - count // 4


def test_rows_behind_each_other_are_those_of_cards_that_have_room_for_three():
    """And for all blocks that an SM is to have."""
    for arrays in (1, 2):
        shape = Behind(256, 8 // arrays, blocks=2, cluster=2)
        row = Packs(8, shape.packs, True, 16 * arrays, arrays)
        assert shape.shared_bytes(row) == 3 * 32768
        assert shape.on((9, 0), row) == replace(shape, fit="kWhole")
        assert shape.on((8, 9), row) is None
        assert shape.on((12, 0), row) is None, "one, not two"
        assert replace(shape, blocks=1).on((12, 0), row) is not None
        assert replace(shape, blocks=3).on((9, 0), row) is None


@pytest.mark.parametrize("case", FP32, ids=lambda c: f"{c.spec.op}-{c.spec.name}")
def test_reductions_take_no_more_shared_memory_than_is_left_for_them(case):
    """Moments take all of it."""
    of = (case.variant, (9, 0), {"rows": 7, "cols": 6000})
    code = assembly.prepare(case.spec.build(*of), case.spec.params(case.variant), (9, 0))
    taken = code.resources.shared_bytes
    left = row_shape.static_bytes(case.spec.plan(*of).block[0], 1)
    assert taken <= left
    assert (taken == left) == (case.spec.op == "layernorm")


def test_two_blocks_of_an_sm_hold_halves_of_rows_and_the_sums_of_their_warps():
    """In the room that two rings leave: not a byte more would do."""
    case = next(registry.cases("softmax", kernel="online", format="bf16", backend="raw"))
    of = (case.variant, (9, 0), {"rows": 7, "cols": 98304})
    code = assembly.prepare(case.spec.build(*of), case.spec.params(case.variant), (9, 0))
    plan, card = case.spec.plan(*of), arch.get((9, 0))
    taken = code.resources.shared_bytes
    room = card.shared_per_sm_bytes // 2 - card.shared_reserved_bytes - plan.shared_bytes
    assert plan.blocks_an_sm == 2
    assert taken <= row_shape.static_bytes(plan.block[0], plan.cluster) == room


def test_every_branch_free_lot_of_a_row_is_there():
    """A row that is gone over once has no check where it is a multiple of two lots of 4 packs."""
    for count in (512, 1024, 520, 4096, 16384, 32768):
        shape = row_tables.shape(row_tables.ONCE, Packs(8, count, True, 16), (9, 0))
        assert (shape.fit == "kWhole") == (count % (8 * shape.group) == 0)
    assert row_tables.shape(row_tables.ONCE, Packs(8, 520, True, 16), (9, 0)).fit == "kWithin"


def plan(blocks, cluster=1, persistent=True, an_sm=1, equal=False):
    return LaunchPlan(
        (blocks, 1, 1),
        (256, 1, 1),
        persistent=persistent,
        cluster=cluster,
        blocks_an_sm=an_sm,
        equal_shares=equal,
    )


def never():
    raise AssertionError("only clusters are asked for")


def test_a_launch_that_is_not_persistent_has_all_its_blocks():
    assert blocks_along_x(plan(5000, persistent=False), 132, never) == 5000


@pytest.mark.parametrize(
    ("given", "blocks"),
    [
        (plan(100), 100),
        (plan(1000), 132),
        (plan(1000, an_sm=2), 264),
        (plan(1000, an_sm=2, equal=True), 250),  # four turns: 264 would leave 56 idle in the last
        (plan(264, an_sm=2, equal=True), 264),
        (plan(265, an_sm=2, equal=True), 264),  # two turns of 133 would not be equal either
    ],
)
def test_a_persistent_launch_has_what_the_card_holds(given, blocks):
    assert blocks_along_x(given, 132, never) == blocks


@pytest.mark.parametrize(
    ("at_once", "equal", "blocks"),
    [
        (33, False, 132),
        (30, False, 120),
        (40, False, 132),
        (30, True, 120),
        (33, True, 128),
    ],
)
def test_clusters_are_no_more_than_fit_into_the_gpcs(at_once, equal, blocks):
    """128 clusters of 4 on 132 multiprocessors: 33, or what the card holds; four turns of 32."""
    assert blocks_along_x(plan(512, cluster=4, equal=equal), 132, lambda: at_once) == blocks


def test_rows_stream_only_in_whole_words_that_fit():
    """Half a word cannot be copied by itself; what is longer than all packs does not fit."""
    streamed = Streamed(512, 1, 1, 4)
    card, words = arch.get((8, 9)), packs_of(8 * 512, "bf16")
    assert (words.elements, words.count, words.whole_words) == (8, 512, True)
    found = streamed.on((8, 9), words)
    assert found.fit == "kWhole"
    assert found.blocks == 3 == card.max_threads_per_sm // 512, "not the four of the table"
    assert streamed.on((8, 9), packs_of(8 * 513, "bf16")) is None
    assert streamed.on((8, 9), packs_of(8 * 511, "bf16")).fit == "kWithin"
    for cols, fmt, whole in (
        (511, "bf16", False), (510, "bf16", True), (510, "e4m3", False), (508, "e4m3", True),
        (511, "fp32", True),
    ):  # fmt: skip
        packs = packs_of(cols, fmt)
        assert packs.whole_words is whole
        assert packs.elements * packs.count == cols
        assert (streamed.on((8, 9), packs) is None) is not whole


def test_clusters_that_not_every_card_takes_are_for_those_that_were_seen_to():
    shape, row = Behind(512, 4, blocks=1, cluster=16), Packs(8, 32768, True, 32, 2)
    assert shape.on((9, 0), row) is not None
    assert shape.on((10, 0), row) is None
    assert replace(shape, cluster=8).on((10, 0), replace(row, count=16384)) is not None
