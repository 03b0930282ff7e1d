"""Rows that are summed while the one before is written: by few threads, the code of long rows."""

from dataclasses import replace

import numpy as np
import pytest
from changed_sources import changed, seen
from row_runs import HONEST, case, judge

from gpulab import ops
from gpulab.formats import decode, encode
from gpulab.kernels import row_shape, row_tables
from gpulab.kernels.row_shape import Behind, Packs, Streamed
from gpulab.lab.runner import KernelRunner
from gpulab.ops.rows_families import families_for, together
from gpulab.runtime import assembly, sources
from gpulab.runtime.emulated import EmulatedDevice

HOPPER = (9, 0)
SMALL = Behind(64, 4, 3, blocks=1, cluster=2, fit="kWhole")
"""512 packs a row, in two blocks of two warps."""
SHORTER = replace(SMALL, fit="kWithin")
FORMATS = ("fp32", "fp16", "bf16")
KERNELS = [
    ("rmsnorm", "row"),
    ("layernorm", "two_pass"),
    ("layernorm", "welford"),
    ("softmax", "two_pass"),
    ("softmax", "online"),
    ("logsoftmax", "two_pass"),
    ("logsoftmax", "online"),
]


@pytest.fixture
def taken(monkeypatch):
    """Sets the shape of all rows, and how many clusters take them in turns."""
    plan = row_shape.plan

    def put(shape, clusters=1):
        def few(chosen, dims, row):
            found = plan(chosen, dims, row)
            return replace(found, grid=(min(clusters * shape.cluster, found.grid[0]), 1, 1))

        monkeypatch.setattr(row_tables, "shape", lambda *of: shape)
        monkeypatch.setattr(row_shape, "plan", few)

    return put


def columns(fmt, shape, fewer=0):
    """Of a row of all packs of a shape, or of fewer."""
    return (shape.packs - fewer) * (4 if fmt == "fp32" else 8)


def outputs(one, stored, sanitize=False, store=None):
    """Bytes of y of each row."""
    rows, cols = stored["x"].shape
    device = EmulatedDevice(HOPPER, sanitize=sanitize, store=store)
    y = KernelRunner(one, device, {"rows": rows, "cols": cols})(stored, poison=0x5A).outputs["y"]
    return [row.tobytes() for row in y]


def inputs(one, rows, cols, family="normal"):
    dims = {"rows": rows, "cols": cols}
    return dict(ops.get(one.spec.op).stored_inputs(one.variant, dims, family, 0))


@pytest.mark.parametrize("number", range(len(KERNELS)), ids=["-".join(k) for k in KERNELS])
def test_every_family_in_rows_behind_each_other(number, taken):
    """Two clusters, seven rows each; some are gone over again times a tiny power of two. Softmaxes,
    of which two share all that a shorter row changes, take turns with the shapes."""
    op, name = KERNELS[number]
    ways = ((SMALL, 0), (SHORTER, 70))
    for turn, (shape, fewer) in enumerate(ways if number < 3 else ways[number % 2 :][:1]):
        taken(shape, clusters=2)
        fmt = FORMATS[(number + turn) % 3]
        names = families_for(fmt)
        dims = {"rows": len(names), "cols": columns(fmt, shape, fewer)}
        one = case(op, name, fmt)
        build = one.spec.build(one.variant, HOPPER, dims)
        assert build.source == f"{op}/behind.cu"
        assert build.entry.endswith(f", {shape.cpp()}>")
        j = judge(one, dims, HOPPER, families=[together(names, range(1))])
        assert j.arithmetic_passed, (one.label, dims, j.reason)
        assert not j.structure, (one.label, dims, j.reason)


@pytest.mark.parametrize("key", KERNELS, ids="-".join)
def test_bits_are_those_of_a_cluster_a_row_however_many_rows_there_are(key, taken):
    """One row, one more than there are clusters, more than there are places of meetings."""
    one = case(*key, "fp32")
    stored = inputs(one, 7, columns("fp32", SMALL))
    taken(SMALL, clusters=7)
    alone = outputs(one, stored)
    for rows, clusters in ((1, 1), (2, 1), (7, 1)):
        taken(SMALL, clusters)
        fewer = stored | {"x": stored["x"][:rows]}
        assert seen(lambda fewer=fewer: outputs(one, fewer), alone[:rows]) == "nothing"


