"""The lab end to end on the emulated device: records, refusals, faults, exit codes."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gpulab import registry
from gpulab.lab import evaluate, verdict
from gpulab.lab.runner import KernelRunner
from gpulab.registry import Case, RawBuild
from gpulab.runtime.emulated import EmulatedDevice

DIMS = {"m": 17, "n": 33, "k": 20}


def gpulab(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "gpulab", *arguments],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice((8, 9))


@pytest.fixture(scope="module")
def simt():
    (case,) = (
        c
        for c in registry.cases("matmul", kernel="simt", backend="raw", format="fp16")
        if not c.variant.lesson
    )
    return case


def with_source(case, path, text):
    """The case with its device code replaced, launch and parameters kept."""
    path.write_text(text)
    spec = replace(case.spec, build=lambda v, c, d: RawBuild(str(path), "broken"))
    return Case(spec, case.variant)


HEAD = (
    "#include <cuda_fp16.h>\n"
    'extern "C" __global__ void broken(const __half* a, const __half* b, float* c,'
    " int m, int n, int k) {\n"
    "  int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;\n"
)


def judge(case, device, **options):
    (record,) = evaluate.evaluate_all([case], device, DIMS, **options)
    return record


def test_record_has_every_field_of_the_schema_and_counts_work(simt, device):
    record = judge(simt, device)
    for field in (
        "schema", "op", "kernel", "backend", "format", "accumulator", "output", "device",
        "device_name", "capability", "dims", "inputs", "max_abs_err", "max_rel_err", "storage_err",
        "contract_gate", "arithmetic_gate", "verdict", "reason", "first_bad_index", "time_ms",
        "tflops", "gb_per_s", "counters",
    ):  # fmt: skip
        assert field in record
    assert record["verdict"] == "PASS"
    assert record["time_ms"] is None
    assert record["tflops"] is None
    m, n, k = DIMS.values()
    least = 2 * (m * k + k * n) + 4 * m * n
    assert record["counters"]["global_sector_bytes"] >= least
    assert record["resources"]["spill_bytes"] == 0
    json.dumps(record, allow_nan=False)


def test_half_storage_halves_the_load_sectors(device):
    loads = {}
    dims = {"m": 64, "n": 64, "k": 64}
    for fmt in ("fp32", "fp16"):
        case = next(
            c
            for c in registry.cases("matmul", kernel="simt", backend="raw", format=fmt)
            if not c.variant.lesson
        )
        (record,) = evaluate.evaluate_all([case], device, dims)
        loads[fmt] = record["counters"]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
    assert loads["fp32"] == 2 * loads["fp16"]


def test_broken_source_fails_with_its_line_and_exit_4(simt, device, tmp_path):
    case = with_source(simt, tmp_path / "broken.cu", HEAD + "  c[i * n + j] = undeclared;\n}\n")
    record = judge(case, device)
    assert record["error"]["exit_code"] == 4
    assert "broken.cu(4)" in record["reason"] or "broken.cu:4" in record["reason"]
    assert verdict.exit_code([record]) == 4


def test_missing_guard_is_a_fault_with_its_line_and_exit_6(simt, device, tmp_path):
    case = with_source(simt, tmp_path / "broken.cu", HEAD + "  c[i * n + j] = 1.0f;\n}\n")
    record = judge(case, device)
    assert record["error"]["fault"] == "out_of_bounds"
    assert record["error"]["line"] == 4
    assert verdict.exit_code([record]) == 6


def test_endless_loop_stops_at_the_budget_with_exit_5(simt, tmp_path):
    source = HEAD + "  volatile float* p = c; while (true) { p[0] = 1.0f; }\n}\n"
    case = with_source(simt, tmp_path / "broken.cu", source)
    record = judge(case, EmulatedDevice((8, 9), budget=20_000))
    assert record["error"]["exit_code"] == 5
    assert verdict.exit_code([record]) == 5


def test_one_bad_row_does_not_stop_the_others(simt, device, tmp_path):
    case = with_source(simt, tmp_path / "broken.cu", HEAD + "  c[i * n + j] = 1.0f;\n}\n")
    records = evaluate.evaluate_all([case, simt], device, DIMS, measured=False)
    assert [r["verdict"] for r in records] == ["FAIL", "PASS"]


def test_kernel_that_skips_elements_is_caught_as_unwritten(simt, device, tmp_path):
    body = (
        "  if (i >= m || j >= n || (i == 3 && j == 5)) return;\n  float s = 0;\n"
        "  for (int t = 0; t < k; ++t)\n"
        "    s = fmaf(__half2float(a[i * k + t]), __half2float(b[t * n + j]), s);\n"
        "  c[i * n + j] = s;\n}\n"
    )
    record = judge(with_source(simt, tmp_path / "broken.cu", HEAD + body), device)
    assert record["verdict"] == "FAIL"
    assert any(r.startswith("unwritten") for r in record["reasons"])
    assert record["first_bad_index"] == [3, 5]


def test_runner_sees_a_kernel_that_writes_to_its_inputs(simt, device, tmp_path):
    text = HEAD.replace("const __half* a", "__half* a") + (
        "  if (i >= m || j >= n) return;\n  if (i == 0 && j == 0) a[0] = __float2half(7.0f);\n"
        "  c[i * n + j] = 0.0f;\n}\n"
    )
    runner = KernelRunner(with_source(simt, tmp_path / "broken.cu", text), device, DIMS)
    inputs = {"a": np.ones((17, 20), np.float16), "b": np.ones((20, 33), np.float16)}
    assert not runner(inputs, poison=0xA5).inputs_unchanged


@pytest.fixture(
    scope="module",
    params=[("--backend", "raw"), pytest.param((), marks=pytest.mark.whole)],
    ids=str,
)
def on_75(request):
    done = gpulab("matmul", "--size", "32", "--device", "emulated", "--capability", "7.5", "--json",
                  *request.param)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rows_a_capability_lacks_say_what_they_need(on_75):
    refused = {
        r["format"]: r["reason"] for r in on_75 if r["kernel"] == "mma" and r["verdict"] is None
    }
    assert refused == {
        "bf16": "needs sm_80",
        "tf32": "needs sm_80",
        "e4m3": "needs sm_89",
        "e5m2": "needs sm_89",
    }


def test_every_row_passes_and_every_lesson_fails(on_75):
    for r in on_75:
        if r["verdict"] is not None:
            assert r["verdict"] == ("FAIL" if r["lesson"] else "PASS"), r["reason"]
            assert r["device"] == "emulated"
            assert r["capability"] == "7.5"


def test_lessons_pass_the_contract_gate_and_fail_the_arithmetic_gate(on_75):
    lessons = [r for r in on_75 if r["lesson"] and r["verdict"] is not None]
    assert lessons
    for r in lessons:
        assert r["contract_gate"]["passed"]
        assert not r["arithmetic_gate"]["passed"]
        assert r["error_vs_float_accumulator"] > 1


def test_run_as_json_prints_objects_only():
    done = gpulab("matmul", "--m", "17", "--n", "33", "--k", "65", "--kernel", "simt", "--json",
                  "--device", "emulated", "--backend", "raw", "--quiet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(json.loads(line)["schema"] == 1 for line in done.stdout.splitlines())
