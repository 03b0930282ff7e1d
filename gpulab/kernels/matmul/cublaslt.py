"""cuBLASLt's fp8 products, the yardstick of the wgmma rows: fast accumulation on and off.

CuPy has no binding of it; the library is the one that CuPy's cuBLAS loads. Its fp8 products take
both operands K-major, so that B is transposed before, as for wgmma.

Source: cuBLAS documentation, "Using the cuBLASLt API", ``cublasLtMatmul`` ("To use FP8 kernels");
the numbers are those of cublasLt.h, cublas_api.h and library_types.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpulab.errors import DeviceMissingError, FaultError
from gpulab.kernels.matmul import simt, wgmma
from gpulab.registry import Capability, Dims, KernelSpec, Variant, register

_TYPES = {"e4m3": 28, "fp32": 0, "bf16": 14}  # CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_16BF
_COMPUTE_32F = 68
_TRANSPOSE_A, _FAST_ACCUMULATION = 3, 25  # CUBLASLT_MATMUL_DESC_TRANSA, _FAST_ACCUM
_WORKSPACE_PREFERENCE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
_TRANSPOSED = 1  # CUBLAS_OP_T
_WORKSPACE_BYTES = 32 << 20
"""What cuBLAS recommends for Hopper."""
_MAJORS = (13, 12)


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class _Product:
    """Descriptors and algorithm for one shape, made once."""

    description: ctypes.c_void_p
    left: ctypes.c_void_p
    right: ctypes.c_void_p
    out: ctypes.c_void_p
    result: _Result


@cache
def _library() -> ctypes.CDLL:
    try:
        from cupy.cuda import device

        device.get_cublas_handle()  # loads cuBLAS, and cuBLASLt with it
    except (ImportError, RuntimeError) as error:
        raise DeviceMissingError(
            f"cuBLAS cannot be loaded: {error}",
            fix="pip install 'gpulab[cuda13]' (or cuda12, as the driver allows)",
        ) from error
    for major in _MAJORS:
        try:
            return ctypes.CDLL(f"libcublasLt.so.{major}")
        except OSError:
            continue
    raise DeviceMissingError("libcublasLt is not there", fix="pip install nvidia-cublas")


def _call(name: str, *args: Any) -> None:
    status = getattr(_library(), name)(*args)
    if status != 0:
        raise FaultError(f"{name}: cuBLAS status {status}", fault="library")


def _made(name: str, *args: Any) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call(name, ctypes.byref(handle), *args)
    return handle


@cache
def _context() -> ctypes.c_void_p:
    return _made("cublasLtCreate")


@cache
def _workspace() -> Any:
    import cupy

    return cupy.empty(_WORKSPACE_BYTES, "u1")


def _layout(kind: int, rows: int, columns: int) -> ctypes.c_void_p:
    """A dense column-major matrix."""
    return _made(
        "cublasLtMatrixLayoutCreate",
        ctypes.c_int(kind),
        ctypes.c_uint64(rows),
        ctypes.c_uint64(columns),
        ctypes.c_int64(rows),
    )


def _set(description: ctypes.c_void_p, attribute: int, value: Any) -> None:
    _call(
        "cublasLtMatmulDescSetAttribute",
        *(description, ctypes.c_int(attribute)),
        *(ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))),
    )


@cache
def _product(m: int, n: int, k: int, fmt: str, output: str, fast: bool) -> _Product:
    """The column-major C^T (n, m) = B^T A^T, whose operands are both k long in memory."""
    description = _made(
        "cublasLtMatmulDescCreate", ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_TYPES["fp32"])
    )
    _set(description, _TRANSPOSE_A, ctypes.c_int32(_TRANSPOSED))
    _set(description, _FAST_ACCUMULATION, ctypes.c_int8(int(fast)))
    left, right = _layout(_TYPES[fmt], k, n), _layout(_TYPES[fmt], k, m)
    out = _layout(_TYPES[output], n, m)
    preference = _made("cublasLtMatmulPreferenceCreate")
    size = ctypes.c_uint64(_WORKSPACE_BYTES)
    _call(
        "cublasLtMatmulPreferenceSetAttribute",
        *(preference, ctypes.c_int(_WORKSPACE_PREFERENCE)),
        *(ctypes.byref(size), ctypes.c_size_t(ctypes.sizeof(size))),
    )
    result, count = _Result(), ctypes.c_int(0)
    _call(
        "cublasLtMatmulAlgoGetHeuristic",
        *(_context(), description, left, right, out, out, preference),
        *(ctypes.c_int(1), ctypes.byref(result), ctypes.byref(count)),
    )
    if count.value == 0:
        raise FaultError(f"cuBLASLt has no algorithm for m={m} n={n} k={k}", fault="library")
    return _Product(description, left, right, out, result)


def _run(variant: Variant, arrays: Mapping[str, Any]) -> None:
    """C = A B on CuPy's current stream, by the algorithm that cuBLASLt names first.

    Args:
        variant: the row; its contract says whether accumulation is fast.
        arrays: CuPy arrays of the stored codes: a (m, k), b_transposed (n, k), c (m, n).

    Raises:
        DeviceMissingError: CuPy or cuBLASLt is not installed.
        FaultError: cuBLASLt refuses.
    """
    _library()  # the reason why it is not there, before CuPy's own
    import cupy

    a, b, c = arrays["a"], arrays["b_transposed"], arrays["c"]
    (m, k), n = a.shape, b.shape[0]
    made = _product(m, n, k, variant.format, variant.output, variant.contract == wgmma.FAST)
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    out = ctypes.c_void_p(c.data.ptr)
    _call(
        "cublasLtMatmul",
        *(_context(), made.description, ctypes.byref(one)),
        *(ctypes.c_void_p(b.data.ptr), made.left, ctypes.c_void_p(a.data.ptr), made.right),
        *(ctypes.byref(zero), out, made.out, out, made.out),
        *(ctypes.byref(made.result.algorithm), ctypes.c_void_p(_workspace().data.ptr)),
        ctypes.c_size_t(_WORKSPACE_BYTES),
        ctypes.c_void_p(cupy.cuda.get_current_stream().ptr),
    )


def _supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    odd = [name for name in ("n", "k") if dims[name] % 16]
    if odd:
        return f"cuBLASLt fp8 needs n and k in multiples of 16, got {dims['n']}, {dims['k']}"
    return None


register(
    KernelSpec(
        op="matmul",
        name="cublaslt",
        backend="library",
        idea="NVIDIA's library in fp8, its own accumulation and the promoted one named apart",
        order=91,
        variants=tuple(v for v in wgmma.VARIANTS if v.format == "e4m3"),
        params=simt.params,
        supports=_supports,
        steps=wgmma.steps,
        run=_run,
        only_capability=wgmma.HOPPER,
        source="cuBLAS documentation, cublasLtMatmul",
    )
)
