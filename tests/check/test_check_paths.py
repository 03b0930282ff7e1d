"""Paths of their own for whole tiles and vectors: right where dims are equal, wrong where not."""

from pathlib import Path

import pytest

from gpulab import exercises
from gpulab.check import token

CORRECT = Path(__file__).resolve().parents[1] / "submissions" / "correct"
PRODUCT = """// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
#include <cuda_fp16.h>

extern "C" __global__ void matmul(const __half* a, const __half* b, float* c,
                                  int m, int n, int k) {{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    if ({condition}) {{
        if ({outside}) return;
        for (int t = 0; t < {terms}; ++t) {{
            sum += __half2float(a[row * {a_width} + t]) * __half2float(b[t * n + {b_column}]);
        }}
        c[row * n + column] = sum;
        return;
    }}
    if (row >= m || column >= n) return;
    for (int t = 0; t < k; ++t) {{
        sum += __half2float(a[row * k + t]) * __half2float(b[t * n + column]);
    }}
    c[row * n + column] = sum;
}}
"""
RIGHT = {
    "outside": "row >= m || column >= n", "terms": "k", "a_width": "k", "b_column": "column",
}  # fmt: skip
WHOLE = "m % 16 == 0 && n % 16 == 0 && k % 16 == 0"


@pytest.mark.parametrize(
    ("condition", "mistake", "slug"),
    [
        (WHOLE, {"a_width": "n"}, "swapped-dims"),
        (WHOLE.replace("16", "64"), {"terms": "m"}, "dropped-terms"),
        ("k % 16 == 0", {"outside": "row >= m", "b_column": "min(column, n - 1)"}, "out-of-bounds"),
        ("n % 16 == 0 && k % 16 == 0", {"outside": "column >= n"}, "out-of-bounds"),
    ],
)
def test_a_path_for_whole_tiles_that_is_wrong_is_seen(judged, tmp_path, condition, mistake, slug):
    path = tmp_path / "path.cu"
    path.write_text(PRODUCT.format(condition=condition, **RIGHT | mistake))
    result = judged(path, timed=False)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", slug)


def test_the_same_path_without_a_mistake_passes(judged, tmp_path):
    path = tmp_path / "path.cu"
    path.write_text(PRODUCT.format(condition=WHOLE, **RIGHT))
    assert judged(path, timed=False).verdict == "PASS"


@pytest.mark.parametrize("name", sorted(exercises.catalogue()))
def test_every_dim_is_looked_at_beyond_what_is_timed(name):
    exercise = exercises.get(name)
    looked = [s.dims for s in (*exercise.shapes, exercise.longest)]
    for dim, timed in exercise.timed.items():
        if dim in exercise.dims and dim not in ("causal", "group", "head_dim"):
            assert max(dims[dim] for dims in looked) > timed, dim


@pytest.mark.parametrize(
    "name", [n for n in sorted(exercises.catalogue()) if "matmul" in n or "mma" in n]
)
def test_whole_tiles_of_products_are_no_cubes_and_each_dim_alone_is_odd(name):
    looked = [tuple(s.dims[d] for d in "mnk") for s in exercises.get(name).shapes]
    assert any(len(set(dims)) == 3 and all(d % 64 == 0 for d in dims) for dims in looked)
    for i in range(3):
        assert any(
            dims[i] % 2 and all(d % 16 == 0 for j, d in enumerate(dims) if j != i)
            for dims in looked
        )


def test_whole_tiles_of_attention_have_several_batches_and_heads_both_causal_and_not():
    for causal in (0, 1):
        assert any(
            s.dims["seq_q"] != s.dims["seq_k"]
            and all(s.dims[d] % 16 == 0 for d in ("seq_q", "seq_k", "head_dim"))
            and s.dims["batch"] > 1 < s.dims["heads"]
            and s.dims["causal"] == causal
            for s in exercises.get("attention").shapes
        )


TILED = """// gpulab: exercise=fp16-matmul
// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16) shared=0
#include <cuda_fp16.h>

extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, int n, int k) {
    __shared__ float of_a[16][16], of_b[16][16];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += 16) {
        of_a[y][x] = row < m && t + x < k ? __half2float(a[row * k + t + x]) : 0.0f;
        of_b[y][x] = t + y < k && column < n ? __half2float(b[(t + y) * n + column]) : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += of_a[y][i] * of_b[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
"""


@pytest.mark.parametrize(
    ("guarded", "clamped"),
    [
        ("row < m && t + x < k ? __half2float(a[row * k + t + x]) : 0.0f",
         "__half2float(a[min(row * k + t + x, m * k - 1)])"),
        ("t + y < k && column < n ? __half2float(b[(t + y) * n + column]) : 0.0f",
         "column < n ? __half2float(b[min(t + y, k - 1) * n + column]) : 0.0f"),
    ],
)  # fmt: skip
def test_what_is_loaded_beyond_the_last_term_is_no_infinity(judged, tmp_path, guarded, clamped):
    assert TILED.count(guarded) == 1
    path = tmp_path / "tiled.cu"
    path.write_text(TILED.replace(guarded, clamped))
    result = judged(path, timed=False)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", "nonfinite")


def test_a_grid_of_the_timed_size_is_too_small(judged, tmp_path):
    path = tmp_path / "grid.cu"
    text = PRODUCT.format(condition="false", **RIGHT)
    path.write_text(text.replace("ceil(n/16),", "min(ceil(n/16),128),"))
    result = judged(path, timed=False)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", "unwritten")


def test_the_maximum_has_to_be_subtracted_where_each_exponential_is_a_number(judged, tmp_path):
    text = (CORRECT / "softmax" / "thread_a_row.cu").read_text()
    path = tmp_path / "late.cu"
    found = [line for line in text.splitlines() if "largest = max(" in line]
    assert found
    after = text.replace(found[-1], f"{found[-1]}\n    if (largest < 87.0f) largest = 0.0f;")
    path.write_text(after)
    result = judged(path, timed=False)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", "missing-max")


def test_a_replayed_case_of_one_launch_is_judged_whole(judged, tmp_path):
    path = tmp_path / "path.cu"
    path.write_text(PRODUCT.format(condition=WHOLE, **RIGHT | {"a_width": "n"}))
    only = token.parse(judged(path, timed=False).facts["replay"])
    assert dict(only.dims) == {"m": 64, "n": 128, "k": 192}
    again = judged(path, only=only, seed=only.seed)
    assert (again.verdict, again.diagnosis.slug) == ("FAIL", "swapped-dims")
    path.write_text(PRODUCT.format(condition=WHOLE, **RIGHT))
    assert judged(path, only=only, seed=only.seed).verdict == "PASS"
