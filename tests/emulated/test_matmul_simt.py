"""The CUDA-core matmul kernels, raw and Numba, run from their PTX: exact, and in the order stated.

The model is this file's own: one fused multiply-add per term, k ascending, each rounded once. It
must give the very bits of every kernel, because each kernel promises that order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpulab import registry
from gpulab.formats import decode, encode
from gpulab.registry import Capability, Case
from gpulab.runtime.device import POISONS, Function
from gpulab.runtime.emulated import EmulatedDevice

CASES = [c for name in ("simt", "blocked") for c in registry.cases("matmul", kernel=name)]
CAPABILITIES: tuple[Capability, ...] = ((7, 5), (8, 9))
"""Without and with cp.async and the fp8 conversion instruction."""

SHAPES = [(1, 1, 1), (17, 33, 65), (64, 64, 64), (5, 132, 36)]
"""Tails everywhere; whole tiles; 16-byte rows with tails."""


@lru_cache(maxsize=4)
def _device(capability: Capability) -> EmulatedDevice:
    return EmulatedDevice(capability)


def _function(case: Case, capability: Capability, dims: dict[str, int]) -> Function:
    assert case.spec.build is not None
    build = case.spec.build(case.variant, capability, dims)
    return _device(capability).build(build, case.spec.params(case.variant))


def _run(
    case: Case,
    capability: Capability,
    a: NDArray[Any],
    b: NDArray[Any],
    poison: int = POISONS[0],
) -> NDArray[np.float32]:
    """C of one launch on stored codes; the inputs must be unchanged afterwards."""
    m, k = a.shape
    n = b.shape[1]
    dims = {"m": m, "n": n, "k": k}
    device, function = _device(capability), _function(case, capability, dims)
    assert case.refusal(capability, "emulated", dims) is None
    assert case.spec.plan is not None
    on_a, on_b = device.upload(a, "a"), device.upload(b, "b")
    on_c = device.empty((m, n), np.dtype(np.float32), poison, "c")
    device.launch(
        function, case.spec.plan(case.variant, capability, dims), [on_a, on_b, on_c, m, n, k]
    )
    c = device.download(on_c)
    np.testing.assert_array_equal(device.download(on_a), a)
    np.testing.assert_array_equal(device.download(on_b), b)
    device.free(on_a, on_b, on_c)
    return c


def _round_to_odd(total: NDArray[Any], error: NDArray[Any]) -> NDArray[Any]:
    """float64 sums whose lost part is folded into the last bit, so that rounding again is exact.

    Source: S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
    """
    bits = total.view(np.int64)
    even_and_inexact = (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(even_and_inexact, bits + step, bits).view(np.float64)


def _fma(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], kind: Any) -> NDArray[Any]:
    """``a * b + c`` rounded once to float32 or float16; the operands are float64 values of it."""
    product = a * b  # exact: at most 48 bits
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    return _round_to_odd(total, error).astype(kind).astype(np.float64)


def _model(a: NDArray[Any], b: NDArray[Any], accumulator: str) -> NDArray[np.float32]:
    assert a.dtype == b.dtype == np.float64
    kind = {"fp32": np.float32, "fp16": np.float16}[accumulator]
    total = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        total = _fma(a[:, k : k + 1], b[k : k + 1, :], total, kind)
    return total.astype(np.float32)


def _normal(case: Case, shape: tuple[int, int, int], seed: int) -> tuple[Any, Any]:
    m, n, k = shape
    random = np.random.default_rng(seed)
    stored = case.variant.format
    return (
        encode(stored, random.standard_normal((m, k))),
        encode(stored, random.standard_normal((k, n))),
    )


def _bits(c: NDArray[np.float32]) -> NDArray[np.uint32]:
    return c.view(np.uint32)


def test_the_model_rounds_once() -> None:
    """2^-30 decides between two float32 neighbours; rounding to float64 first would lose it."""
    one, tiny = np.array(1 + 2.0**-23), np.array(2.0**-60)
    half_ulp = np.array(2.0**-24)
    assert _fma(half_ulp, np.array(1.0), one, np.float32) == 1 + 2.0**-22  # tie to even
    assert _fma(half_ulp - 2.0**-60, np.array(1.0), one, np.float32) == one
    assert _fma(tiny, np.array(1.0), np.array(1 + 2.0**-24), np.float32) == 1 + 2.0**-23


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label.replace(" ", ""))
def test_integers_are_exact(
    case: Case, capability: Capability, shape: tuple[int, int, int]
) -> None:
    """Sums stay below 2^11, so that every accumulator holds them exactly; both poisons go."""
    m, n, k = shape
    random = np.random.default_rng(11)
    a, b = random.integers(-4, 5, (m, k)), random.integers(-4, 5, (k, n))
    stored = case.variant.format
    codes = encode(stored, a.astype(float)), encode(stored, b.astype(float))
    for poison in POISONS:
        np.testing.assert_array_equal(_run(case, capability, *codes, poison), a @ b)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label.replace(" ", ""))
def test_bits_are_those_of_sequential_fused_multiply_adds(
    case: Case, capability: Capability
) -> None:
    stored = case.variant.format
    a, b = _normal(case, (19, 37, 70), seed=3)
    want = _model(decode(stored, a), decode(stored, b), case.variant.accumulator)
    got = _run(case, capability, a, b)
    np.testing.assert_array_equal(_bits(got), _bits(want))


@pytest.mark.parametrize(
    ("capability", "shape"),
    [
        ((7, 5), (1100, 140, 9)),  # a full band of tile rows, then a lower one
        ((8, 0), (130, 132, 100)),  # more steps than stages, rows of whole pieces
        ((8, 6), (129, 129, 67)),  # the same with neither
        ((9, 0), (300, 260, 70)),  # only B's rows are whole pieces
        ((12, 0), (140, 131, 64)),  # only A's are
    ],
)
def test_blocked_over_many_tiles_has_the_same_bits(
    capability: Capability, shape: tuple[int, int, int]
) -> None:
    case = next(registry.cases("matmul", kernel="blocked"))
    a, b = _normal(case, shape, seed=5)
    got = _run(case, capability, a, b)
    np.testing.assert_array_equal(
        _bits(got), _bits(_model(decode("fp32", a), decode("fp32", b), "fp32"))
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label.replace(" ", ""))
def test_no_thread_races_another(case: Case) -> None:
    """Every tile is written, read and written again, under the race detector."""
    capability = (8, 9)
    device = EmulatedDevice(capability, sanitize=True)
    assert case.spec.build is not None
    assert case.spec.plan is not None
    m, n, k = 20, 36, 72
    dims = {"m": m, "n": n, "k": k}
    a, b = _normal(case, (m, n, k), seed=2)
    function = device.build(
        case.spec.build(case.variant, capability, dims), case.spec.params(case.variant)
    )
    on_c = device.empty((m, n), np.dtype(np.float32))
    plan = case.spec.plan(case.variant, capability, dims)
    device.launch(function, plan, [device.upload(a), device.upload(b), on_c, m, n, k])
    assert np.isfinite(device.download(on_c)).all()


def test_the_two_accumulators_differ_on_these_inputs() -> None:
    """Otherwise the test above would not tell a half sum from a float sum."""
    case = next(c for c in CASES if c.variant.format == "fp16")
    a, b = _normal(case, (19, 37, 70), seed=3)
    values = decode("fp16", a), decode("fp16", b)
    assert np.any(_model(*values, "fp16") != _model(*values, "fp32"))


@pytest.mark.parametrize("format", [v.format for v in CASES[0].spec.variants if not v.lesson])
def test_the_numba_twin_gives_the_raw_kernels_bits(format: str) -> None:
    raw, twin = (
        next(c for c in registry.cases("matmul", kernel="simt", backend=backend, format=format))
        for backend in ("raw", "numba")
    )
    a, b = _normal(raw, (35, 33, 129), seed=8)
    np.testing.assert_array_equal(_bits(_run(raw, (8, 9), a, b)), _bits(_run(twin, (8, 9), a, b)))


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("format", ["e4m3", "e5m2", "fp16", "bf16"])
@pytest.mark.parametrize("backend", ["raw", "numba"])
def test_every_code_is_decoded_exactly(backend: str, format: str, capability: Capability) -> None:
    """A column of codes times 1: NaN, infinities and subnormals included."""
    case = next(registry.cases("matmul", kernel="simt", backend=backend, format=format))
    count = 256 if format in ("e4m3", "e5m2") else 65536
    dtype = case.spec.params(case.variant)[0].dtype
    step = 1 if count == 256 else 7  # 7 is prime to 2^16: every exponent, many mantissas
    integers = np.arange(0, count, step).astype(dtype if dtype.kind == "u" else np.uint16)
    codes = integers.view(dtype).reshape(-1, 1)
    one = encode(format, np.ones((1, 1)))
    got = _run(case, capability, codes, one)
    np.testing.assert_array_equal(got, decode(format, codes).astype(np.float32))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label.replace(" ", ""))
def test_a_non_finite_last_row_and_column_stay_where_they_are(case: Case) -> None:
    """Tails are clamped or zero-filled; neither may leak into other results."""
    m, n, k = 9, 7, 6
    a, b = np.ones((m, k)), np.ones((k, n))
    a[-1, 0], b[0, -1] = np.nan, np.nan
    stored = case.variant.format
    got = _run(case, (8, 9), encode(stored, a), encode(stored, b))
    assert np.isnan(got[-1, :]).all()
    assert np.isnan(got[:, -1]).all()
    np.testing.assert_array_equal(got[:-1, :-1], np.full((m - 1, n - 1), float(k)))
