"""The faster roads of the codec: from float32 directly, and on all cores, with the same codes."""

import threading

import numpy as np
import pytest

from gpulab.formats import FORMATS, codec, decode, encode, get, threads
from gpulab.numerics.rounding import through

PLAIN = [row.name for row in FORMATS.values() if row.block is None]


def edges(row):
    """Every value of the format, what lies between two of them, and the neighbours of all those."""
    if row.bits > codec.TABLE_BITS:
        values = np.arange(0, 1 << 32, 9973, dtype=np.uint64).astype(np.uint32).view(np.float32)
    else:
        held = np.unique(codec.code_values(row))
        held = held[np.isfinite(held)]
        with np.errstate(over="ignore"):
            values = np.concatenate([held, (held[1:] + held[:-1]) / 2]).astype(np.float32)
    tiny, largest = np.float32(2**-149), np.finfo(np.float32).max
    special = np.array([0.0, -0.0, tiny, -tiny, largest, -largest, np.inf, -np.inf], np.float32)
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
    every = np.concatenate([values, special])
    with np.errstate(all="ignore"):
        near = [np.nextafter(every, np.float32(to)) for to in (np.inf, -np.inf)]
    return np.concatenate([every, *near, nans])


@pytest.mark.parametrize("fmt", PLAIN)
def test_float32_values_are_encoded_as_the_same_float64_values_are(fmt):
    values = edges(get(fmt))
    assert values.dtype == np.float32
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    for rounding in ("nearest", "toward_zero"):
        for saturate in (False, True):
            got, want = (encode(fmt, x, rounding, saturate) for x in (values, wide))
            bits = f"u{got.dtype.itemsize}"
            assert np.array_equal(got.view(bits), want.view(bits)), (rounding, saturate)


@pytest.mark.parametrize("fmt", ["bf16", "fp32", "tf32", "e4m3", "int8"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_many_threads_give_what_one_gives(monkeypatch, fmt, kind):
    rng = np.random.default_rng(3)
    values = (rng.standard_normal((3, 70_001)) * 40).astype(kind)
    alone = encode(fmt, values)
    decoded = decode(fmt, alone)
    seen = set()

    def noting(row, part, *rest, real=codec._encode_float):
        seen.add(threading.get_ident())
        return real(row, part, *rest)

    monkeypatch.setattr(codec, "_encode_float", noting)
    monkeypatch.setattr(threads, "LEAST", 1)
    monkeypatch.setattr(threads, "workers", lambda: 5)
    shared = encode(fmt, values)
    bits = f"u{shared.dtype.itemsize}"
    assert np.array_equal(shared.view(bits), alone.view(bits))
    assert np.array_equal(decode(fmt, shared), decoded)
    assert decoded.shape == shared.shape == (3, 70_001)
    assert fmt == "int8" or threading.get_ident() not in seen


@pytest.mark.parametrize("count", [1, 7, 64, 65, 1000])
def test_slices_are_all_of_it_once(monkeypatch, count):
    monkeypatch.setattr(threads, "LEAST", 1)
    monkeypatch.setattr(threads, "workers", lambda: 4)
    found = threads.spread(lambda part: (part.start, part.stop), count, 10**9, grain=16)
    assert [start for start, _ in found][1:] == [stop for _, stop in found][:-1]
    assert (found[0][0], found[-1][1]) == (0, count)
    assert all(start % 16 == 0 for start, _ in found)
    inner = threads.spread(
        lambda _: len(threads.spread(lambda part: part, count, 10**9)), count, 10**9, grain=16
    )
    assert set(inner) == {1} or count <= 16  # work inside work is not handed out again


def test_errors_in_a_part_are_raised(monkeypatch):
    monkeypatch.setattr(threads, "LEAST", 1)
    monkeypatch.setattr(threads, "workers", lambda: 4)
    with pytest.raises(ZeroDivisionError):
        threads.spread(lambda part: 1 // (part.start - part.start), 100, 100)


def test_calls_made_together_come_back_in_order():
    met = threading.Barrier(3, timeout=20)
    made = threads.together(10**9, *(lambda i=i: (met.wait(), i)[1] for i in range(3)))
    assert made == [0, 1, 2]
    here = threads.together(1, threading.get_ident, threading.get_ident)
    assert here == [threading.get_ident()] * 2


def test_work_within_work_stays_in_its_thread():
    """Parts of parts would make threads by the dozen, which wait for each other."""
    seen = []

    def inner(part):
        seen.append((threading.get_ident(), part))
        return part.stop - part.start

    def outer(item):
        before = len(seen)
        (count,) = threads.spread(inner, 10, 1 << 30)
        assert (threading.get_ident(), slice(0, 10)) in seen[before:]
        return item, count

    assert list(threads.each(outer, range(5))) == [(i, 10) for i in range(5)]
    assert 1 <= threads.workers() <= threads.MOST
    assert sum(threads.spread(inner, 1000, 1 << 30)) == 1000


@pytest.mark.parametrize("fmt", PLAIN)
def test_values_go_through_a_format_as_they_are_encoded_and_decoded(fmt):
    row, rng = get(fmt), np.random.default_rng(3)
    bits = rng.integers(0, 1 << 64, 1 << 16, dtype=np.uint64).view(np.float64)
    with np.errstate(all="ignore"):
        near = np.ldexp(rng.standard_normal(1 << 16), rng.integers(-160, 140, 1 << 16))
        top = row.max_finite * np.array([1.0, 1 + 2**-12, 1 + 2**-5, 1.25, -1.0, -1.25])
        values = np.concatenate([edges(row).astype(np.float64), bits, near, top])
        got, want = through(row, values), decode(row, encode(row, values))
    same = got.view(np.uint64) == want.view(np.uint64)  # zeros with their signs
    assert np.all(same | (np.isnan(got) & np.isnan(want)))
    shaped = through(row, values[:12].reshape(3, 4))
    assert np.array_equal(shaped.ravel(), want[:12], equal_nan=True)
