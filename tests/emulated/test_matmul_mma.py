"""The mma.sync matmul, run from its PTX: exact, and bit for bit the tensor core's own sums.

The reference for random data is the tensor core's arithmetic chained over k in the order that the
kernel promises: ascending, one accumulator an element, zeros beyond k.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpulab import arch
from gpulab.formats import encode, storage_dtype
from gpulab.kernels.matmul import mma
from gpulab.kernels.matmul.simt import params
from gpulab.numerics import tensorcore
from gpulab.registry import Capability, Variant
from gpulab.runtime.device import POISONS, Function
from gpulab.runtime.emulated import EmulatedDevice

Shape = tuple[int, int, int]


ALIKE: dict[Capability, Capability] = {(8, 6): (8, 9), (10, 0): (9, 0)}
"""Runs the instantiations of another (a test says so), whose bits are compared: the rest is for
`make test-whole`."""


TWINS = {"bf16": "fp16", "e5m2": "e4m3"}
"""The same code as another but for the instruction's types."""
MODELLED_ONCE = ((9, 0), (12, 0))
"""Where their rows that start anywhere are for `make test-whole`."""


def _is_for_whole(variant: Variant, capability: Capability) -> bool:
    return capability in ALIKE or (variant.format in TWINS and capability in MODELLED_ONCE)


def _rows(*capabilities: Capability) -> list[Any]:
    return [
        pytest.param(
            v,
            c,
            id=f"{v.format}-{v.accumulator}-{c[0]}.{c[1]}",
            marks=[pytest.mark.whole] if _is_for_whole(v, c) else [],
        )
        for v in mma.VARIANTS
        for c in capabilities
        if c >= v.min_capability
    ]


def _instantiations() -> list[Any]:
    """The rows of the lowest capability that each instantiation is made for."""
    lowest: dict[str, Any] = {}
    for row in _rows(*arch.EMULATED):
        variant, capability = row.values
        lowest.setdefault(mma.build(variant, capability, {"n": 16, "k": 16}).entry, row)
    return [pytest.param(*row.values, id=row.id) for row in lowest.values()]


@pytest.mark.parametrize(("capability", "other"), ALIKE.items(), ids=str)
def test_what_is_alike_has_the_same_instantiations_and_arithmetic(
    capability: Capability, other: Capability
) -> None:
    for variant in mma.VARIANTS:
        if variant.min_capability > capability:
            continue
        for dims in ({"n": 16, "k": 16}, {"n": 37, "k": 71}):
            entries = {mma.build(variant, c, dims).entry for c in (capability, other)}
            assert len(entries) == 1
        models = []
        for c in (capability, other):
            instruction = variant.instruction(c)
            assert instruction is not None
            model = tensorcore.model(instruction, c)
            models.append((model.block, model.fraction_bits, model.result, model.route))
        assert models[0] == models[1]


ROWS = _rows(*arch.EMULATED)
FP16, TF32, E4M3, INT8 = (
    next(v for v in mma.VARIANTS if v.format == f) for f in ("fp16", "tf32", "e4m3", "int8")
)


@lru_cache(maxsize=2)
def _device(capability: Capability, sanitize: bool) -> EmulatedDevice:
    return EmulatedDevice(capability, sanitize=sanitize)


@lru_cache(maxsize=4)
def _function(variant: Variant, capability: Capability, aligned: bool, sanitize: bool) -> Function:
    """The instantiation depends on the dims through their alignment only; see the first test."""
    size = 16 if aligned else 1
    build = mma.build(variant, capability, {"m": 1, "n": size, "k": size})
    return _device(capability, sanitize).build(build, params(variant))


def _run(
    variant: Variant,
    capability: Capability,
    a: NDArray[Any],
    b: NDArray[Any],
    *,
    poison: int = POISONS[0],
    sanitize: bool = False,
) -> NDArray[Any]:
    """C of one launch on stored codes."""
    (m, k), n = a.shape, b.shape[1]
    dims = {"m": m, "n": n, "k": k}
    device = _device(capability, sanitize)
    plan = mma.plan(variant, capability, dims)
    on_a, on_b = device.upload(a, "a"), device.upload(b, "b")
    on_c = device.empty((m, n), params(variant)[2].dtype, poison, "c")
    function = _function(variant, capability, mma.aligned(variant, dims), sanitize)
    device.launch(function, plan, [on_a, on_b, on_c, m, n, k])
    c = device.download(on_c)
    np.testing.assert_array_equal(device.download(on_a), a)
    np.testing.assert_array_equal(device.download(on_b), b)
    device.free(on_a, on_b, on_c)
    return c