SPECIAL = {0: np.nan, 2: np.inf, 3: -np.inf, 5: np.nan}
"""Row -> a value of some of its elements; the others are ordinary."""


@pytest.mark.parametrize("fmt", ["fp32", pytest.param("bf16", marks=pytest.mark.whole)])
@pytest.mark.parametrize("key", KERNELS, ids="-".join)
def test_what_is_not_finite_stays_in_its_row(key, fmt, taken):
    one = case(*key, fmt)
    stored = inputs(one, 6, columns(fmt, SMALL))
    taken(SMALL)
    plain = outputs(one, stored)
    x = decode(fmt, stored["x"]).copy()
    for row, value in SPECIAL.items():
        x[row, 300 * row + 7] = value
    x[5] = -np.inf
    got = outputs(one, stored | {"x": encode(fmt, x)})
    for row in range(6):
        y = decode(fmt, np.frombuffer(got[row], stored["x"].dtype))
        if row not in SPECIAL:
            assert got[row] == plain[row]
        elif key[0] in ("softmax", "logsoftmax") and row == 3:  # one element without weight
            assert np.isfinite(y).sum() == y.size - (key[0] == "logsoftmax")
        elif key[0] == "rmsnorm" and row in (2, 3):
            assert np.isnan(y).sum() == 1, "inf / inf; the others are 0"
        else:
            assert np.isnan(y).all()


@pytest.mark.parametrize("key", KERNELS[:3], ids="-".join)
def test_rows_whose_squares_overflow_are_gone_over_again(key, taken):
    """Every second row; the others' bits do not change by it."""
    one = case(*key, "fp32")
    stored = inputs(one, 7, columns("fp32", SMALL))
    taken(SMALL)
    plain = outputs(one, stored)
    x = stored["x"].copy()
    x[::2] *= np.float32(2e38 / np.abs(x).max())
    got = outputs(one, stored | {"x": x})
    exact = x.astype(np.float64)
    if key[0] == "layernorm":
        exact -= exact.mean(axis=1, keepdims=True)
    exact = exact / np.sqrt(np.square(exact).mean(axis=1, keepdims=True)) * stored["weight"]
    if key[0] == "layernorm":
        exact += stored["bias"]
    for row in range(7):
        if row % 2:
            assert got[row] == plain[row]
        else:
            y = np.frombuffer(got[row], np.float32)
            np.testing.assert_allclose(y, exact[row], rtol=1e-5, atol=1e-5)


def test_layer_norm_keeps_the_digits_of_a_spread_beside_a_large_first_element(taken):
    """Means are merged where they lie; about x[0] they would have its rounding errors."""
    taken(SMALL)
    one = case("layernorm", "two_pass", "fp32")
    stored = inputs(one, 2, columns("fp32", SMALL))
    stored["bias"][...] = 0.0
    x = stored["x"]
    x[0] += 1e4
    x[1, 0] = 2.0**24
    y = np.array([np.frombuffer(row, np.float32) for row in outputs(one, stored)])
    exact = x - x.mean(axis=1, keepdims=True, dtype=np.float64)
    exact = exact / np.sqrt(np.square(exact).mean(axis=1, keepdims=True)) * stored["weight"]
    error = np.abs(y - exact)
    assert error[0].max() < 2.0**-9, "the numbers themselves have steps of 2^-10"
    assert (error[1, 1:] / np.abs(exact[1, 1:])).max() < 2.0**-18


@pytest.mark.parametrize("key", [KERNELS[1], KERNELS[4]], ids="-".join)
def test_no_thread_races_another(key, taken):
    """One cluster, with rows that are gone over again, under the race detector."""
    taken(SHORTER)
    one = case(*key, "fp32")
    stored = inputs(one, 5, columns("fp32", SHORTER, 3))
    stored["x"][1::2] *= np.float32(1e30)
    plain = outputs(one, stored)
    assert seen(lambda: outputs(one, stored, sanitize=True), plain) == "nothing"


