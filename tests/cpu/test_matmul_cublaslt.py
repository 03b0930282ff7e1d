"""The cuBLASLt rows against a stand-in with the library's semantics over host memory."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpulab import registry
from gpulab.errors import DeviceMissingError, FaultError
from gpulab.formats import decode, encode, storage_dtype
from gpulab.kernels.matmul import cublaslt

CASES = list(registry.cases("matmul", kernel="cublaslt"))
TYPES = {28: "e4m3", 0: "fp32", 14: "bf16"}  # library_types.h
TRANSA, FAST = 3, 25  # cublasLt.h


class FakeArray:
    def __init__(self, host):
        self.host, self.shape = host, host.shape
        self.data = SimpleNamespace(ptr=host.ctypes.data)


class FakeLt:
    """Objects by number; a product of column-major operands found by address."""

    def __init__(self):
        self.objects, self.refuse, self.algorithms, self.asked = {}, {}, 1, 0

    def _new(self, where, **what):
        where._obj.value = len(self.objects) + 1
        self.objects[where._obj.value] = what
        return 0

    def __getattr__(self, name):
        raise AttributeError(name)

    def cublasLtCreate(self, where):
        return self._new(where, kind="context")

    def cublasLtMatmulDescCreate(self, where, compute, scale):
        return self._new(where, compute=compute.value, scale=scale.value, set={})

    def cublasLtMatmulDescSetAttribute(self, made, attribute, value, size):
        assert size.value == ctypes.sizeof(value._obj)
        self.objects[made.value]["set"][attribute.value] = value._obj.value
        return 0

    def cublasLtMatrixLayoutCreate(self, where, kind, rows, columns, lead):
        shape = rows.value, columns.value
        return self._new(where, type=TYPES[kind.value], shape=shape, lead=lead.value)

    def cublasLtMatmulPreferenceCreate(self, where):
        return self._new(where, set={})

    def cublasLtMatmulPreferenceSetAttribute(self, made, attribute, value, size):
        self.objects[made.value]["set"][attribute.value] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, context, desc, a, b, c, d, wanted, most, found, count):
        self.asked += 1
        assert self.objects[context.value]["kind"] == "context"
        assert self.objects[wanted.value]["set"] == {1: 32 << 20}
        assert ctypes.sizeof(found._obj) == 96
        found._obj.algorithm[0], count._obj.value = 77, self.algorithms
        return self.refuse.get("heuristic", 0)

    def cublasLtMatmul(
        self, context, desc, alpha, a, a_lay, b, b_lay, beta, c, c_lay, d, d_lay, algo, *rest
    ):
        how = self.objects[desc.value]
        assert (how["compute"], how["scale"]) == (68, 0)
        assert (alpha._obj.value, beta._obj.value) == (1.0, 0.0)
        assert algo._obj[0] == 77
        assert (c.value, c_lay.value) == (d.value, d_lay.value)
        self.fast, self.stream = how["set"][FAST], rest[-1].value
        left = self.matrix(a, a_lay)
        left = left.T if how["set"].get(TRANSA) == 1 else left
        product = left @ self.matrix(b, b_lay)
        out = self.objects[d_lay.value]
        assert product.shape == out["shape"]
        codes = np.asfortranarray(encode(out["type"], product))
        ctypes.memmove(d.value, codes.tobytes("F"), codes.nbytes)
        return 0

    def matrix(self, address, layout):
        is_ = self.objects[layout.value]
        rows, columns = is_["shape"]
        kind = storage_dtype(is_["type"])
        raw = (ctypes.c_uint8 * (is_["lead"] * columns * kind.itemsize)).from_address(address.value)
        return decode(is_["type"], np.frombuffer(raw, kind).reshape(columns, -1).T[:rows])


@pytest.fixture
def library(monkeypatch):
    fake = FakeLt()
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=4096))
    cupy.empty = lambda n, kind: FakeArray(np.empty(1, np.uint8))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cublaslt, "_library", lambda: fake)
    for made in (cublaslt._context, cublaslt._product, cublaslt._workspace):
        made.cache_clear()
    yield fake
    for made in (cublaslt._context, cublaslt._product, cublaslt._workspace):
        made.cache_clear()


def operands(variant, m=5, n=16, k=32):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    arrays = {
        "a": FakeArray(encode("e4m3", a.astype(float))),
        "b_transposed": FakeArray(encode("e4m3", np.ascontiguousarray(b.T).astype(float))),
        "c": FakeArray(np.full((m, n), 77).astype(storage_dtype(variant.output))),
    }
    return arrays, a @ b


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.variant.output}-{c.variant.contract}")
def test_product_of_row_major_operands(case, library):
    arrays, exact = operands(case.variant)
    case.spec.run(case.variant, arrays)
    np.testing.assert_array_equal(decode(case.variant.output, arrays["c"].host), exact)
    assert library.fast == (case.variant.contract == "fast")
    assert library.stream == 4096


def test_a_shape_is_prepared_once(library):
    case = CASES[0]
    for _ in range(3):
        case.spec.run(case.variant, operands(case.variant)[0])
    assert library.asked == 1
    case.spec.run(case.variant, operands(case.variant, m=6)[0])
    assert library.asked == 2


def test_rows_are_those_of_wgmma_and_transpose_b_first():
    assert {c.variant.contract for c in CASES} == {"fast", "promoted"}
    for case in CASES:
        (step,) = case.spec.steps(case.variant, (9, 0), {"m": 1, "n": 16, "k": 16})
        assert step.name == "transpose b"
        assert case.refusal((9, 0), "emulated") == "needs a card"
        assert "multiples of 16" in case.refusal((9, 0), "cuda", {"m": 1, "n": 8, "k": 16})
        assert case.refusal((9, 0), "cuda", {"m": 1, "n": 16, "k": 16}) is None


def test_refusals_of_the_library_are_named(library):
    case = CASES[0]
    library.refuse["heuristic"] = 15
    with pytest.raises(FaultError, match="cublasLtMatmulAlgoGetHeuristic: cuBLAS status 15"):
        case.spec.run(case.variant, operands(case.variant)[0])
    library.refuse.clear()
    library.algorithms = 0
    with pytest.raises(FaultError, match="no algorithm for m=5 n=16 k=32"):
        case.spec.run(case.variant, operands(case.variant)[0])


def test_without_cupy_the_fix_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    cublaslt._library.cache_clear()
    with pytest.raises(DeviceMissingError) as caught:
        CASES[0].spec.run(CASES[0].variant, {})
    assert "gpulab[cuda13]" in caught.value.fix
