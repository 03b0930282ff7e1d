"""docs/performance.md says what docs/results holds, and nothing else; tries are made of records."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import performance_tables as tables
import record_try
import update_performance

from gpulab.errors import UsageError

AROUND = {"device_name": "NVIDIA H200", "driver": "580.1", "nvrtc": "13.0", "date": "2030-01-02"}


def row(side=4096, kernel="wgmma", fmt="bf16", output="bf16", ratio=1.02, **fields):
    return {
        "schema": 1, "op": "matmul", "kernel": kernel, "backend": "raw", "format": fmt,
        "accumulator": "fp32", "output": output, "contract": "", "lesson": False,
        "dims": {"m": side, "n": side, "k": side}, "verdict": "PASS", "reason": None,
        "max_abs_err": 0.0123, "contract_gate": {"fraction": 0.0217},
        "arithmetic_gate": {"fraction": 0.417}, "time_ms": {"median": 0.1931}, "tflops": 711.7,
        "gb_per_s": 521.0, "vs_library": {"ratio": ratio},
        "timing": {"telemetry_after": {"sm_clock_mhz": 1755, "power_w": 689.0}},
        "roofline": {"fraction": 0.8761, "binds": "wgmma bf16"}, "environment": AROUND,
    } | fields  # fmt: skip


def write(folder, name, *found):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in found))


def test_the_page_is_what_the_results_say():
    assert update_performance.PAGE.read_text() == update_performance.page(), (
        "run scripts/update_performance.py"
    )


def test_a_page_without_records_has_no_number(tmp_path):
    text = update_performance.page(tmp_path)
    body = text[text.index("## What the card does at most") :]
    assert body.count("Not recorded yet") == len(update_performance.SECTIONS) - 1
    assert "None is recorded." in body
    assert "|" not in body


def test_rows_show_error_and_speed_side_by_side(tmp_path):
    refused = row(kernel="wgmma", verdict=None, reason="rows of A lie 4098 bytes apart",
                  dims={"m": 8191, "n": 4095, "k": 2049})  # fmt: skip
    write(
        tmp_path, "matmul_large", row(), refused, row(side=1024, ratio=0.85),
        row(kernel="cublas", backend="library", vs_library={"ratio": 1.0}),
    )  # fmt: skip
    text = update_performance.page(tmp_path)
    assert "NVIDIA H200, driver 580.1, NVRTC 13.0, 2030-01-02" in text
    line = next(
        x for x in text.splitlines() if x.startswith("| 4096 | raw/wgmma") and "0.0123" in x
    )
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "4096", "raw/wgmma bf16, fp32 acc -> bf16", "0.0123", "0.0217", "0.417", "0.1931",
        "711.7", "1.020", "", "87.6% wgmma bf16", "1755", "689", "PASS",
    ]  # fmt: skip
    assert "| raw/wgmma bf16, fp32 acc -> bf16 | 0.85 | 1.02 |" in text
    assert "| library/cublas bf16, fp32 acc -> bf16 |  | 711.7 TF |" in text
    assert "`raw/wgmma` at 8191x4095x2049: rows of A lie 4098 bytes apart" in text
    assert "results/matmul_large.svg" not in text
    (tmp_path / "matmul_large.svg").write_text("<svg/>")
    assert "(results/matmul_large.svg)" in update_performance.page(tmp_path)


def test_a_missed_target_says_by_how_much():
    tf32 = row(fmt="tf32", output="fp32", ratio=0.7)
    tf32["vs_library"]["kernel_ratio"] = 0.91
    text = tables.targets([
        row(), row(side=8192, ratio=0.9), row(side=2048, ratio=0.94), tf32,
        row(fmt="fp16", output="fp16", verdict="FAIL"), row(output="fp32", ratio=0.1),
    ])  # fmt: skip
    said = {tuple(c.strip() for c in x.strip("|").split("|")) for x in text.splitlines()[2:7]}
    name = "raw/wgmma bf16, fp32 acc -> bf16"
    assert said == {
        ("4096", name, "1.00", "1.020", "", "met"),
        ("8192", name, "1.00", "0.900", "", "missed by 10.0%"),
        ("2048", name, "0.95", "0.940", "", "missed by 1.1%"),
        ("4096", "raw/wgmma fp16, fp32 acc -> fp16", "1.00", "", "", "no ratio"),
        ("4096", "raw/wgmma tf32, fp32 acc", "0.90", "0.700", "0.910", "met"),
    }


def test_the_other_files_have_their_tables(tmp_path):
    ceiling = {
        "op": "ceiling", "kernel": "wgmma", "format": "bf16", "accumulator": "fp32",
        "instruction": "wgmma.m64n256k16", "verdict": "PASS", "tflops": 812.5, "gb_per_s": None,
        "flop_per_clock_per_sm": 3901.0, "environment": AROUND,
    }  # fmt: skip
    rung = row(kernel="wgmma-wide", output="fp32", gain=1.224, idea="half the traffic of A",
               resources={"registers": 168, "shared_bytes": 131136})  # fmt: skip
    family = {"family": "uniform", "max_abs_err_stored": 0.0625, "rms": 3.25e-5}
    grown = row(
        fmt="e4m3", contract="fast", dims={"m": 512, "n": 512, "k": 32768}, families=[family]
    )
    called = row(first_ms=1234.5, cached_ms=21.5, launch_us={"median": 4.25},
                 call_us={"median": 31.5})  # fmt: skip
    tile = {"sums": "promoted", "tile": "128x256 stages 4", "start_us": 6.25, "slab_us": 0.6625,
            "verdict": "PASS", "environment": AROUND}  # fmt: skip
    for name, record in (("ceilings", ceiling), ("ladder", rung), ("fp8_growth", grown),
                         ("first_call", called), ("tune", tile)):  # fmt: skip
        write(tmp_path, name, record)
    text = update_performance.page(tmp_path)
    for part in (
        "| wgmma bf16 | `wgmma.m64n256k16` | 812.5 | 3901 |",
        "| 1.22x | 1.020 | 168 | 131136 | PASS | half the traffic of A |",
        "| 32768 | uniform | raw/wgmma e4m3, fp32 acc fast -> bf16 | 0.0625 | 3.25e-05 | PASS |",
        "| 1234 | 21.5 | 4.25 | 31.5 | PASS |",
        "| promoted | 128x256 stages 4 | 6.25 | 662.5 |",
    ):
        assert part in text


def test_a_try_is_made_of_two_runs(tmp_path, capsys):
    library = row(kernel="cublas", backend="library")
    write(tmp_path, "before", row(), library, row(side=64))
    write(tmp_path, "after", row(time_ms={"median": 0.2}), library, row(side=128))
    paths = ["--before", str(tmp_path / "before.jsonl"), "--after", str(tmp_path / "after.jsonl")]
    out = tmp_path / "tries.jsonl"
    given = ["Hilbert order", "--expected", "L2 stays warm", *paths]
    assert record_try.main(given, out) == 0
    (made,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert made["gain"] == pytest.approx(0.1931 / 0.2)
    assert (made["before"]["median_ms"], made["after"]["median_ms"]) == (0.1931, 0.2)
    text = update_performance.page(tmp_path)
    assert "| Hilbert order | raw/wgmma bf16, fp32 acc -> bf16 | 4096 | 0.1931 | 0.2 |" in text
    assert "None is recorded." not in text
    write(tmp_path, "after", row(environment=AROUND | {"driver": "999"}))
    assert record_try.main(given, out) == 2
    assert "driver differs" in capsys.readouterr().err
    assert len(out.read_text().splitlines()) == 1
    write(tmp_path, "after", row(verdict="FAIL"))
    with pytest.raises(UsageError, match="nothing to compare"):
        record_try.compare("i", "e", [row()], [row(verdict="FAIL")])


def test_the_plot_is_left_out_where_matplotlib_is_not(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(update_performance, "RESULTS", tmp_path)
    monkeypatch.setattr(update_performance, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(update_performance, "PLOT", tmp_path / "matmul_large")
    monkeypatch.setattr(update_performance.plot.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["update_performance.py"])
    write(tmp_path, "matmul_large", row())
    assert update_performance.main() == 0
    assert "no plot" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["update_performance.py", "--check"])
    (tmp_path / "page.md").write_text("else")
    assert update_performance.main() == 1
