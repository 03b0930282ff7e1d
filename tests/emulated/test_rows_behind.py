"""Rows that are summed while others are written: by few threads, the code of long rows."""

from dataclasses import replace

import numpy as np
import pytest
from changed_sources import changed, seen
from row_runs import HONEST, case, judge

from gpulab import ops
from gpulab.formats import decode, encode
from gpulab.kernels import row_shape, row_tables
from gpulab.kernels.row_shape import Behind
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.errors import ulp
from gpulab.ops.layernorm import LAYERNORM
from gpulab.ops.rows_families import RowFamily, families_for, together
from gpulab.runtime import assembly, sources
from gpulab.runtime.emulated import EmulatedDevice

HOPPER = (9, 0)
SMALL = Behind(64, 4, blocks=1, cluster=2, fit="kWhole")
"""512 packs a row, in two blocks of two warps."""
SHORTER = replace(SMALL, fit="kWithin")
OF_TWO = replace(SMALL, shared=2)
"""For a row that is the sum of two."""
FORMATS = ("fp32", "fp16", "bf16")
KERNELS = [
    ("rmsnorm", "row"),
    ("layernorm", "two_pass"),
    ("layernorm", "welford"),
    ("softmax", "two_pass"),
    ("softmax", "online"),
    ("logsoftmax", "two_pass"),
    ("logsoftmax", "online"),
    ("rmsnorm", "residual"),
    ("rmsnorm", "residual_rounded"),
]
NORMS = KERNELS[:3]
SQUARES = (*NORMS, KERNELS[7])
"""Those whose squares overflow in float32."""


def finest(key):
    """A format of a kernel, float32 where there is that: of the other contract it is the same."""
    return "bf16" if key[1] == "residual_rounded" else "fp32"


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


def outputs(one, stored, sanitize=False, store=None, budget=None):
    """Bytes of each row, of y and then of what else is stored."""
    rows, cols = stored["x"].shape
    device = EmulatedDevice(HOPPER, sanitize=sanitize, budget=budget, store=store)
    found = KernelRunner(one, device, {"rows": rows, "cols": cols})(stored, poison=0x5A).outputs
    return [row.tobytes() for row in np.concatenate(list(found.values()), axis=1)]


def inputs(one, rows, cols):
    dims = {"rows": rows, "cols": cols}
    return dict(ops.get(one.spec.op).stored_inputs(one.variant, dims, "normal", 0))


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
        assert build.source == f"{op}/{'residual_' * ('residual' in name)}behind.cu"
        assert build.entry.endswith(f", {shape.cpp()}>")
        j = judge(one, dims, HOPPER, families=[together(names, range(1))])
        assert j.arithmetic_passed, (one.label, dims, j.reason)
        assert not j.structure, (one.label, dims, j.reason)


@pytest.mark.parametrize("key", KERNELS, ids="-".join)
def test_bits_are_those_of_a_cluster_a_row_however_many_rows_there_are(key, taken):
    """One row, one more than there are clusters, more than there are places of meetings."""
    fmt = finest(key)
    one = case(*key, fmt)
    stored = inputs(one, 7, columns(fmt, SMALL))
    taken(SMALL, clusters=7)
    alone = outputs(one, stored)
    for rows, clusters in ((1, 1), (2, 1), (7, 1)):
        taken(SMALL, clusters)
        fewer = {name: a[:rows] if a.ndim == 2 else a for name, a in stored.items()}
        assert seen(lambda fewer=fewer: outputs(one, fewer), alone[:rows]) == "nothing"


SPECIAL = {0: np.nan, 2: np.inf, 3: -np.inf, 5: np.nan}
"""Row -> a value of some of its elements; the others are ordinary."""


