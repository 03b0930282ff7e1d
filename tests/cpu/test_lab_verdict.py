"""Exit codes and the one-sentence summary, and the table made of records."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from gpulab.device_code import LaunchPlan
from gpulab.lab import evaluate, render, verdict
from gpulab.runtime.resources import Resources


def row(verdict="PASS", lesson=False, **more):
    return {
        "op": "matmul", "backend": "raw", "kernel": "simt",
        "format": "fp16", "output": "fp32", "accumulator": "fp32",
        "max_abs_err": 1e-3, "max_rel_err": 0.5,
        "contract_gate": {"fraction": 0.1, "passed": True, "text": "rtol = max(1e-2, ...)"},
        "arithmetic_gate": {"fraction": 0.2, "passed": verdict == "PASS"},
        "verdict": verdict, "reason": None,
        "reasons": ["rms: too large"] if verdict == "FAIL" else [],
        "lesson": lesson, "note": "why it fails", **more,
    }  # fmt: skip


refused = row() | {"verdict": None, "reason": "needs sm_89"}


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([row()], 0),
        ([row(), row("FAIL", lesson=True)], 0),
        ([row(), row("PASS", lesson=True)], 1),
        ([row(), row("FAIL")], 1),
        ([row(), row("INCONCLUSIVE")], 3),
        ([row("INCONCLUSIVE", lesson=True)], 3),
        ([row("INCONCLUSIVE"), row("FAIL")], 1),
        ([row(), refused], 0),
        ([row("FAIL", lesson=True, reasons=["nonfinite: NaN", "contract: NaN"])], 0),
        ([row("FAIL", lesson=True, reasons=[])], 1),
        ([row("FAIL", lesson=True, reasons=["unwritten: 3 elements"])], 1),
        ([row("FAIL", lesson=True, reasons=["unwritten: 3 elements", "rms: too large"])], 1),
        ([row("FAIL", lesson=True, reasons=["unwritten: 3"], shown_by=["unwritten"])], 0),
        ([row("FAIL", lesson=True, reasons=["shape: 3 rows"], shown_by=["unwritten"])], 1),
        ([row("FAIL", error={"exit_code": 6, "kind": "fault"})], 6),
        ([row("FAIL", lesson=True, error={"exit_code": 4, "kind": "build"})], 4),
        ([refused], 3),
        ([], 3),
    ],
)
def test_exit_code(records, code):
    assert verdict.exit_code(records) == code
    word = {0: "PASS", 3: "INCONCLUSIVE"}.get(code, "FAIL")
    assert verdict.summary(records).startswith(word + ":")


def test_occupancy_counts_static_and_dynamic_shared_memory():
    """30 KiB and 20 KiB, and the 1 KiB that the system takes: three times in the 164 KiB of an
    SM, of four warps each."""
    figures = dict.fromkeys(("stack_bytes", "spill_store_bytes", "spill_load_bytes", "barriers"), 0)
    used = Resources(registers=32, shared_bytes=30 << 10, **figures)
    runner = SimpleNamespace(
        function=SimpleNamespace(resources=used),
        plan=LaunchPlan((9, 1, 1), (32, 4, 1), 20 << 10),
        device=SimpleNamespace(target=(8, 0)),
    )
    found = evaluate.resources(runner)
    assert (found["shared_bytes"], found["threads_per_block"]) == (50 << 10, 128)
    assert (found["blocks_per_sm"], found["occupancy"]) == (3, 12 / 64)
    assert found["occupancy_limited_by"] == ["shared memory"]


def test_summary_counts():
    text = verdict.summary([row(), row(), row("FAIL", lesson=True), refused])
    assert text == "PASS: 2 of 2 rows pass, 1 of 1 lessons fail, as they must, 1 not run"


def shown(records):
    console = Console(file=io.StringIO(), width=200)
    render.print_ladder(console, records, "matmul")
    return console.file.getvalue()


def test_times_and_ratio_to_the_fp32_row():
    time = {"median": 4.0, "min": 3.9, "p90": 4.1, "runs": 10}
    base = row(format="fp32", time_ms=time, tflops=1.0)
    half = row(time_ms=time | {"median": 2.0}, tflops=2.0)
    text = shown([base, half])
    assert "2.00x" in text
    assert "time (ms)" in text
    assert "sectors" not in text


def test_operations_bound_by_memory_show_gb_per_s_and_their_share_of_what_was_timed_beside():
    beside = {"of": "read", "fraction": 0.9375}
    fast = row(op="crossentropy", speed="gb_per_s", time_ms={"median": 0.5}, tflops=7.25,
               gb_per_s=4111.0, bandwidth=beside)  # fmt: skip
    text = shown([fast])
    assert "GB/s" in text
    assert "4111" in text
    assert "of read" in text
    assert "0.938" in text
    assert "TFLOP/s" not in text
    assert "7.25" not in text
    plain = row(format="fp32", speed="gb_per_s", time_ms={"median": 1.0}, gb_per_s=2000.0)
    text = shown([plain, fast | {"bandwidth": None}])
    assert "2.00x" in text  # without a bandwidth beside: against the fp32 row


def test_problems_name_the_operation_and_leave_lessons_out():
    rows = [row(), row("FAIL", lesson=True), refused, row("FAIL", op="softmax", reason="far off")]
    assert render.problems(rows) == ["FAIL softmax raw/simt fp16, fp32 acc: far off"]


def test_emulated_rows_show_counts_and_never_a_time():
    def counters(sectors):
        return {"instructions": 1000, "global_sector_bytes": 32 * sectors}

    text = shown([row(format="fp32", counters=counters(800)), row(counters=counters(400))])
    assert "0.50x" in text
    assert "time (ms)" not in text


def test_refused_row_shows_its_reason_and_a_failing_row_its_cause():
    text = shown([row(), refused, row("FAIL", reason="12 elements outside the interval")])
    assert "needs sm_89" in text
    assert "12 elements outside the interval" in text


def test_lesson_that_passes_is_called_lost():
    assert "the lesson is lost" in shown([row("PASS", lesson=True)])


def test_refused_neighbours_of_one_kernel_and_reason_take_one_line():
    alone = refused | {"kernel": "other"}
    text = shown([row(), refused, refused | {"format": "bf16"}, alone, refused])
    lines = [line.split() for line in text.splitlines() if "needs sm_89" in line]
    assert [line[:3] for line in lines] == [
        ["2", "rows:", "fp16,"],
        ["fp16,", "fp32", "acc"],
        ["fp16,", "fp32", "acc"],
    ]
    assert "2 rows: fp16, bf16 " in text
    assert "3 rows " in shown([row(), *(refused | {"format": f} for f in ("fp16", "bf16", "tf32"))])


def test_rows_of_one_format_are_told_apart_by_contract_and_output():
    names = {
        render.case_name(row(contract=contract, output=output))
        for contract in ("", "fast", "promoted")
        for output in ("fp32", "bf16")
    }
    assert len(names) == 6
    assert render.case_name(row()) == "fp16, fp32 acc"
    assert render.case_name(row(contract="fast", output="bf16")) == "fp16, fp32 acc fast -> bf16"


def test_a_kernel_with_a_step_before_it_is_shown_without_it_too():
    taken = {"without": ["transpose b"], "time_ms": {"median": 0.5}, "tflops": 1234.0}
    text = shown([row(time_ms={"median": 0.75}, tflops=800.0, kernel_alone=taken)])
    assert "0.5 ms (1234 TFLOP/s) without transpose b" in text
    assert "transpose" not in shown([row(time_ms={"median": 0.75}, tflops=800.0)])
