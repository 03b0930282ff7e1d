"""wmma: fragments of every shape and layout come back, products are those of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cudacase import run

from gpulab.errors import BuildError, FaultError
from gpulab.formats import decode, encode

SOURCE = """#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
using namespace nvcuda;
extern "C" __global__ void kernel(const %(type)s* a, const %(type)s* b, const %(sum)s* c,
                                  %(sum)s* d, int lanes) {
  if (threadIdx.x >= lanes) return;
  wmma::fragment<wmma::matrix_a, M, N, K, %(operand)s, wmma::%(la)s> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, %(operand)s, wmma::%(lb)s> fb;
  wmma::fragment<wmma::accumulator, M, N, K, %(sum)s> acc;
  wmma::load_matrix_sync(fa, a, LDA);
  wmma::load_matrix_sync(fb, b, LDB);
  wmma::load_matrix_sync(acc, c, LDC, wmma::mem_%(lc)s);
  wmma::mma_sync(acc, fa, fb, acc);
  for (int i = 0; i < acc.num_elements; ++i) acc.x[i] = acc.x[i] + acc.x[i];
  wmma::store_matrix_sync(d, acc, LDC, wmma::mem_%(lc)s);
}"""
TYPES = {
    "fp16": ("__half", "__half", 16),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16", 16),
    "tf32": ("float", "wmma::precision::tf32", 8),
}


def product(
    fmt: str, sums: str, shape: tuple[int, int, int], layouts: str, lanes: int = 32, pad: int = 0
) -> tuple[Any, Any]:
    """2 (A B + C) of small integers: what the kernel gives, and the right one."""
    m, n, k = shape
    kind, operand, _ = TYPES[fmt]
    la, lb, lc = (f"{name}_major" for name in layouts.split())
    text = SOURCE % {
        "type": kind, "operand": operand, "la": la, "lb": lb, "lc": lc,
        "sum": "float" if sums == "fp32" else "__half",
    }  # fmt: skip
    rng = np.random.default_rng(m + n)
    a, b, c = (rng.integers(-3, 4, s).astype(float) for s in ((m, k), (k, n), (m, n)))
    stored = "fp32" if fmt == "tf32" else fmt

    def placed(matrix: Any, layout: str, name: str) -> tuple[Any, int]:
        """Row after row (or column after column), each followed by padding."""
        rows = matrix if layout == "row_major" else matrix.T
        wide = np.pad(rows, ((0, 0), (0, pad)), constant_values=7.0)
        return encode(name, wide), wide.shape[1]

    (pa, lda), (pb, ldb) = placed(a, la, stored), placed(b, lb, stored)
    pc, ldc = placed(c, lc, sums)
    sizes = {"M": m, "N": n, "K": k, "LDA": lda, "LDB": ldb, "LDC": ldc}
    text = "".join(f"#define {name} {value}\n" for name, value in sizes.items()) + text
    got = run(text, [pa, pb, pc, np.full_like(pc, 0), lanes], unwritten=(3,))
    found = decode(sums, got.arrays[3])[:, : ldc - pad]
    return (found if lc == "row_major" else found.T), 2 * (a @ b + c)


@pytest.mark.parametrize(
    ("fmt", "sums", "shape", "layouts", "pad"),
    [
        ("fp16", "fp32", (16, 16, 16), "row row row", 0),
        ("fp16", "fp32", (16, 16, 16), "col col col", 8),
        ("fp16", "fp16", (32, 8, 16), "row col row", 8),
        ("fp16", "fp16", (8, 32, 16), "col row col", 0),
        ("bf16", "fp32", (16, 16, 16), "row col row", 8),
        ("tf32", "fp32", (16, 16, 8), "row col col", 4),
    ],
)
def test_products_and_layouts(
    fmt: str, sums: str, shape: tuple[int, int, int], layouts: str, pad: int
) -> None:
    got, want = product(fmt, sums, shape, layouts, pad=pad)
    np.testing.assert_array_equal(got, want)


def test_a_part_of_a_warp_is_a_fault() -> None:
    with pytest.raises(FaultError) as caught:
        product("fp16", "fp32", (16, 16, 16), "row row row", lanes=20)
    assert caught.value.details["fault"] == "warp_divergence"


def test_a_fragment_beyond_an_array_is_out_of_bounds() -> None:
    source = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void kernel(float* d) {
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
  wmma::fill_fragment(acc, 1.0f);
  wmma::store_matrix_sync(d, acc, 16, wmma::mem_row_major);
}"""
    with pytest.raises(FaultError) as caught:
        run(source, [np.zeros(255, np.float32)])
    assert caught.value.details["fault"] in ("out_of_bounds", "guard_zone")


def test_what_is_not_emulated_stops_with_its_name() -> None:
    source = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void kernel(int* d, const unsigned* a) {
  wmma::fragment<wmma::matrix_a, 8, 8, 32, wmma::experimental::precision::u4, wmma::row_major> f;
  wmma::load_matrix_sync(f, a, 32);
  d[threadIdx.x] = f.x[0];
}"""
    with pytest.raises(BuildError, match=r"wmma\.load"):
        run(source, [np.zeros(32, np.int32), np.zeros(64, np.uint32)])