@pytest.mark.parametrize("coarse", [False, pytest.param(True, marks=pytest.mark.whole)])
@pytest.mark.parametrize("key", KERNELS[:-1], ids="-".join)
def test_what_is_not_finite_stays_in_its_row(key, coarse, taken):
    fmt = "bf16" if coarse else "fp32"
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
        y = decode(fmt, np.frombuffer(got[row], stored["x"].dtype))[: x.shape[1]]
        if row not in SPECIAL:
            assert got[row] == plain[row]
        elif key[0] in ("softmax", "logsoftmax") and row == 3:  # one element without weight
            assert np.isfinite(y).sum() == y.size - (key[0] == "logsoftmax")
        elif key[0] == "rmsnorm" and row in (2, 3):
            assert np.isnan(y).sum() == 1, "inf / inf; the others are 0"
        else:
            assert np.isnan(y).all()


AGAIN = (0, 2, 3, 4, 6)
"""Rows whose squares overflow: more than there are places where they meet again."""


@pytest.mark.parametrize("key", SQUARES, ids="-".join)
def test_rows_whose_squares_overflow_are_gone_over_again(key, taken):
    """Alone and one behind the other; the others' bits do not change by it."""
    one = case(*key, "fp32")
    stored = inputs(one, 7, columns("fp32", SMALL))
    taken(SMALL)
    plain = outputs(one, stored)
    x = stored["x"].copy()
    x[AGAIN, :] *= np.float32(2e38 / np.abs(x).max())
    got = outputs(one, stored | {"x": x})
    added = x + stored.get("residual", np.float32(0.0))
    exact = added.astype(np.float64)
    if key[0] == "layernorm":
        exact -= exact.mean(axis=1, keepdims=True)
    exact = exact / np.sqrt(np.square(exact).mean(axis=1, keepdims=True)) * stored["weight"]
    if key[0] == "layernorm":
        exact += stored["bias"]
    for row in range(7):
        if row not in AGAIN:
            assert got[row] == plain[row]
            continue
        y, *kept = np.split(np.frombuffer(got[row], np.float32), 1 + ("residual" in stored))
        np.testing.assert_allclose(y, exact[row], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(kept, [added[row]] * len(kept))


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


def near_and_far(rng, shape, fmt):
    """Rows near 0; at both sides of where they are far; far from it; and whose squares overflow, or
    of one value but one."""
    x = rng.standard_normal(shape)
    x[1::6] += 3.5
    x[2::6] += 4.5
    x[3::6] += 100.0
    x[4::6] *= 1e30 if fmt.max_finite > 1e30 else 1.0
    x[5::6] = 2048.0
    x[5::6, 700] += float(ulp(fmt, [2048.0])[0])
    return x


@pytest.mark.parametrize(
    ("name", "fmt", "everywhere"),
    [("two_pass", "bf16", False), ("welford", "fp16", False), ("welford", "fp16", True)],
)
def test_rows_far_from_0_take_another_way(name, fmt, everywhere, taken, tmp_path, monkeypatch):
    """In the launch in which others do not; the way of those, everywhere, would cost digits."""
    taken(SMALL)
    mistake = ("layernorm/moments.cuh", "fabsf(shift) < 4.0f", "true", tmp_path, monkeypatch)
    store = changed(*mistake) if everywhere else None
    one, dims = case("layernorm", name, fmt), {"rows": 7, "cols": columns(fmt, SMALL)}
    runner = KernelRunner(one, EmulatedDevice(HOPPER, store=store), dims)
    family = RowFamily("near and far", "near 0 and far from it", near_and_far)
    j = LAYERNORM.judge(one.variant, dims, runner, capability=HOPPER, families=[family])
    assert j.arithmetic_passed is not everywhere, j.reason


@pytest.mark.parametrize("key", [KERNELS[1], KERNELS[4], KERNELS[7]], ids="-".join)
def test_no_thread_races_another(key, taken):
    """One cluster, with rows that are gone over again, under the race detector."""
    taken(SHORTER)
    one = case(*key, "fp32")
    stored = inputs(one, 5, columns("fp32", SHORTER, 3))
    stored["x"][1::2] *= np.float32(1e30)
    plain = outputs(one, stored)
    assert seen(lambda: outputs(one, stored, sanitize=True), plain) == "nothing"


BEHIND = "common/behind.cuh"
WAIT = "ptx::mbarrier_wait(barrier(%s, place), parity);"
WRONG = {
    "found": (BEHIND, WAIT % "kFound", ""),
    "handed": (BEHIND, WAIT % "kHanded", ""),
    "merged": (BEHIND, WAIT % "kMerged", ""),
    "row": (BEHIND, "results[place];", "results[(place + 1) % kAll];"),
    "places": (BEHIND, "kTurns = 4,", "kTurns = 1,"),
    "warp": (BEHIND, "found[place][threadIdx.x / 32] =", "found[place][0] ="),
    "blocks": (BEHIND, "[lane % kCluster]", "[0]"),
    "bytes": (BEHIND, "sizeof(Part) * kCluster)", "sizeof(Part))"),
    "copies": (BEHIND, "ptx::cp_async_wait<kNewer>();", "ptx::cp_async_wait<kNewer + 1>();"),
    "next": (BEHIND, "ask(kRing, ring);", ""),
    "current": (BEHIND, "return {*this, ring, row};", "return {*this, 0, row};"),
    "again": (BEHIND, "op, true);", "op, false);"),
    "meetings": (BEHIND, "*count = number + 1;", "*count = number;"),
    "array": (BEHIND, "(i * kArrays + array) * kGroup;", "i * kArrays * kGroup;"),
    "stored": ("rmsnorm/residual_behind.cu", "of_row.number", "row.row"),
}
"""What is to be seen -> where what is replaced, and by what."""
BUDGET = 3000
SEEN_AS = ("other bits", "race", "async_in_flight", "uninitialised", "mbarrier", "timeout")


LATE = ("places", "bytes", "meetings")
"""Seen when time is up: in `make test-whole` alone."""
OF_SUMS = ("array", "stored")


@pytest.mark.parametrize(
    "mistake", [pytest.param(m, marks=[pytest.mark.whole] * (m in LATE)) for m in WRONG]
)
def test_a_mistake_is_seen(mistake, taken, tmp_path, monkeypatch):
    """A fault, or other bits, or threads that wait for each other: of twice the instructions."""
    taken(OF_TWO)
    one = case("rmsnorm", "residual" if mistake in OF_SUMS else "row", "fp32")
    stored = inputs(one, 6, columns("fp32", OF_TWO))
    stored["x"][1:4] *= np.float32(1e30)
    right = outputs(one, stored, budget=BUDGET)
    store = changed(*WRONG[mistake], tmp_path, monkeypatch)
    found = seen(lambda: outputs(one, stored, True, store, 2 * BUDGET), right)
    assert found in SEEN_AS


@pytest.mark.parametrize("key", [KERNELS[1], KERNELS[3]], ids="-".join)
def test_meetings_take_the_shared_memory_that_is_left_for_them(key, taken):
    """LayerNorm's all of it."""
    shape = Behind(512, 8, blocks=1, cluster=4, fit="kWhole")
    taken(shape)
    one = case(*key, "fp32")
    of = (one.variant, HOPPER, {"rows": 7, "cols": columns("fp32", shape)})
    code = assembly.prepare(one.spec.build(*of), one.spec.params(one.variant), HOPPER)
    assert code.resources.shared_bytes <= shape.meeting_bytes
    assert (code.resources.shared_bytes == shape.meeting_bytes) == (key[0] == "layernorm")


def test_every_kernel_is_here():
    raw = {
        (c.spec.op, c.spec.name)
        for c in HONEST
        if c.spec.backend == "raw" and c.spec.build is not None
    }
    sources_of = {k for k in raw if (sources.root() / k[0] / "behind.cu").is_file()}
    assert {k for k in sources_of if "plain" not in k[1]} == set(KERNELS)
