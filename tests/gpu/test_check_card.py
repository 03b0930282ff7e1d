"""Submissions judged on the card: verdicts, times, claims, modules that are loaded afresh."""

from pathlib import Path

import pytest

from gpulab import exercises
from gpulab.check.judge import check
from gpulab.check.session import Options
from gpulab.errors import DeviceMissingError
from gpulab.numerics.cache import Cache

TESTS = Path(__file__).resolve().parents[1]
CACHE = Cache()


def judged(path, **options):
    try:
        return check(path, Options(device="cuda", seed=5, **options), cache=CACHE)
    except DeviceMissingError as missing:
        pytest.skip(f"no usable card: {missing.message}")


def stage(result, name):
    return next(s for s in result.stages if s.name == name)


def test_a_right_kernel_is_timed_and_its_claims_are_answered(tmp_path):
    text = exercises.get("fp16-matmul").file("solution", "cu").read_text()
    path = tmp_path / "kernel.cu"
    claim = '// gpulab: claim time_ms=1e6 baseline_ms=1e6 gate_fraction=1 speedup_from="bytes"\n'
    path.write_text(claim + text)
    result = judged(path)
    assert result.verdict == "PASS", result.reason
    assert result.facts["time_ms"]["median"] > result.facts["least_ms"] > 0
    assert result.facts["timing"]["l2"] in ("flushed", "rotated")
    assert result.facts["timing"]["wrong"] == []
    assert [a.get("holds") for a in result.facts["claims"]] == [False, False, False, None]
    assert "times as long" in result.facts["claims"][3]["answer"]
    assert stage(result, "races").status == "PASS"
    assert dict(exercises.get("fp16-matmul").timed) in result.facts["shapes"]


def test_a_module_is_loaded_afresh(tmp_path):
    """A launch that is right only for a freshly loaded module is right in every first launch."""
    path = tmp_path / "kernel.cu"
    path.write_text(
        "// gpulab: exercise=fp16-matmul\n// gpulab: block=16,16 grid=ceil(n/16),ceil(m/16)\n"
        "#include <cuda_fp16.h>\n__device__ int launches;\n"
        'extern "C" __global__ void matmul(const __half* a, const __half* b, float* c, int m, '
        "int n, int k) {\n"
        "  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;\n"
        "  if (row < m && column < n) { float sum = 0;\n"
        "    for (int t = 0; t < k; ++t)\n"
        "      sum += __half2float(a[row * k + t]) * __half2float(b[t * n + column]);\n"
        "    c[row * n + column] = atomicAdd(&launches, 0) > 20 ? 0 : sum; }\n"
        "  if (row + column == 0) atomicAdd(&launches, 1);\n}\n"
    )
    result = judged(path)
    assert result.verdict == "FAIL"
    assert result.diagnosis.slug == "keeps-state", result.diagnosis  # no case of its own failed


@pytest.mark.parametrize(
    ("name", "slug", "code"),
    [
        ("submissions/wrong/fp16-matmul/race/no_second_barrier.cu", "race", 6),
        ("submissions/wrong/fp16-matmul/out-of-bounds/no_guard.cu", "out-of-bounds", 6),
        ("exploits/files/half_at_the_timed_size_only.cu", "timed-size", 1),
        ("submissions/wrong/fp8-matmul/nan/sum_never_set.cu", "nan", 1),
        ("submissions/wrong/softmax/uninitialised/maximum_never_set.cu", "uninitialised", 1),
        ("submissions/wrong/tiled-matmul/race/deep_tile.cu", "race", 6),
    ],
)
def test_verdicts_are_those_of_the_emulated_device(name, slug, code):
    result = judged(TESTS / name)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == ("FAIL", slug, code)
