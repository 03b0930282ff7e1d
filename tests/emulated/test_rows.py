"""The row kernels on the emulated device: every family, odd lengths, seeds, properties, lessons."""

import numpy as np
import pytest
from row_runs import HONEST, LESSONS, NAMES, case, formats_of, judge, label, run

from gpulab import formats, ops
from gpulab.formats import decode, encode
from gpulab.lab.runner import KernelRunner
from gpulab.ops.rows_families import families_for, together
from gpulab.registry import RawBuild
from gpulab.runtime.emulated import EmulatedDevice

COLUMNS = (1, 2, 3, 255, 257, 1000, 50257)
"""One element; fewer than a pack; odd lengths; several rows a block; rows re-read in part."""
NUMBA_COLUMNS = (257,)
"""Numba's compilation is slow; tests/emulated/test_equals_card.py has other lengths."""


def judged_on_everything(one, dims_of, capability=(8, 9)):
    """One launch of rows of all families, for each of some seeds; each by its own bound."""
    names = families_for(one.variant.format)
    cols, seeds = dims_of
    dims = {"rows": len(names) * len(seeds), "cols": cols}
    j = judge(one, dims, capability, families=[together(names, seeds)])
    assert j.arithmetic_passed, (one.label, cols, j.reason)
    assert not j.structure, (one.label, cols, j.reason)


VERDICTS = (2, 257)
"""Lengths that also get the verdict that the lab gives: families, probes and power certificate, NaN
and infinities in a few rows."""
RAW = [key for key in NAMES if key[1] == "raw"]


def whole(*values):
    return pytest.param(*values, marks=pytest.mark.whole)


def turn_of(key):
    return NAMES.index(key) if key[1] == "numba" else 0


def in_turn(key, number=0):
    """A format of a kernel."""
    rows_of = formats_of(key)
    return rows_of[(turn_of(key) + number) % len(rows_of)]


def judged_at(key, numbers, every=False):
    """Formats and seeds take turns with the lengths of these numbers. All pairs of them are
    ``scripts/cover_honest.py``'s. A verdict of full effort has every family; ``every``: they are
    judged in one launch there too."""
    for number in numbers:
        one, cols = in_turn(key, number), (COLUMNS if key[1] == "raw" else NUMBA_COLUMNS)[number]
        seeds = [(number + turn_of(key)) % 10] if cols <= 1000 else range(1)
        effort = "full" if cols == 257 else "quick"
        if every or effort == "quick":
            judged_on_everything(one, (cols, seeds))
        if cols in VERDICTS:
            j = judge(one, {"rows": 9, "cols": cols}, effort=effort, seed=seeds[0])
            assert j.verdict == "PASS", (one.label, cols, j.reason)


@pytest.mark.parametrize("key", NAMES, ids="-".join)
def test_every_family_seed_and_odd_length(key):
    """The lengths that get a verdict, and of the others every third; the kernels take turns."""
    if key[1] == "numba":
        judged_at(key, [0])
        return
    others = [n for n, cols in enumerate(COLUMNS) if cols not in VERDICTS]
    first = RAW.index(key) % 3
    judged_at(key, [n for n in range(len(COLUMNS)) if n not in others or n in others[first::3]])


@pytest.mark.whole
@pytest.mark.parametrize("key", NAMES, ids="-".join)
def test_every_family_and_seed_at_all_odd_lengths(key):
    judged_at(key, range(len(COLUMNS if key in RAW else NUMBA_COLUMNS)), every=True)


LONG = [((7, 5), "fp32", 33000), ((9, 0), "bf16", 20001)]
"""On 7.5 shared memory ends first; one element a pack, the rest of a row is read again."""


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (key, n) if n == (at + 1) % 2 or key[2] == "residual_rounded" else whole(key, n)
        for at, key in enumerate(RAW)
        for n, (_, fmt, _) in enumerate(LONG)
        if fmt in [c.variant.format for c in formats_of(key)]
    ],
    ids=str,
)
def test_long_rows_keep_what_the_card_has_room_for(key, number):
    """The kernels take turns with the two."""
    capability, fmt, cols = LONG[number]
    (one,) = [c for c in formats_of(key) if c.variant.format == fmt]
    judged_on_everything(one, (cols, range(1)), capability)


def by_kernel(cases):
    """`make test` takes the first format of each."""
    seen = set()
    for one in cases:
        key = (one.spec.op, one.spec.name)
        yield whole(one) if key in seen else one
        seen.add(key)


@pytest.mark.parametrize("one", list(by_kernel(LESSONS)), ids=label)
def test_every_lesson_fails_where_it_says(one):
    dims = {"rows": 16, "cols": 257}
    refusal = one.refusal((8, 9), "emulated", dims)
    if refusal is not None:
        assert one.spec.name == "index32"
        assert refusal == "shows beyond 2^32 elements only"
        assert one.refusal((8, 9), "emulated", {"rows": 1 << 17, "cols": (1 << 15) + 1}) is None
        return
    j = judge(one, dims)
    assert j.verdict == "FAIL"
    assert not j.structure, "by its arithmetic, not by a crash"
    assert set(one.variant.caught_on) <= set(j.caught_on)
    codes = {r.code for r in j.reasons}
    assert codes <= {"interval", "rms", "exact-probe", "contract"}
    assert isinstance(one.spec.build(one.variant, (8, 9), dims), RawBuild)


