"""The cuBLAS rows: what they ask the library for, against a stand-in with BLAS's semantics.

The stand-in multiplies column-major operands found by address, so a wrong operand order, leading
dimension, data type or size gives a wrong product here as it would on a card.
"""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpulab import registry
from gpulab.errors import DeviceMissingError
from gpulab.formats import decode, encode
from gpulab.registry import Case

# library_types.h and cublas_api.h of the CUDA headers
DATA_TYPES = {0: "fp32", 2: "fp16", 14: "bf16", 3: "int8", 10: "int32"}
COMPUTE_32F, COMPUTE_32I, COMPUTE_32F_FAST_TF32 = 68, 72, 77

CASES = list(registry.cases("matmul", kernel="cublas"))


class FakeArray:
    """What the row uses of a CuPy array."""

    def __init__(self, host: NDArray[Any]) -> None:
        self.host = host
        self.shape = host.shape
        self.data = SimpleNamespace(ptr=host.ctypes.data)


class FakeBlas(ModuleType):
    """cublasGemmEx over host memory, and a record of how it was called."""

    def __init__(self) -> None:
        super().__init__("cublas")
        self.calls: list[dict[str, Any]] = []
        self.math_mode, self.pointer_mode = 3, 1  # what another user of the handle left behind

    def getMathMode(self, handle: int) -> int:
        return self.math_mode

    def setMathMode(self, handle: int, mode: int) -> None:
        self.math_mode = mode

    def getPointerMode(self, handle: int) -> int:
        return self.pointer_mode

    def setPointerMode(self, handle: int, mode: int) -> None:
        self.pointer_mode = mode

    def gemmEx(
        self,
        handle: int,
        transa: int,
        transb: int,
        m: int,
        n: int,
        k: int,
        alpha: int,
        a: int,
        a_type: int,
        lda: int,
        b: int,
        b_type: int,
        ldb: int,
        beta: int,
        c: int,
        c_type: int,
        ldc: int,
        compute: int,
        algorithm: int,
    ) -> None:
        assert (transa, transb) == (0, 0)
        assert self.pointer_mode == 0
        scale = ctypes.c_int32 if compute == COMPUTE_32I else ctypes.c_float
        assert scale.from_address(alpha).value == 1
        assert scale.from_address(beta).value == 0
        left, right = _column_major(a, a_type, m, k, lda), _column_major(b, b_type, k, n, ldb)
        product = left @ right
        out = product.astype(np.int32) if c_type == 10 else encode(DATA_TYPES[c_type], product)
        ctypes.memmove(c, out.tobytes("F"), ldc * n * out.itemsize)
        self.calls.append({"compute": compute, "math": self.math_mode, "type": a_type})


def _column_major(address: int, data_type: int, rows: int, columns: int, lead: int) -> Any:
    stored = encode(DATA_TYPES[data_type], np.zeros(1)).dtype
    raw = (ctypes.c_uint8 * (lead * columns * stored.itemsize)).from_address(address)
    codes = np.frombuffer(raw, stored).reshape(columns, lead).T[:rows]
    return decode(DATA_TYPES[data_type], codes)


@pytest.fixture
def blas(monkeypatch: pytest.MonkeyPatch) -> FakeBlas:
    fake = FakeBlas()
    cuda = ModuleType("cupy.cuda")
    cuda.cublas = fake  # type: ignore[attr-defined]
    cuda.device = SimpleNamespace(get_cublas_handle=lambda: 7)  # type: ignore[attr-defined]
    cupy = ModuleType("cupy")
    cupy.cuda = cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return fake


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.variant.format}-{c.variant.output}")
def test_product_of_row_major_operands(case: Case, blas: FakeBlas) -> None:
    m, n, k = 5, 12, 8
    random = np.random.default_rng(0)
    a, b = random.integers(-4, 5, (m, k)), random.integers(-4, 5, (k, n))
    stored, out = case.variant.format, case.spec.params(case.variant)[2].dtype
    c = np.full((m, n), 77).astype(out)
    arrays = {
        "a": FakeArray(encode(stored, a.astype(float))),
        "b": FakeArray(encode(stored, b.astype(float))),
        "c": FakeArray(c),
    }
    assert case.spec.run is not None
    case.spec.run(case.variant, arrays)
    got = c if case.variant.output == "int32" else decode(case.variant.output, c)
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(
    ("format", "compute"),
    [
        ("fp32", COMPUTE_32F),
        ("tf32", COMPUTE_32F_FAST_TF32),
        ("fp16", COMPUTE_32F),
        ("bf16", COMPUTE_32F),
        ("int8", COMPUTE_32I),
    ],
)
def test_the_compute_type_is_pinned(format: str, compute: int, blas: FakeBlas) -> None:
    """Math mode 3 allows TF32 behind fp32's back; it is set aside for the call and put back."""
    case = next(c for c in CASES if c.variant.format == format)
    out = case.spec.params(case.variant)[2].dtype
    arrays = {name: FakeArray(encode(format, np.ones((4, 4)))) for name in "ab"}
    arrays["c"] = FakeArray(np.zeros((4, 4), out))
    assert case.spec.run is not None
    case.spec.run(case.variant, arrays)
    assert [(call["compute"], call["math"]) for call in blas.calls] == [(compute, 0)]
    assert (blas.math_mode, blas.pointer_mode) == (3, 1)


def test_the_tf32_row_says_so() -> None:
    notes = {c.variant.format: c.variant.note for c in CASES}
    assert "TF32" in notes["tf32"]
    assert "no TF32" in notes["fp32"]


def test_int8_refuses_what_cublas_refuses() -> None:
    case = next(c for c in CASES if c.variant.format == "int8")
    assert case.refusal((9, 0), "cuda", {"m": 5, "n": 8, "k": 4}) is None
    for n, k in ((7, 4), (8, 6)):
        reason = case.refusal((9, 0), "cuda", {"m": 4, "n": n, "k": k})
        assert reason is not None
        assert "multiples of 4" in reason


def test_rows_need_a_card() -> None:
    for case in CASES:
        assert case.refusal((9, 0), "emulated", {"m": 4, "n": 4, "k": 4}) is not None


def test_no_cublas_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    assert CASES[0].spec.run is not None
    with pytest.raises(DeviceMissingError, match="cuBLAS cannot be loaded") as caught:
        CASES[0].spec.run(CASES[0].variant, {})
    assert caught.value.fix
