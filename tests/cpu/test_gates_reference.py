"""References against exact arithmetic; blocks, samples, memory; the cache; exact probes."""

import time
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from gate_kernels import MMA, ORDERS, WGMMA_E4M3, chained, sequential

from gpulab.formats import decode, encode, threads
from gpulab.numerics import panels, probes, reference
from gpulab.numerics.cache import Cache, size_of
from gpulab.numerics.contract import Contract
from gpulab.numerics.inputs import draw
from gpulab.ops.matmul import MATMUL
from gpulab.ops.matmul_data import Data
from gpulab.registry import cases


def make(fmt, m, n, k, seed=0, family="normal"):
    a0, b0 = draw(family, 0, (m, k), fmt, seed), draw(family, 1, (k, n), fmt, seed)
    return a0, b0, encode(fmt, a0), encode(fmt, b0)


@pytest.mark.parametrize("fmt", ["fp32", "fp16", "e4m3", "int8"])
def test_references_against_rational_arithmetic(fmt):
    a0, b0, a, b = make(fmt, 5, 4, 9)
    patch = reference.reference(fmt, a, b, reference.originals(a0, b0)).patches[0]
    av, bv = decode(fmt, a), decode(fmt, b)
    for i in range(5):
        for j in range(4):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(av[i], bv[:, j], strict=True)]
            size = sum(abs(t) for t in terms)
            assert abs(Fraction(patch.r1[i, j]) - sum(terms)) <= size * 9 / 2**52
            assert abs(Fraction(float(patch.s[i, j])) - size) <= size / 2**23
            exact = sum(
                Fraction(float(x)) * Fraction(float(y))
                for x, y in zip(a0[i], b0[:, j], strict=True)
            )
            assert abs(Fraction(patch.r0[i, j]) - exact) <= (size + abs(exact)) / 2**22


def test_blocks_of_the_product_do_not_change_it(monkeypatch):
    a0, b0, a, b = make("fp16", 70, 50, 40)
    whole = reference.reference("fp16", a, b, reference.originals(a0, b0)).patches[0]
    monkeypatch.setattr(panels, "PANEL_BYTES", 8 * 40 * 7)
    parts = reference.reference("fp16", a, b, reference.originals(a0, b0)).patches[0]
    for name in ("r1", "s", "r0"):
        assert np.allclose(getattr(whole, name), getattr(parts, name), rtol=0, atol=2**-18)


@pytest.mark.parametrize("family", ["normal", "uniform"])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "fp32"])
@pytest.mark.parametrize("cores", [1, 5])
def test_references_are_the_plain_products_bit_for_bit(monkeypatch, family, fmt, cores):
    """Panels made on many cores, and S taken from R1 where nothing is negative."""
    monkeypatch.setattr(threads, "LEAST", 1)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: cores)
    a0, b0, a, b = make(fmt, 130, 90, 300, family=family)
    wide, av, bv = [x.astype(np.float64) for x in (a0, b0)], decode(fmt, a), decode(fmt, b)
    found = reference.reference(fmt, a, b, reference.originals(a0, b0)).patches[0]
    assert np.array_equal(found.r1, av @ bv)
    assert np.array_equal(found.s, (np.abs(av) @ np.abs(bv)).astype(np.float32))
    if fmt != "fp32":
        assert np.array_equal(found.r0_shift, (wide[0] @ wide[1] - av @ bv).astype(np.float32))
    rows, cols = reference.reference(fmt, a, b, seed=2, full_products=1000).patches
    assert np.array_equal(rows.r1, av[rows.rows] @ bv)
    assert np.array_equal(cols.r1, av @ bv[:, cols.cols])


def test_how_much_is_in_memory_at_a_time_changes_no_bit(monkeypatch):
    a0, b0, a, b = make("fp16", 70, 50, 40)
    monkeypatch.setattr(panels, "PANEL_BYTES", 8 * 40 * 7)
    found = []
    for count in (1, 4):
        monkeypatch.setattr(panels, "_PANELS", count)
        assert len(panels.split(40, 70, count)) == -(-10 // count)
        found.append(reference.reference("fp16", a, b, reference.originals(a0, b0)).patches[0])
    for name in ("r1", "s", "r0_shift"):
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name))


def test_a_negative_element_anywhere_is_seen_by_s():
    for at in ((0, 0, 0), (1, 0, 0)):
        values = np.ones((2, 2, 3), np.float32)
        values[at] = -2.0
        a, b = encode("bf16", values[0]), encode("bf16", values[1].T)
        s = reference.reference("bf16", a, b).patches[0].s
        assert np.array_equal(s, np.abs(values[0]) @ np.abs(values[1].T))