def _integers(variant: Variant, shape: Shape) -> tuple[Any, Any, NDArray[np.int64]]:
    """Small integers whose sums every accumulator holds exactly, in any order."""
    m, n, k = shape
    random = np.random.default_rng(5)
    a, b = random.integers(-4, 5, (m, k)), random.integers(-4, 5, (k, n))
    stored = variant.format
    return encode(stored, a.astype(float)), encode(stored, b.astype(float)), a @ b


def _random(variant: Variant, shape: Shape, seed: int = 1) -> tuple[Any, Any]:
    m, n, k = shape
    random = np.random.default_rng(seed)
    scale = 40.0 if variant.format == "int8" else 1.0
    return tuple(  # type: ignore[return-value]
        encode(variant.format, scale * random.standard_normal(s)) for s in ((m, k), (k, n))
    )


def _chained(
    variant: Variant, capability: Capability, a: NDArray[Any], b: NDArray[Any]
) -> NDArray[Any]:
    """What the tensor core gives: its instruction over ascending k, zeros beyond the last."""
    instruction = variant.instruction(capability)
    assert instruction is not None
    beyond = -a.shape[1] % tensorcore.model(instruction, capability).k
    a, b = np.pad(a, ((0, 0), (0, beyond))), np.pad(b, ((0, beyond), (0, 0)))
    half = variant.accumulator == "fp16"
    c = np.zeros((a.shape[0], b.shape[1]), np.uint16 if half else np.uint32)
    d = tensorcore.mma(a, b, c, instruction, capability)
    if half:
        return d.view(np.float16).astype(np.float32)
    return d.view(np.int32 if variant.accumulator == "int32" else np.float32)


def _assert_same_bits(got: NDArray[Any], want: NDArray[Any]) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_the_build_follows_from_the_alignment_alone() -> None:
    for variant, capability in (row.values for row in ROWS):
        per = mma.CHUNK_BYTES // storage_dtype(variant.format).itemsize
        for n, k in ((16, 16), (1, 1), (33, 65), (per, 3 * per), (per, per + 1), (70, 80)):
            dims = {"m": 7, "n": n, "k": k}
            size = 16 if mma.aligned(variant, dims) else 1
            other = {"m": 1, "n": size, "k": size}
            assert mma.build(variant, capability, dims) == mma.build(variant, capability, other)


@pytest.mark.parametrize(
    ("variant", "capability"),
    [
        pytest.param(*row.values, id=row.id, marks=[*row.marks, *[pytest.mark.whole] * (i % 2)])
        for i, row in enumerate(ROWS)
    ],
)
def test_rows_that_start_anywhere_give_the_tensor_cores_bits(
    variant: Variant, capability: Capability
) -> None:
    """Tails in every dimension; bytes a row: no multiple of 4, or (tf32) of 16."""
    a, b = _random(variant, (19, 37, 71))
    assert not mma.aligned(variant, {"m": 19, "n": 37, "k": 71})
    got = _run(variant, capability, a, b)
    _assert_same_bits(got, _chained(variant, capability, a, b))


@pytest.mark.parametrize(("variant", "capability"), _instantiations())
def test_16_byte_rows_give_exact_integers(variant: Variant, capability: Capability) -> None:
    m, n, k = shape = (21, 48, 80)
    a, b, want = _integers(variant, shape)
    assert mma.aligned(variant, {"m": m, "n": n, "k": k})
    np.testing.assert_array_equal(_run(variant, capability, a, b, poison=POISONS[1]), want)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (16, 16, 16), (17, 33, 65), (64, 64, 64), (130, 70, 33)], ids=str
)
@pytest.mark.parametrize(("variant", "capability"), _rows((8, 9)))
def test_integers_are_exact(variant: Variant, capability: Capability, shape: Shape) -> None:
    a, b, want = _integers(variant, shape)
    np.testing.assert_array_equal(_run(variant, capability, a, b), want)


