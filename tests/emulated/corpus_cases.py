"""CUDA C++ features, one small kernel each, with what NumPy says of the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

N = 256
F, D, I, U = np.float32, np.float64, np.int32, np.uint32
vector = np.vectorize


@dataclass(frozen=True)
class Case:
    """A kernel over N threads: arguments, what the last one must be, relative tolerance."""

    source: str
    arguments: Callable[[np.random.Generator], list[Any]]
    want: Callable[..., Any]
    tolerance: float = 0.0
    lowest: tuple[int, int] = (7, 5)


def mapped(expression: str, kind: str = "float", result: str = "", headers: str = "") -> str:
    """A kernel y[i] = expression of x = a[i] and z = b[i]."""
    return f"""{headers}
extern "C" __global__ void kernel(const {kind}* a, const {kind}* b, {result or kind}* y) {{
  int i = blockIdx.x * 64 + threadIdx.x;
  {kind} x = a[i], z = b[i];
  y[i] = {expression};
}}"""


def floats(scale: float = 1.0, kind: Any = F, positive: bool = False) -> Any:
    def make(rng: np.random.Generator) -> list[Any]:
        a, b = ((rng.standard_normal(N) * scale).astype(kind) for _ in range(2))
        return [np.abs(a) if positive else a, np.abs(b) if positive else b, np.zeros(N, kind)]

    return make


def to(kind: Any, base: Any) -> Any:
    return lambda rng: [*base(rng)[:2], np.zeros(N, kind)]


def ints(kind: Any, result: Any = None) -> Any:
    def make(rng: np.random.Generator) -> list[Any]:
        raw = rng.integers(0, 256, (2, N * np.dtype(kind).itemsize), dtype=np.uint8).view(kind)
        return [raw[0].copy(), raw[1].copy(), np.zeros(N, result or kind)]

    return make


def wide(f: Callable[..., Any]) -> Any:
    return lambda a, b, _: f(a.astype(D), b.astype(D))


erf = vector(math.erf)
HALF = "#include <cuda_fp16.h>"
BF16 = "#include <cuda_bf16.h>"
FP8 = "#include <cuda_fp8.h>\n#include <cuda_fp16.h>"


def quotient(a: Any, b: Any, _: Any) -> Any:
    out = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        y = y or 1
        q = abs(x) // abs(y)
        out.append(-q if (x < 0) != (y < 0) else q)
    return np.array(out)


CASES: dict[str, Case] = {
    "arithmetic": Case(mapped("x * z + x / z - z"), floats(), lambda a, b, _: a * b + a / b - b),
    "erf": Case(mapped("erff(x)"), floats(), wide(lambda a, b: erf(a)), 1e-6),
    "gelu": Case(
        mapped("0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)))"),
        floats(),
        wide(lambda a, b: 0.5 * a * (1 + np.tanh(0.7978845608 * (a + 0.044715 * a**3)))),
        2e-6,
    ),
    "exp": Case(mapped("expf(x)"), floats(20), wide(lambda a, b: np.exp(a)), 1e-6),
    "log": Case(mapped("logf(x)"), floats(9, positive=True), wide(lambda a, b: np.log(a)), 1e-6),
    "pow": Case(mapped("powf(x, z)"), floats(2, positive=True), wide(lambda a, b: a**b), 2e-6),
    "sin": Case(mapped("sinf(x)"), floats(3), wide(lambda a, b: np.sin(a)), 1e-6),
    "big sin": Case(
        mapped("sinf(x) + cosf(z)"), floats(1e9), wide(lambda a, b: np.sin(a) + np.cos(b)), 1e-6
    ),
    "sqrt": Case(
        mapped("sqrtf(x) + rsqrtf(z)"),
        floats(9, positive=True),
        wide(lambda a, b: np.sqrt(a) + 1 / np.sqrt(b)),
        3e-7,
    ),
    "minmax": Case(
        mapped("fmaxf(x, fminf(z, 0.5f))"),
        floats(),
        lambda a, b, _: np.maximum(a, np.minimum(b, F(0.5))),
    ),
    "rounding": Case(
        mapped("__fadd_rd(x, z) - __fmul_ru(x, z) + floorf(x) + rintf(z) + truncf(x)"),
        floats(30),
        wide(lambda a, b: a + b - a * b + np.floor(a) + np.rint(b) + np.trunc(a)),
        1e-5,
    ),
    "double": Case(
        mapped("x * z + x / z", "double"), floats(kind=D), lambda a, b, _: a * b + a / b
    ),
    "double exp": Case(
        mapped("exp(x) * log(fabs(z))", "double"),
        floats(9, D),
        lambda a, b, _: np.exp(a) * np.log(np.abs(b)),
        1e-14,
    ),
    "double sin": Case(
        mapped("sin(x) + cos(z)", "double"),
        floats(1e5, D),
        lambda a, b, _: np.sin(a) + np.cos(b),
        1e-12,
    ),
    "double pow": Case(
        mapped("pow(x, z)", "double"), floats(2, D, positive=True), lambda a, b, _: a**b, 1e-13
    ),
    "double erf": Case(mapped("erf(x)", "double"), floats(1, D), wide(lambda a, b: erf(a)), 1e-14),
    "double sqrt": Case(
        mapped("sqrt(x) + 1.0 / z", "double"),
        floats(9, D, positive=True),
        lambda a, b, _: np.sqrt(a) + 1 / b,
    ),
    "to integers": Case(
        mapped("(long long)(x * 1e6f) + (int)z + (unsigned)fabsf(x)", "float", "long long"),
        to(np.int64, floats(9)),
        lambda a, b, _: (
            (a * F(1e6)).astype(np.int64) + b.astype(np.int64) + np.abs(a).astype(np.int64)
        ),
    ),
    "int division": Case(mapped("z ? x / z : x", "int"), ints(I), quotient),
    "long division": Case(mapped("z ? x / z : x", "long long"), ints(np.int64), quotient),
    "long remainder": Case(
        mapped("z ? x % z : x", "unsigned long long"),
        ints(np.uint64),
        lambda a, b, _: a % np.maximum(b, 1),
    ),
    "long multiply": Case(
        mapped("__umul64hi(x, z) ^ (x * z)", "unsigned long long"),
        ints(np.uint64),
        lambda a, b, _: [
            int(x * y >> 64) ^ (x * y & (1 << 64) - 1)
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ],
    ),
    "bits": Case(
        mapped("__popc(x) + __clz(z) * 100 + __ffs(x) * 10000 + __brev(z) % 7", "unsigned"),
        ints(U),
        lambda a, b, _: [
            x.bit_count()
            + 100 * (32 - y.bit_length())
            + 10000 * ((x & -x).bit_length())
            + int(f"{y:032b}"[::-1], 2) % 7
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ],
    ),
    "byte permute": Case(
        mapped("__byte_perm(x, z, 0x5236) ^ __funnelshift_l(x, z, x)", "unsigned"),
        ints(U),
        lambda a, b, _: [
            int.from_bytes(
                bytes(((y << 32) | x).to_bytes(8, "little")[k] for k in (6, 3, 2, 5)), "little"
            )
            ^ (((y << 32 | x) << (x & 31)) >> 32 & 0xFFFFFFFF)
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ],
    ),
    "dp4a": Case(
        mapped("__dp4a(x, z, 7)", "int"),
        ints(I),
        lambda a, b, _: (
            7 + (a.view(np.int8).reshape(-1, 4).astype(I) * b.view(np.int8).reshape(-1, 4)).sum(1)
        ),
    ),
    "half": Case(
        mapped("__half2float(__hadd(__float2half(x), __float2half(z))) * 2", headers=HALF),
        floats(),
        lambda a, b, _: (a.astype(np.float16) + b.astype(np.float16)).astype(F) * 2,
    ),
    "half2": Case(
        mapped(
            "__low2float(__hmul2(__floats2half2_rn(x, z), __floats2half2_rn(z, x)))", headers=HALF
        ),
        floats(),
        lambda a, b, _: (a.astype(np.float16) * b.astype(np.float16)).astype(F),
    ),
    "half compare": Case(
        mapped("__hgt(__float2half(x), __float2half(z)) ? x : z", headers=HALF),
        floats(),
        lambda a, b, _: np.where(a.astype(np.float16) > b.astype(np.float16), a, b),
    ),
    "half exp": Case(
        mapped("__half2float(hexp(__float2half(x)))", headers=HALF),
        floats(),
        wide(lambda a, b: np.exp(a)),
        3e-3,
    ),
    "bf16": Case(
        mapped("__bfloat162float(__float2bfloat16(x))", headers=BF16),
        floats(),
        lambda a, b, _: ((a.view(U) + 0x7FFF + (a.view(U) >> 16 & 1)) & 0xFFFF0000).view(F),
    ),
    "bf16 fma": Case(
        mapped(
            "__bfloat162float(__hfma(__float2bfloat16(x), __float2bfloat16(z), "
            "__float2bfloat16(x)))",
            headers=BF16,
        ),
        floats(),
        wide(lambda a, b: a * b + a),
        3e-2,
        (8, 0),
    ),
    "fp8": Case(
        mapped("(float)__nv_fp8_e4m3(x) + (float)__nv_fp8_e5m2(z) * 1000", headers=FP8),
        floats(),
        wide(lambda a, b: a + 1000 * b),
        0.2,
    ),
    "switch": Case(
        mapped(
            "[&] { switch ((int)(fabsf(x) * 4)) { case 0: return x; case 1: return 2 * z; "
            "case 2: return x + z; case 3: return x * z; case 4: return z - x; "
            "case 5: return 9.0f; default: return -1.0f; } }()"
        ),
        floats(),
        lambda a, b, _: np.select(
            [(np.abs(a) * 4).astype(int) == k for k in range(6)],
            [a, 2 * b, a + b, a * b, b - a, np.full(N, 9, F)],
            -1,
        ),
    ),
    "local array": Case(
        """extern "C" __global__ void kernel(const float* a, const int* b, float* y) {
  int i = blockIdx.x * 64 + threadIdx.x;
  float own[16];
  for (int k = 0; k < 16; k++) own[(k * 7 + b[i]) & 15] = a[i] * k;
  float t = 0;
  for (int k = 0; k < 16; k++) t += own[(b[i] * 3 + k) & 15] * (k + 1);
  y[i] = t;
}""",
        lambda rng: [
            rng.integers(-4, 5, N).astype(F),
            rng.integers(0, 16, N).astype(I),
            np.zeros(N, F),
        ],
        lambda a, b, _: [
            sum(
                (x * next(k for k in range(16) if (k * 7 + n) & 15 == (n * 3 + j) & 15)) * (j + 1)
                for j in range(16)
            )
            for x, n in zip(a.tolist(), b.tolist(), strict=True)
        ],
    ),
    "block reduction": Case(
        """extern "C" __global__ void kernel(const float* a, const float* b, float* y) {
  __shared__ float s[2];
  float v = a[blockIdx.x * 64 + threadIdx.x];
  for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(0xffffffffu, v, k);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = s[0] + s[1];
}""",
        lambda rng: [rng.integers(-99, 99, N).astype(F), np.zeros(1, F), np.zeros(N, F)],
        lambda a, b, _: np.repeat(a.reshape(4, 64).sum(1), 64),
    ),
    "cooperative groups": Case(
        """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void kernel(const int* a, const int* b, int* y) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  int i = blockIdx.x * 64 + block.thread_rank();
  int v = a[i];
  for (int k = tile.size() / 2; k; k /= 2) v += tile.shfl_down(v, k);
  v = tile.shfl(v, 0);
  block.sync();
  y[i] = v * 10 + tile.thread_rank() + 1000 * tile.any(b[i] > 90);
}""",
        lambda rng: [
            rng.integers(0, 99, N).astype(I),
            rng.integers(0, 99, N).astype(I),
            np.zeros(N, I),
        ],
        lambda a, b, _: (
            np.repeat(a.reshape(-1, 8).sum(1), 8) * 10
            + np.arange(N) % 8
            + 1000 * np.repeat((b.reshape(-1, 8) > 90).any(1), 8)
        ),
    ),
    "struct of arrays": Case(
        """struct P { double x; float y; short z; char w; };
__constant__ short table[5] = {3, -1, 4, 1, -5};
__device__ P made[256];
extern "C" __global__ void kernel(const float* a, const int* b, double* y) {
  int i = blockIdx.x * 64 + threadIdx.x;
  made[i] = P{a[i] * 2.0, a[i], table[b[i] % 5], (char)b[i]};
  __syncthreads();
  P p = made[i ^ 1];
  y[i] = p.x + p.y + p.z + p.w;
}""",
        lambda rng: [
            rng.integers(-99, 99, N).astype(F),
            rng.integers(0, 99, N).astype(I),
            np.zeros(N),
        ],
        lambda a, b, _: (3.0 * a + np.array([3, -1, 4, 1, -5])[b % 5] + b)[np.arange(N) ^ 1],
    ),
}