def test_samples_are_rows_and_columns_in_full_k():
    a0, b0, a, b = make("fp16", 500, 700, 6)
    whole = reference.reference("fp16", a, b, reference.originals(a0, b0)).patches[0]
    found = reference.reference(
        "fp16",
        a,
        b,
        reference.originals(a0, b0, seed=5, full_products=1000),
        seed=5,
        full_products=1000,
    )
    rows, cols = found.patches
    assert rows.r1.shape[1] == 700
    assert cols.r1.shape[0] == 500
    assert {0, 499} <= set(rows.rows.tolist())
    assert {0, 699} <= set(cols.cols.tolist())
    assert np.array_equal(rows.of(whole.r1), whole.r1[rows.rows])
    assert np.allclose(rows.r1, whole.r1[rows.rows], rtol=0, atol=2**-40)
    assert np.allclose(cols.r0, whole.r0[:, cols.cols], rtol=0, atol=2**-18)
    seen = np.zeros((500, 700), bool)
    seen[rows.rows] = True
    seen[:, cols.cols] = True
    assert found.coverage == seen.mean()
    assert max(np.diff(rows.rows)) <= 2 * -(-500 // 64), "no strip is left out"
    assert f"{len(rows.rows)} of 500 rows" in found.text
    other = reference.reference("fp16", a, b, seed=6, full_products=1000)
    assert not np.array_equal(other.patches[0].rows, rows.rows)


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((1, 1), (1, 1)),
        ((16, 16), (16, 16)),
        ((1, 4096), (1, 1024)),
        ((4096, 1), (1024, 1)),
        ((999, 7), (146, 7)),
    ],
)
def test_a_block_holds_about_a_thousand_elements_and_the_corners(shape, block):
    m, n = shape
    _, _, a, b = make("fp16", m, n, 3)
    found = reference.block("fp16", a, b, seed=1)
    assert abs(len(found.rows) - block[0]) <= 3
    assert abs(len(found.cols) - block[1]) <= 3
    assert (found.rows[0], found.rows[-1]) == (0, m - 1)
    assert (found.cols[0], found.cols[-1]) == (0, n - 1)
    full = decode("fp16", a) @ decode("fp16", b)
    assert np.allclose(found.r1, full[np.ix_(found.rows, found.cols)], rtol=0, atol=2**-40)
    assert np.allclose(found.element(found.rows[:1], found.cols[-1:]), full[0, -1], rtol=2**-40)
    with pytest.raises(ValueError, match="read-only"):
        found.r1[0, 0] = 0


def test_a_thousand_cubed_is_quick_and_small():
    """2048 cubed is eight times this and must end within two seconds."""
    a0, b0, a, b = make("bf16", 1024, 1024, 1024)
    tracemalloc.start()
    started = time.perf_counter()
    reference.reference("bf16", a, b, reference.originals(a0, b0))
    seconds = time.perf_counter() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 2.0
    results = 1024 * 1024 * (8 + 4 + 4)
    operand = 1024 * 1024 * 8
    assert operand < panels.PANEL_BYTES
    assert peak < results + 8 * operand


def test_cache_evicts_the_least_recently_used():
    cache = Cache(limit_bytes=100)
    block = np.zeros(5)  # 40 bytes
    assert size_of({"a": block, "b": [block, (block,)]}) == 120
    for key in "ab":
        cache.get(key, lambda: block)
    cache.get("a", lambda: pytest.fail("a is kept"))
    cache.get("c", lambda: block)
    assert "a" in cache
    assert "b" not in cache
    assert cache.used_bytes == 80
    cache.get("huge", lambda: np.zeros(50))
    assert "huge" not in cache
    assert "a" in cache


CONTRACTS = [
    *(Contract(f, "fp32", "fp32") for f in ("fp32", "fp16", "bf16", "e4m3", "e5m2")),
    *(Contract(f, "fp32", "fp32", MMA[f], (9, 0)) for f in MMA),
    Contract("e4m3", "fp32", "fp32", MMA["e4m3"], (8, 9)),
    Contract("e4m3", "fp32", "fp32", WGMMA_E4M3, (9, 0)),
]


@pytest.mark.parametrize(
    "contract", CONTRACTS, ids=lambda c: f"{c.format}-{c.instruction}-{c.capability}"
)
@pytest.mark.parametrize("k", [1, 15, 64, 257, 4096, 20000])
def test_probes_are_exact_in_every_order(contract, k):
    probe = probes.exact(contract, 4, 5, k, seed=k)
    a, b = (decode(contract.format, probe.inputs[name]) for name in ("a", "b"))
    ints = probes.choose(contract, k)
    unit = 2.0 ** (-2 * ints.wide)
    size = (np.abs(a) @ np.abs(b)).max() / unit
    assert size <= 2.0**contract.sum_bits
    right = a @ b
    if contract.sum_bits == 24:
        for order in ("sequential", "backwards", "split_k"):
            assert np.array_equal(ORDERS[order](a, b), right), order
    if contract.instruction is not None:
        kernel = chained(contract.instruction, contract.capability)
        assert np.array_equal(kernel(a, b, probe.inputs["a"], probe.inputs["b"]), right)
    assert a[0, -1] != 0, "the last term is in, in the first row"
    if k * ((1 << ints.wide) - 1) <= 2**contract.sum_bits:
        assert (ints.stride, np.count_nonzero(a)) == (1, a.size), "no sparser than it must be"
    if k > 1:
        signed = (b < 0).any(axis=0)
        assert np.array_equal(signed, np.arange(5) % 2 == (0 if signed[0] else 1)), "every second"


