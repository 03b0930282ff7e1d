"""Ctrl-C: what was judged is shown and recorded, the rest is counted, and nothing passes."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gpulab import registry
from gpulab.cli import main, session
from gpulab.cli.run import concluded
from gpulab.lab import evaluate, growth, measure, suite, verdict
from gpulab.lab.evaluate import Interrupted
from gpulab.runtime.emulated import EmulatedDevice

SMALL = ("matmul", "--m", "5", "--n", "6", "--k", "9", "--device", "emulated", "--no-time")
SIMT = (*SMALL, "--kernel", "simt", "--backend", "raw")
"""Formats of its rows: fp32, fp16, bf16, e4m3, e5m2, and the lesson at the end."""
ROWS = 6


def gpulab(*arguments):
    done = CliRunner().invoke(main, arguments)
    assert "Traceback" not in done.output
    return done


def interrupted_at(monkeypatch, number):
    """Ctrl-C while the row of that number is judged, counted from 1."""
    judge, begun = evaluate._judge, []

    def stub(case, *arguments):
        begun.append(case)
        if len(begun) == number:
            raise KeyboardInterrupt
        return judge(case, *arguments)

    monkeypatch.setattr(evaluate, "_judge", stub)
    return begun


def test_the_rows_before_are_shown_and_the_line_is_no_verdict(monkeypatch):
    begun = interrupted_at(monkeypatch, 3)
    done = gpulab(*SIMT)
    assert done.exit_code == 130
    assert len(begun) == 3
    table = [line for line in done.stdout.splitlines() if "raw/simt" in line and "acc  " in line]
    assert [line.split(",")[0] for line in table] == ["fp32", "fp16"]
    assert all(line.rstrip().endswith("PASS") for line in table)
    assert done.stdout.splitlines()[-1] == (
        "INTERRUPTED while judging matmul raw/simt bf16->fp32 (fp32 acc): 2 of 2 rows pass, "
        "4 not judged yet"
    )
    assert "lesson" not in done.stdout
    assert done.stderr == "\ninterrupted\n"


def test_records_are_whole_lines_and_the_last_says_that_they_are_not_all(monkeypatch):
    interrupted_at(monkeypatch, 3)
    done = gpulab(*SIMT, "--json")
    assert done.exit_code == 130
    *records, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["format"], r["verdict"]) for r in records] == [("fp32", "PASS"), ("fp16", "PASS")]
    error = last["error"]
    assert last == {"schema": 1, "error": error}
    assert (error["kind"], error["exit_code"]) == ("interrupted", 130)
    assert (error["judged"], error["left"]) == (2, ROWS - 2)
    assert error["doing"] == "judging matmul raw/simt bf16->fp32 (fp32 acc)"
    assert error["message"].startswith("INTERRUPTED while")


def test_before_the_first_row_there_is_no_table(monkeypatch):
    interrupted_at(monkeypatch, 1)
    done = gpulab(*SIMT)
    assert done.exit_code == 130
    device, line = done.stdout.splitlines()
    assert device.startswith("device: emulated")
    assert line == (
        "INTERRUPTED while judging matmul raw/simt fp32->fp32 (fp32 acc): no row judged, "
        f"{ROWS} not judged yet"
    )


def test_rows_that_the_device_refuses_are_not_among_those_left(monkeypatch):
    interrupted_at(monkeypatch, 1)
    done = gpulab(*SMALL, "--capability", "8.9", "--kernel", "mma,wgmma", "--format", "fp16",
                  "--json")  # fmt: skip
    cases = list(registry.cases("matmul", kernel="mma,wgmma", format="fp16"))
    runs = sum(case.refusal((8, 9), "emulated", {"m": 5, "n": 6, "k": 9}) is None for case in cases)
    assert 1 < runs < len(cases)
    assert json.loads(done.stdout.splitlines()[-1])["error"]["left"] == runs


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_before_anything_is_known_it_is_one_line(monkeypatch, options):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "open_device", interrupt)
    done = gpulab(*SIMT, *options)
    assert done.exit_code == 130
    assert done.stderr.strip() == "interrupted"
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["error"]["exit_code"] for r in records] == [130] * len(options)


@pytest.fixture
def half_measured(monkeypatch):
    """Ctrl-C when the first of two rows has its number; the records and the rows' runners."""

    def first(ready, **_):
        ready[0][1]["counters"] = ready[0][1]["time_ms"] = {"median": 1.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "time_rows", first)
    monkeypatch.setattr(measure, "count_rows", first)

    def run(kind):
        records = [{"lesson": False, "time_ms": None, "counters": None} for _ in range(2)]
        device = SimpleNamespace(kind=kind)
        rows = evaluate._Rows(device, {}, None, 0, "quick", None, None, records)
        rows.ready = [(None, record) for record in records]
        with pytest.raises(KeyboardInterrupt):
            rows.measure(1, 0, None)
        assert rows.left(["judged", "judged"]) == []
        return rows.doing, [r["time_ms"] for r in rows.whole()]

    return run


def test_what_is_timed_in_turns_is_timed_together_or_not_at_all(half_measured):
    assert half_measured("cuda") == ("timing the rows", [None, None])
    doing, counted = half_measured("emulated")  # one row after the other
    assert (doing, counted) == ("counting the work of the rows", [{"median": 1.0}, None])


