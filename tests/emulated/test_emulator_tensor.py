"""mma, ldmatrix, stmatrix: element layouts against the tables of the PTX ISA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cudacase import run

from gpulab.errors import FaultError
from gpulab.formats import encode
from gpulab.numerics import tensorcore

I, U = np.int32, np.uint32

FORMS = [
    # (PTX middle, m, k, bits of A/B, half accumulator, capability)
    ("m16n8k16.row.col.f32.f16.f16.f32", 16, 16, 16, False, (8, 0)),
    ("m16n8k8.row.col.f32.f16.f16.f32", 16, 8, 16, False, (7, 5)),
    ("m16n8k16.row.col.f16.f16.f16.f16", 16, 16, 16, True, (8, 0)),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, 16, 16, False, (9, 0)),
    ("m16n8k8.row.col.f32.bf16.bf16.f32", 16, 8, 16, False, (8, 0)),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", 16, 8, 32, False, (8, 0)),
    ("m16n8k4.row.col.f32.tf32.tf32.f32", 16, 4, 32, False, (8, 0)),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 16, 32, 8, False, (8, 9)),
    ("m16n8k32.row.col.f32.e4m3.e5m2.f32", 16, 32, 8, False, (9, 0)),
    ("m16n8k32.row.col.s32.s8.s8.s32", 16, 32, 8, False, (8, 0)),
    ("m16n8k16.row.col.s32.s8.s8.s32", 16, 16, 8, False, (8, 0)),
    ("m8n8k16.row.col.s32.s8.s8.s32", 8, 16, 8, False, (7, 5)),
    ("m16n8k32.row.col.satfinite.s32.s8.s8.s32", 16, 32, 8, False, (8, 0)),
]
CODES = {8: np.uint8, 16: np.uint16, 32: np.uint32}
STORAGE = {"f16": "fp16", "bf16": "bf16", "tf32": "fp32", "e4m3": "e4m3", "e5m2": "e5m2"}


def codes(rng: np.random.Generator, kind: str, shape: tuple[int, ...], bits: int) -> Any:
    if kind == "s8":
        return rng.integers(0, 256, shape).astype(np.uint8)
    return encode(STORAGE[kind], rng.standard_normal(shape)).view(CODES[bits])


def kernel(form: str, na: int, nb: int, nc: int) -> str:
    def group(start: int, count: int) -> str:
        return "{" + ", ".join(f"%{start + i}" for i in range(count)) + "}"

    starts = (0, nc, nc + na, nc + na + nb)
    groups = (group(at, n) for at, n in zip(starts, (nc, na, nb, nc), strict=True))
    text = f"mma.sync.aligned.{form} {', '.join(groups)};"
    outs = ", ".join(f'"=r"(d[{i}])' for i in range(nc))
    ins = ", ".join(
        f'"r"({n}[i * {c} + {j}])' for n, c in (("a", na), ("b", nb), ("c", nc)) for j in range(c)
    )
    return f"""extern "C" __global__ void kernel(const unsigned* a, const unsigned* b,
                                  const unsigned* c, unsigned* o) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned d[{nc}];
  asm volatile("{text}" : {outs} : {ins});
  for (int k = 0; k < {nc}; k++) o[i * {nc} + k] = d[k];
}}"""


def fragment_a(matrix: Any, each: int) -> Any:
    """Registers (32 lanes, n) of A by the ISA's element rules, element by element."""
    m, k = matrix.shape
    registers = m * k // (32 * each)
    out = np.zeros((32, registers, each), matrix.dtype)
    for lane in range(32):
        group, thread = divmod(lane, 4)
        for r in range(registers):
            for i in range(each):
                halves = m // 8
                row = group + 8 * (r % halves)
                out[lane, r, i] = matrix[row, 4 * each * (r // halves) + each * thread + i]
    return out.view(U).reshape(32, registers)


def fragment_b(matrix: Any, each: int) -> Any:
    return fragment_a(np.ascontiguousarray(matrix.T), each)


def fragment_c(matrix: Any, half: bool) -> Any:
    m = matrix.shape[0]
    out = np.zeros((32, m // 8, 2), matrix.dtype)
    for lane in range(32):
        group, thread = divmod(lane, 4)
        for r in range(m // 8):
            for i in range(2):
                out[lane, r, i] = matrix[group + 8 * r, 2 * thread + i]
    return out.reshape(32, -1).view(U)


@pytest.mark.parametrize(("form", "m", "k", "bits", "half", "capability"), FORMS)
def test_mma_fragments(
    form: str, m: int, k: int, bits: int, half: bool, capability: tuple[int, int]
) -> None:
    rng = np.random.default_rng(k * bits)
    a_type, b_type = form.split(".")[-3:-1]
    blocks, warps = 3, 2
    n = blocks * warps
    a = codes(rng, a_type, (n, m, k), bits)
    b = codes(rng, b_type, (n, k, 8), bits)
    if half:
        c = rng.standard_normal((n, m, 8)).astype(np.float16).view(np.uint16)
    elif ".s32." in form:
        ends = rng.choice([0, 2**31 - 1000, -(2**31) + 1000], (n, m, 8))
        c = (ends + rng.integers(-1000, 1000, (n, m, 8))).astype(I).view(U)
    else:
        c = rng.standard_normal((n, m, 8)).astype(np.float32).view(U)
    each = 32 // bits
    fa = np.stack([fragment_a(x, each) for x in a])
    fb = np.stack([fragment_b(x, each) for x in b])
    fc = np.stack([fragment_c(x, half) for x in c])
    source = kernel(form, fa.shape[2], fb.shape[2], fc.shape[2])
    got = run(
        source,
        [fa, fb, fc, np.zeros_like(fc)],
        grid=(blocks,),
        block=(32 * warps,),
        capability=capability,
    ).arrays[3]
    name = "mma.sync." + form.replace(".row.col", "")
    want = tensorcore.mma(a, b, c, name, capability)
    assert np.array_equal(got, np.stack([fragment_c(x, half) for x in want.astype(c.dtype)]))


def test_mma_by_half_a_warp_is_a_fault() -> None:
    source = kernel(FORMS[0][0], 4, 2, 4).replace("  asm", "  if (threadIdx.x < 16)\n  asm")
    zero = np.zeros((32, 4), U)
    with pytest.raises(FaultError) as caught:
        run(source, [zero, zero[:, :2].copy(), zero, zero.copy()])
    assert caught.value.details["fault"] == "warp_divergence"


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, trans: str) -> None:
    outs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    regs = ", ".join(f"%{i}" for i in range(count))
    source = f"""extern "C" __global__ void kernel(const unsigned short* in, const int* row,
                                  unsigned* o) {{
  __shared__ __align__(16) unsigned short s[64 * 8];
  for (int k = 0; k < 16; k++)
    s[threadIdx.x + 32 * k] = in[blockIdx.x * 512 + threadIdx.x + 32 * k];
  __syncthreads();
  const unsigned short* from = s + 8 * row[blockIdx.x * 32 + threadIdx.x];
  unsigned at = (unsigned)__cvta_generic_to_shared(from), r[{count}];
  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{regs}}}, [%{count}];"
               : {outs} : "r"(at));
  for (int k = 0; k < {count}; k++) o[(blockIdx.x * 32 + threadIdx.x) * {count} + k] = r[k];
}}"""
    rng = np.random.default_rng(count)
    data = rng.integers(0, 1 << 16, (3, 64, 8)).astype(np.uint16)
    row = np.stack([rng.permutation(64)[:32] for _ in range(3)]).astype(I)
    # rows that differ by block, and rows that do not
    for rows in (row, np.tile(row[:1], (3, 1))):
        got = (
            run(source, [data, rows, np.zeros(96 * count, U)], grid=(3,))
            .arrays[2]
            .reshape(3, 32, count)
        )
        for block in range(3):
            for matrix in range(count):
                tile = data[block][rows[block, 8 * matrix : 8 * matrix + 8]]
                for lane in range(32):
                    g, t = divmod(lane, 4)
                    pair = tile[2 * t : 2 * t + 2, g] if trans else tile[g, 2 * t : 2 * t + 2]
                    assert got[block, lane, matrix] == int(pair[0]) | int(pair[1]) << 16


def test_ldmatrix_checks_alignment_bounds_and_validity() -> None:
    source = """extern "C" __global__ void kernel(unsigned* o, int skew, int fill) {
  __shared__ __align__(16) unsigned s[128];
  if (fill) for (int k = 0; k < 4; k++) s[threadIdx.x + 32 * k] = 1;
  __syncthreads();
  unsigned at = (unsigned)__cvta_generic_to_shared(s) + 16 * (threadIdx.x % 8) + skew, r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(at));
  o[threadIdx.x] = r;
}"""
    zero = np.zeros(32, U)
    assert np.all(run(source, [zero, 0, 1]).arrays[0] == 1)
    for skew, fill, kind in (
        (4, 1, "misaligned"),
        (400, 1, "out_of_bounds"),
        (0, 0, "uninitialised"),
    ):
        with pytest.raises(FaultError) as caught:
            run(source, [zero, skew, fill])
        assert (caught.value.details["fault"], caught.value.details["line"]) == (kind, 6)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix(trans: str) -> None:
    source = f"""extern "C" __global__ void kernel(const unsigned* in, unsigned short* o) {{
  __shared__ __align__(16) unsigned short s[64 * 8];
  unsigned at = (unsigned)__cvta_generic_to_shared(s + 8 * threadIdx.x);
  asm volatile("stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%0], {{%1, %2, %3, %4}};"
    :: "r"(at), "r"(in[threadIdx.x * 4]), "r"(in[threadIdx.x * 4 + 1]),
    "r"(in[threadIdx.x * 4 + 2]), "r"(in[threadIdx.x * 4 + 3]) : "memory");
  __syncthreads();
  for (int k = 0; k < 8; k++) o[threadIdx.x * 8 + k] = s[threadIdx.x * 8 + k];
}}"""
    data = np.random.default_rng(5).integers(0, 1 << 32, (32, 4)).astype(U)
    got = (
        run(source, [data, np.zeros(256, np.uint16)], capability=(9, 0)).arrays[1].reshape(4, 8, 8)
    )
    for matrix in range(4):
        for lane in range(32):
            g, t = divmod(lane, 4)
            pair = got[matrix][2 * t : 2 * t + 2, g] if trans else got[matrix][g, 2 * t : 2 * t + 2]
            assert int(pair[0]) | int(pair[1]) << 16 == data[lane, matrix]
