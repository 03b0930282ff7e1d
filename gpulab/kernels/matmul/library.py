"""cuBLAS through CuPy, with the compute type pinned: fp32 is never TF32 unless the row says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.errors import DeviceMissingError
from gpulab.kernels.matmul.simt import params
from gpulab.registry import Capability, Dims, KernelSpec, Variant, register


@dataclass(frozen=True)
class Types:
    """cuBLAS constants of one row, as numbers: CuPy does not name all of them.

    Args:
        inputs: cudaDataType_t of A and B.
        compute: cublasComputeType_t.
        scale: NumPy type of alpha and beta.
    """

    inputs: int
    compute: int
    scale: type[np.generic]


# library_types.h: CUDA_R_32F 0, CUDA_R_16F 2, CUDA_R_8I 3, CUDA_R_32I 10, CUDA_R_16BF 14.
# cublas_api.h: CUBLAS_COMPUTE_32F 68, CUBLAS_COMPUTE_32I 72, CUBLAS_COMPUTE_32F_FAST_TF32 77.
TYPES: dict[str, Types] = {
    "fp32": Types(0, 68, np.float32),
    "tf32": Types(0, 77, np.float32),
    "fp16": Types(2, 68, np.float32),
    "bf16": Types(14, 68, np.float32),
    "int8": Types(3, 72, np.int32),
}
"""By input format."""

OUTPUTS = {"fp32": 0, "fp16": 2, "bf16": 14, "int32": 10}
"""cudaDataType_t of C."""

_DEFAULT_MATH = 0  # CUBLAS_DEFAULT_MATH: TF32 only where the compute type asks for it
_DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
_NOT_TRANSPOSED = 0  # CUBLAS_OP_N
_HOST_POINTERS = 0  # CUBLAS_POINTER_MODE_HOST


def _instructions(tensor_type: str, k_sm80: int) -> tuple[tuple[Capability, str], ...]:
    """The tensor-core instruction whose arithmetic bounds the row, by capability."""
    return (
        ((8, 0), f"mma.sync.m16n8k{k_sm80}.f32.{tensor_type}.{tensor_type}.f32"),
        ((9, 0), f"wgmma.m64n64k{k_sm80}.f32.{tensor_type}.{tensor_type}"),
        ((10, 0), f"tcgen05.mma.m128n128k{k_sm80}.f32.{tensor_type}.{tensor_type}"),
        ((12, 0), f"mma.sync.m16n8k{k_sm80}.f32.{tensor_type}.{tensor_type}.f32"),
    )


VARIANTS = (
    Variant("fp32", "fp32", "fp32", note="compute type CUBLAS_COMPUTE_32F: CUDA cores, no TF32"),
    Variant(
        "tf32",
        "fp32",
        "fp32",
        min_capability=(8, 0),
        instructions=_instructions("tf32", 8),
        note="compute type CUBLAS_COMPUTE_32F_FAST_TF32: TF32 tensor cores, asked for by name",
    ),
    *(
        Variant(
            "fp16",
            "fp32",
            output,
            instructions=(
                ((7, 5), "mma.sync.m16n8k8.f32.f16.f16.f32"),
                *_instructions("f16", 16),
            ),
        )
        for output in ("fp32", "fp16")
    ),
    *(
        Variant(
            "bf16", "fp32", output, min_capability=(8, 0), instructions=_instructions("bf16", 16)
        )
        for output in ("fp32", "bf16")
    ),
    Variant(
        "int8",
        "int32",
        "int32",
        instructions=(
            ((7, 5), "mma.sync.m8n8k16.s32.s8.s8.s32"),
            ((8, 0), "mma.sync.m16n8k32.s32.s8.s8.s32"),
        ),
    ),
)


def _supports(variant: Variant, capability: Capability, dims: Dims) -> str | None:
    if variant.format == "int8" and (dims["n"] % 4 or dims["k"] % 4):
        return f"cuBLAS int8 needs n and k in multiples of 4, got {dims['n']}, {dims['k']}"
    return None


def _run(variant: Variant, arrays: Mapping[str, Any]) -> None:
    """C = A B by ``cublasGemmEx`` on CuPy's current stream.

    cuBLAS is column-major: the row-major C (m, n) is the column-major C^T (n, m) = B^T A^T, and a
    row-major matrix is its own transpose there, so the operands swap and nothing is transposed.

    Args:
        variant: the row.
        arrays: CuPy arrays of the stored codes: a (m, k), b (k, n), c (m, n), C-contiguous.

    Raises:
        DeviceMissingError: CuPy or cuBLAS is not installed.
    """
    try:
        from cupy.cuda import cublas, device
    except (ImportError, RuntimeError) as error:  # CuPy raises RuntimeError for a missing library
        raise DeviceMissingError(
            f"cuBLAS cannot be loaded: {error}",
            fix="pip install 'gpulab[cuda13]' (or cuda12, as the driver allows)",
        ) from error

    a, b, c = arrays["a"], arrays["b"], arrays["c"]
    m, k = a.shape
    n = b.shape[1]
    types = TYPES[variant.format]
    one, zero = np.ones(1, types.scale), np.zeros(1, types.scale)
    handle = device.get_cublas_handle()
    math_mode, pointer_mode = cublas.getMathMode(handle), cublas.getPointerMode(handle)
    cublas.setMathMode(handle, _DEFAULT_MATH)
    cublas.setPointerMode(handle, _HOST_POINTERS)
    try:
        cublas.gemmEx(
            *(handle, _NOT_TRANSPOSED, _NOT_TRANSPOSED, n, m, k, one.ctypes.data),
            *(b.data.ptr, types.inputs, n, a.data.ptr, types.inputs, k, zero.ctypes.data),
            *(c.data.ptr, OUTPUTS[variant.output], n, types.compute, _DEFAULT_ALGORITHM),
        )
    finally:
        cublas.setMathMode(handle, math_mode)
        cublas.setPointerMode(handle, pointer_mode)


register(
    KernelSpec(
        op="matmul",
        name="cublas",
        backend="library",
        idea="NVIDIA's library with the compute type pinned, the yardstick",
        order=90,
        variants=VARIANTS,
        params=params,
        supports=_supports,
        run=_run,
        source="cuBLAS documentation, cublasGemmEx; CuPy, cupy.cuda.cublas",
    )
)