def test_when_every_row_is_judged_the_line_says_so_and_is_no_pass():
    records = [{"verdict": "PASS", "lesson": False}, {"verdict": None, "lesson": False}]
    assert verdict.summary(records).startswith("PASS")
    assert verdict.interrupted("timing the rows", records, 0) == (
        "INTERRUPTED while timing the rows: 1 of 1 rows pass, 1 not run, no row left to judge"
    )
    assert verdict.interrupted("timing the rows", records, 0, 1).endswith(
        "1 not run, 1 further size not begun"
    )


# -- gpulab run ----------------------------------------------------------------------------------


@pytest.fixture
def lab(monkeypatch):
    """``gpulab run`` of simt's fp16 rows, the lesson among them, and of three softmax kernels."""
    found = registry.cases

    def few(op, **filters):
        cases = found(op, **(filters | {"format": "fp16", "backend": "raw"}))
        return [c for c in cases if c.spec.name in ("simt", "two_pass", "online", "no_max")]

    sections = [suite.Section("softmax", {"rows": 3, "cols": 65}, "fp16")] * 2
    monkeypatch.setattr("gpulab.cli.run.LADDER", {"emulated": 32})
    monkeypatch.setattr("gpulab.cli.run.GROWTH", {"emulated": ((16, 32),)})
    monkeypatch.setattr(suite, "SMALL", {"emulated": sections})
    monkeypatch.setattr(registry, "cases", few)
    monkeypatch.setattr("gpulab.report.probe.run_probes", lambda *_: [])
    monkeypatch.setattr("gpulab.report.capability.capability_report", lambda *_: [])
    monkeypatch.setattr(growth, "growth", lambda *_: [])
    monkeypatch.setattr(growth, "lost", lambda _: [])
    monkeypatch.setattr(growth, "sentence", lambda _: "as it should")
    return lambda *options: gpulab("run", "--device", "emulated", *options)


LAB = 2 + 2 * 3


def test_a_run_shows_what_was_judged_of_every_part(lab, monkeypatch):
    begun = interrupted_at(monkeypatch, 4)
    done = lab("--json")
    assert done.exit_code == 130
    *records, last = [json.loads(line) for line in done.stdout.splitlines()]
    judged = [(r["kernel"], r["verdict"]) for r in records if r.get("verdict")]
    assert judged == [("simt", "PASS"), ("simt", "FAIL"), (begun[2].spec.name, "PASS")]
    assert {r["kernel"] for r in records if r.get("kind") == "lesson"} == {"simt"}
    assert last["exit_code"] == last["error"]["exit_code"] == 130
    assert last["summary"] == (
        f"INTERRUPTED while judging softmax {begun[3].label}: 2 of 2 rows pass, "
        f"1 of 1 lessons fail, as they must, {LAB - 3} not judged yet"
    )


def test_a_run_stops_between_its_parts_and_blames_none_that_did_not_come(lab, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    begun = interrupted_at(monkeypatch, 0)  # never: counts
    monkeypatch.setattr(growth, "growth", interrupt)
    monkeypatch.setattr(growth, "lost", lambda rows: pytest.fail("nothing grew"))
    done = lab()
    assert done.exit_code == 130
    assert "the gates catch 1 of 1 lessons" in done.stdout
    assert {case.spec.op for case in begun} == {"matmul"}
    assert done.stdout.splitlines()[-1] == (
        "INTERRUPTED while measuring how errors grow with K: 1 of 1 rows pass, 1 of 1 lessons "
        f"fail, as they must, {LAB - 2} not judged yet"
    )


def test_a_run_that_judged_nothing_shows_no_table(lab, monkeypatch):
    interrupted_at(monkeypatch, 1)
    done = lab()
    assert done.exit_code == 130
    assert "what the gates catch" not in done.stdout
    assert "row operations" not in done.stdout
    assert "matmul 32 x 32 x 32" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f": no row judged, {LAB} not judged yet")


def test_what_failed_beside_the_rows_is_told_but_an_interruption_is_no_verdict():
    assert concluded(130, "INTERRUPTED", ["it shrank", "it grew"]) == (
        130,
        "INTERRUPTED; it shrank; it grew",
    )


# -- gpulab bench ----------------------------------------------------------------------------------


def test_bench_saves_what_it_has_of_a_size_and_counts_the_sizes_that_did_not_come(
    monkeypatch, tmp_path
):
    rows = [
        {
            "op": "matmul", "backend": "raw", "kernel": "simt", "format": "bf16",
            "accumulator": "fp32", "output": "fp32", "verdict": "PASS", "lesson": False,
            "max_abs_err": 0.1, "max_rel_err": 0.2, "time_ms": None,
            "contract_gate": {"fraction": 0.1}, "arithmetic_gate": {"fraction": 0.2},
        }
    ]  # fmt: skip

    def stopped(opened, *_, **__):
        assert opened.stopped is None  # no further size is begun
        opened.stopped = Interrupted("judging matmul raw/mma", rows, 2)
        return rows

    monkeypatch.setattr(session, "open_device", lambda *_, **__: EmulatedDevice((8, 9)))
    monkeypatch.setattr(session, "evaluate_cases", stopped)
    kept = tmp_path / "kept.jsonl"
    for op, sizes in (("matmul", "16,32,64"), ("softmax", "4x32,4x64,4x96")):
        done = gpulab("bench", op, "--sizes", sizes, "--save", str(kept), "--kernel", "online"
                      if op == "softmax" else "simt")  # fmt: skip
        assert done.exit_code == 130
        assert done.stdout.splitlines()[-1] == (
            "INTERRUPTED while judging matmul raw/mma: 1 of 1 rows pass, 2 not judged yet, "
            "2 further sizes not begun"
        )
    assert [json.loads(line)["kernel"] for line in kept.read_text().splitlines()] == ["simt"] * 2