PASSED_BY = {
    ("rmsnorm", "early_rounding", "bf16"): "0.01",
    ("rmsnorm", "early_rounding", "fp16"): "0.001",
    ("layernorm", "naive_variance", "fp32"): "0.001",
    ("softmax", "no_max", "fp32"): "0.001",
    ("softmax", "half_sum", "fp16"): "0.001",
    ("softmax", "half_exp", "bf16"): "0.001",
    ("logsoftmax", "log_of_softmax", "fp32"): "0.001",
    ("crossentropy", "log_of_softmax", "bf16"): "0.001",
}


@pytest.mark.parametrize("key", PASSED_BY, ids="-".join)
def test_the_usual_comparison_on_normal_inputs_passes_the_lesson(key):
    op, name, fmt = key
    record = judge(case(op, name, fmt), {"rows": 16, "cols": 257}).to_record()
    assert record["verdict"] == "FAIL"
    assert "normal" in record["allclose_passes_on"][PASSED_BY[key]]


RNG = np.random.default_rng(5)
ROWS = 3.0 * RNG.standard_normal((6, 257))


def twins(op, name, fmt="fp32"):
    """The raw kernel; the one that Numba compiles in `make test-whole`."""
    return [
        whole(c) if c.spec.backend == "numba" else c
        for c in HONEST
        if (c.spec.op, c.spec.name, c.variant.format) == (op, name, fmt)
    ]


@pytest.mark.parametrize(
    "one", twins("softmax", "online") + twins("softmax", "two_pass"), ids=label
)
def test_softmax_rows_sum_to_one_and_ignore_a_shift(one):
    y = run(one, x=ROWS)["y"]
    np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=257 * 2.0**-24)
    whole = np.round(ROWS * 1024) / 1024  # a shift by 256 is exact then
    np.testing.assert_array_equal(run(one, x=whole)["y"], run(one, x=whole + 256)["y"])


@pytest.mark.parametrize("one", twins("logsoftmax", "online"), ids=label)
def test_log_softmax_is_the_logarithm_of_softmax(one):
    y = run(one, x=ROWS)["y"]
    np.testing.assert_allclose(np.exp(y).sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("one", twins("rmsnorm", "row"), ids=label)
def test_rms_norm_of_a_scaled_row(one):
    """A power of two changes no bit while eps is nothing beside the squares."""
    weight = RNG.uniform(0.5, 1.5, 257)
    large = 2.0**40 * ROWS
    here, there = (run(one, x=x, weight=weight)["y"] for x in (large, 2 * large))
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize(
    ("fmt", "capability"),
    [
        ("fp16", (7, 5)),
        whole("fp16", (8, 0)),
        whole("fp16", (9, 0)),
        ("bf16", (7, 5)),
        ("bf16", (8, 0)),
        ("bf16", (9, 0)),
    ],
    ids=str,
)
def test_products_with_weights_of_every_code_are_rounded_once(fmt, capability):
    """Also where they are subnormal, overflow or are NaN."""
    one, codes = case("rmsnorm", "row", fmt), np.arange(1 << 16, dtype=np.uint16)
    weights = decode(fmt, codes.view(formats.storage_dtype(fmt)))
    x = np.random.default_rng(5).normal(size=(1, 1 << 16))
    normal, y = (
        run(one, capability, x=x, weight=w, eps=0.0)["y"] for w in (np.ones(1 << 16), weights)
    )
    with np.errstate(invalid="ignore"):
        expected = decode(fmt, encode(fmt, normal * weights))
    assert np.array_equal(y, expected, equal_nan=True)
    assert np.array_equal(np.signbit(y[y == 0]), np.signbit(expected[y == 0]))


@pytest.mark.parametrize("one", twins("layernorm", "two_pass"), ids=label)
def test_layer_norm_of_a_shifted_row(one):
    weight, bias = RNG.uniform(0.5, 1.5, 257), RNG.standard_normal(257)
    whole = np.round(ROWS * 256) / 256
    here, there = (run(one, x=x, weight=weight, bias=bias)["y"] for x in (whole, whole + 1024))
    np.testing.assert_allclose(here, there, atol=2e-6)


@pytest.mark.parametrize(
    "key", [whole(k) if k in RAW else k for k in NAMES], ids=lambda key: "-".join(key)
)
def test_no_thread_races_another(key):
    """Two warps a row and more, under the race detector. (In `make test` those of raw kernels are
    looked for in tests/emulated/test_lab_sanitize.py.)"""
    one = in_turn(key)
    dims = {"rows": 2, "cols": 257 if key[1] == "numba" else 2056}
    stored = ops.get(key[0]).stored_inputs(one.variant, dims, "normal", 0)
    runner = KernelRunner(one, EmulatedDevice((8, 9), sanitize=True), dims)
    first, second = runner(stored, poison=0x5A), runner(stored, poison=0xA5)
    for name, array in first.outputs.items():
        assert array.tobytes() == second.outputs[name].tobytes()