@pytest.mark.parametrize("k", [64, 1024, 4096])
def test_probes_tell_tf32_and_half_products(k):
    contract = Contract("fp32", "fp32", "fp32")
    probe = probes.exact(contract, 16, 16, k, seed=0)
    a, b = probe.inputs["a"], probe.inputs["b"]
    right = a.astype(float) @ b.astype(float)
    for cut in (0xFFFFE000, 0xFFFF0000):
        low = [(x.view(np.uint32) & np.uint32(cut)).view(np.float32) for x in (a, b)]
        for pair in (low, (low[0], b), (a, low[1])):
            wrong = (sequential(*(x.astype(float) for x in pair)) != right).mean()
            assert wrong > 0.5, "each operand is watched"
    half = Contract("fp16", "fp32", "fp32")
    probe = probes.exact(half, 16, 16, k, seed=0)
    a, b = (decode("fp16", probe.inputs[n]) for n in ("a", "b"))
    products = sum((a[:, t : t + 1] * b[t]).astype(np.float16).astype(float) for t in range(k))
    assert (products != a @ b).mean() > 0.5


def test_signed_and_positive_probes():
    contract = Contract("fp16", "fp32", "fp32")
    positive = probes.exact(contract, 8, 8, 64, seed=0, signs="positive")
    assert all((decode("fp16", x) > 0).all() for x in positive.inputs.values())
    signed = probes.exact(contract, 8, 8, 64, seed=0, signs="signed")
    assert all((decode("fp16", x) < 0).any() for x in signed.inputs.values())
    assert {positive.name, signed.name} == {"exact_positive", "exact_signed"}


@pytest.mark.parametrize("fmt", ["fp16", "e4m3", "int8"])
def test_one_hot_names_the_index_that_was_read(fmt):
    accumulator = "int32" if fmt == "int8" else "fp32"
    contract = Contract(fmt, accumulator, accumulator)
    probe = probes.one_hot(contract, 6, 40, 11, seed=2)
    a, b = (decode(fmt, probe.inputs[n]) for n in ("a", "b"))
    right = int(a[3].argmax())
    assert np.array_equal((a @ b)[3], b[right])
    shifted = (right + 1) % 11
    text = probes.locate(probe, fmt, 3, b[shifted])
    assert text == f"row 3 of C holds term {shifted} of K instead of term {right}"
    assert "does not hold" in probes.locate(probe, fmt, 3, np.full(40, 0.123))


def test_non_finite_probe_has_every_kind_the_format_has():
    for fmt, kinds in (("fp16", 3), ("e5m2", 3), ("e4m3", 1)):
        probe = probes.non_finite(Contract(fmt, "fp32", "fp32"), 12, 12, 30, seed=0)
        a, b = (decode(fmt, probe.inputs[n]) for n in ("a", "b"))
        with np.errstate(invalid="ignore"):
            c = a @ b
        found = [np.isnan(c).any(), np.isposinf(c).any(), np.isneginf(c).any()]
        assert sum(found) == kinds, fmt
        assert np.isfinite(c).any()
    assert probes.non_finite(Contract("int8", "int32", "int32"), 4, 4, 4, seed=0) is None


def test_formats_share_what_is_drawn_and_its_product(monkeypatch):
    drawn, multiplied = [], []

    class Draws:
        def make_inputs(self, dims, family, fmt, seed):
            drawn.append((family.name, fmt))
            return MATMUL.make_inputs(dims, family, fmt, seed)

    real = reference.originals
    monkeypatch.setattr(
        reference, "originals", lambda *a, **k: multiplied.append(1) or real(*a, **k)
    )
    cache, dims = Cache(), {"m": 8, "n": 9, "k": 32}

    def data(fmt):
        variant = next(c.variant for c in cases("matmul", format=fmt) if not c.variant.lesson)
        return Data(Draws(), Contract.of(variant, (9, 0), False), dims, 0, cache)

    for fmt in ("bf16", "e4m3", "int8"):
        data(fmt).family("normal")
    assert drawn == [("normal", "bf16"), ("normal", "int8")]  # int8 has a scale of its own
    drawn.clear()
    for fmt in ("bf16", "e4m3"):
        data(fmt).family("subnormal")
    assert drawn == [("subnormal", "bf16"), ("subnormal", "e4m3")]
    assert len(multiplied) == 4
    a, b = (data("bf16").family("normal"), data("e4m3").family("normal"))
    assert not np.array_equal(a.reference.patches[0].r1, b.reference.patches[0].r1)
    plain = MATMUL.make_inputs(dims, "normal", "e4m3", 0)
    want = plain["a"].astype(np.float64) @ plain["b"].astype(np.float64)
    assert np.allclose(b.reference.patches[0].r0, want, rtol=0, atol=2**-18)