@pytest.mark.parametrize(
    ("variant", "capability", "shape"),
    [
        (FP16, (7, 5), (16, 24, 168)),  # 2 stages of 32 terms, through registers
        (FP16, (8, 0), (16, 24, 200)),  # 4 stages of 32
        (FP16, (9, 0), (16, 24, 400)),  # 4 stages of 64
        (FP16, (9, 0), (16, 26, 398)),  # the same, rows of whole words only
        (TF32, (8, 6), (16, 24, 100)),  # 3 stages of 16
        (TF32, (8, 6), (16, 23, 99)),
        (TF32, (9, 0), (16, 24, 140)),  # 6 stages of 16
        (TF32, (9, 0), (16, 23, 139)),
    ],
)
def test_more_slabs_than_stages_give_the_tensor_cores_bits(
    variant: Variant, capability: Capability, shape: Shape
) -> None:
    tile = mma.tile(variant, capability)
    depth = tile.slab_bytes // storage_dtype(variant.format).itemsize
    assert shape[2] > (tile.stages + 1) * depth
    a, b = _random(variant, shape, seed=2)
    _assert_same_bits(_run(variant, capability, a, b), _chained(variant, capability, a, b))


@pytest.mark.parametrize(("m", "n", "k"), [(131, 136, 40), (131, 133, 41), (1030, 129, 8)])
def test_several_tiles_give_the_tensor_cores_bits(m: int, n: int, k: int) -> None:
    """Tails on both sides of C; in the last case a full band of tile rows, then a lower one."""
    a, b = _random(FP16, (m, n, k), seed=3)
    _assert_same_bits(_run(FP16, (8, 6), a, b), _chained(FP16, (8, 6), a, b))


@pytest.mark.parametrize("capability", [(7, 5), (8, 9)], ids=str)
@pytest.mark.parametrize(("n", "k"), [(24, 72), (23, 71)])
def test_no_thread_races_another_and_nothing_unwritten_is_read(
    capability: Capability, n: int, k: int
) -> None:
    for variant in (FP16, INT8):
        a, b, want = _integers(variant, (20, n, k))
        got = _run(variant, capability, a, b, sanitize=True)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("n", "k"), [(64, 64), (63, 63)], ids=["vector", "narrow"])
@pytest.mark.parametrize(
    ("variant", "capability"),
    [(v, (9, 0)) for v in (FP16, TF32, E4M3, INT8)] + [(v, (7, 5)) for v in (FP16, INT8)],
    ids=lambda x: x.format if isinstance(x, Variant) else str(x),
)
def test_neither_copies_nor_fragments_meet_a_bank_twice(
    variant: Variant, capability: Capability, n: int, k: int
) -> None:
    device = EmulatedDevice(capability, counters=True)
    dims = {"m": 64, "n": n, "k": k}
    a, b, _ = _integers(variant, (64, n, k))
    function = device.build(mma.build(variant, capability, dims), params(variant))
    on_c = device.empty((64, n), params(variant)[2].dtype)
    plan = mma.plan(variant, capability, dims)
    counted = device.launch(
        function, plan, [device.upload(a), device.upload(b), on_c, 64, n, k]
    ).counters
    assert counted is not None
    bank_conflicts = {name: count for name, count in counted.items() if "bank_conflicts" in name}
    assert len(bank_conflicts) == 3  # loads, stores, asynchronous copies
    assert set(bank_conflicts.values()) == {0}
    copies, stores = counted["async_copy_wavefronts"], counted["shared_store_wavefronts"]
    assert copies + stores > 0
    assert counted["shared_load_wavefronts"] > 0


def test_a_non_finite_last_row_and_column_stay_where_they_are() -> None:
    a, b = np.ones((9, 6)), np.ones((6, 7))
    a[-1, 0], b[0, -1] = np.nan, np.inf
    got = _run(FP16, (8, 9), encode("fp16", a), encode("fp16", b))
    assert np.isnan(got[-1, :]).all()
    assert np.isposinf(got[:-1, -1]).all()
    np.testing.assert_array_equal(got[:-1, :-1], np.full((8, 6), 6.0))


def test_the_order_of_k_shows_in_the_bits() -> None:
    """Otherwise the comparisons above would not tell an ascending order from another."""
    a, b = _random(FP16, (19, 37, 71))
    ascending = _chained(FP16, (8, 9), a, b)
    descending = _chained(FP16, (8, 9), a[:, ::-1].copy(), b[::-1].copy())
    assert np.any(ascending != descending)