WRONG = {
    "wait": ("ptx::mbarrier_wait(barriers + ptx::kBarrierBytes * place, parity);", ""),
    "row": ("part = parts + place * kParts +", "part = parts + (place + 1) % kAll * kParts +"),
    "places": ("kTurns = 4,", "kTurns = 1,"),
    "block": ("warp = ptx::cluster_rank() * kWarps +", "warp ="),
    "copies": ("kRing - kBatches - 1 - kNumber", "kRing - 1 - kNumber"),
    "next": ("begin(row + 3 * step);", ""),
    "first": ("wait<kBatches - 1>", "wait<kBatches>"),
    "filled": ("--missing;", ""),
    "again": ("unsigned at = of.back;", "unsigned at = of.front;"),
}
"""What is to be seen -> what is replaced in common/behind.cuh, and by what."""
SEEN_AS = ("other bits", "race", "async_in_flight", "uninitialised", "mbarrier")


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_seen(mistake, taken, tmp_path, monkeypatch):
    """A fault, or other bits."""
    taken(SMALL)
    one = case("rmsnorm", "row", "fp32")
    stored = inputs(one, 7, columns("fp32", SMALL))
    stored["x"][1:5] *= np.float32(1e30)
    right = outputs(one, stored)
    store = changed("common/behind.cuh", *WRONG[mistake], tmp_path, monkeypatch)
    assert seen(lambda: outputs(one, stored, sanitize=True, store=store), right) in SEEN_AS


def test_rows_take_the_shape_that_they_fill():
    """From 9.0, in packs of 16 bytes; from three quarters of what the shape holds."""

    def chosen(table, count, capability=HOPPER, kept_bytes=16):
        row = Packs(8, count, True, kept_bytes)
        return row_tables.shape(table, row, capability)

    for table, counts in (
        (row_tables.PLAIN, (16384, 32768)),
        (row_tables.TWO_PARAMETERS, (4096, 16384, 32768)),
        (row_tables.MAXIMUM_FIRST, (16384, 32768)),
        (row_tables.LOG_ONLINE, (16384, 32768)),
        (row_tables.ONLINE, (32768,)),
    ):
        for count in counts:
            whole, within = chosen(table, count), chosen(table, count - count // 4 + 1)
            assert isinstance(whole, Behind)
            assert isinstance(within, Behind)
            assert (whole.packs, whole.fit, within.fit) == (count, "kWhole", "kWithin")
            assert whole.ring * 4 >= 2 * whole.shared, "two rows"
            for other in (
                chosen(table, count - count // 4),
                chosen(table, count, (8, 9)),
                chosen(table, count, kept_bytes=8),
                chosen(table, count, (12, 0)),
            ):
                assert not isinstance(other, Behind)
                assert not isinstance(other, Streamed) or other.packs >= count - count // 4


@pytest.mark.parametrize("key", [KERNELS[1], KERNELS[3]], ids="-".join)
def test_meetings_take_the_shared_memory_that_is_left_for_them(key):
    """LayerNorm's all of it."""
    one = case(*key, "fp32")
    of = (one.variant, HOPPER, {"rows": 7, "cols": 65536})
    code = assembly.prepare(one.spec.build(*of), one.spec.params(one.variant), HOPPER)
    shape = row_tables.shape(row_tables.TWO_PARAMETERS, Packs(4, 16384, True, 16), HOPPER)
    assert isinstance(shape, Behind)
    assert code.resources.shared_bytes <= shape.meeting_bytes
    assert (code.resources.shared_bytes == shape.meeting_bytes) == (key[0] == "layernorm")


def test_every_kernel_is_here():
    raw = {
        (c.spec.op, c.spec.name)
        for c in HONEST
        if c.spec.backend == "raw" and c.spec.build is not None
    }
    sources_of = {k for k in raw if (sources.root() / k[0] / "behind.cu").is_file()}
    other = {k for k in sources_of if "plain" in k[1] or "residual" in k[1]}
    assert sources_of - other == set(KERNELS)
