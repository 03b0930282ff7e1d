"""docs/performance.md says what docs/results holds, and nothing else; tries are made of records."""

import json
import sys
from pathlib import Path

import pytest
from performance_records import AROUND, attended, limit, row, share, table_of, write

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import performance_attention as attention
import performance_rows as row_tables
import performance_tables as tables
import record_try
import update_performance

from gpulab.errors import UsageError


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


def test_a_target_of_several_kernels_asks_the_fastest():
    made = [
        row(kernel=kernel, fmt="fp32", output="fp32", side=side, ratio=value)
        for kernel, side, value in (
            ("blocked_tma", 4096, 0.99), ("blocked", 4096, 0.93), ("simt", 4096, 1.1),
            ("blocked_tma", 8192, 0.7), ("blocked", 8192, 0.9),
        )
    ]  # fmt: skip
    said = tables.targets(made).splitlines()
    lines = [x for x in said if x.startswith("|") and "raw/" in x]
    assert [x.split(" | ")[1].split()[0] for x in lines] == ["raw/blocked_tma", "raw/blocked"]
    assert "met" in lines[0]
    assert "missed" in lines[1]
    why = [x.split()[1] for x in said if x.startswith("- ")]
    assert why == ["raw/blocked_tma", "raw/blocked"], "of the size that misses, both kernels"
    assert all(" at 8192: median " in x for x in said if x.startswith("- "))


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


def test_row_operations_are_held_to_their_targets():
    small = share(0.5, dims={"rows": 8, "cols": 4096})
    text = row_tables.row_operations([
        share(0.93), small, share(0.874, 8192), share(0.95, 32768), share(0.99, 1000),
        share(0.97, 131072, verdict="FAIL"), share(0.81, kernel="online", backend="numba"),
        share(0.78, 8192, backend="numba"), share(0.3, format="fp16", output="fp16"),
        share(0.99, kernel="wrong", lesson=True), share(0.99, kernel="none", verdict=None),
    ])  # fmt: skip
    name = "raw/online bf16, fp32 acc -> bf16"
    by_row = {cells[1]: cells for cells in table_of(text, "softmax")}
    assert by_row[name] == [
        "softmax", name, "0.92", "0.990", "0.930", "**0.874**", "0.950", "FAIL", "",
        "missed by 5.0% at 8192; FAIL at 131072; not recorded at 262144",
    ]  # fmt: skip
    assert by_row["numba/online bf16, fp32 acc -> bf16"][2:] == [
        "0.80", "", "0.810", "**0.780**", "", "", "",
        "missed by 2.5% at 8192; not recorded at 32768, 131072, 262144",
    ]  # fmt: skip
    fp16 = by_row["raw/online fp16, fp32 acc -> fp16"]
    assert (fp16[2], fp16[4], fp16[-1]) == ("", "0.300", "")
    assert not any("wrong" in n or "none" in n for n in by_row)
    (absent,) = (c for c in table_of(text, "layernorm") if c[1].startswith("raw/welford"))
    assert absent[-1] == "not recorded at 4096, 8192, 32768, 131072, 262144"
    met = row_tables.row_operations([share(0.92, cols) for cols in row_tables.ROW_COLUMNS])
    assert [c[-1] for c in table_of(met, "softmax") if c[1] == name] == ["met"]
    assert "5 of 5 recorded shares are 0.92 or more (0.92)" in met
    assert "The others" not in met


def test_larger_arrays_have_columns_of_their_own_and_the_same_target():
    large = {"rows": 1024, "cols": 262144}
    text = row_tables.row_operations([
        *(share(0.93, cols) for cols in row_tables.ROW_COLUMNS), share(0.91, dims=large),
        share(0.95, op="logsoftmax", dims=large),
    ])  # fmt: skip
    (head,) = (line for line in text.splitlines() if line.startswith("| operation"))
    assert [c.strip() for c in head.split("|")][-4:-1] == ["262144", "262144 (512 MiB)", "result"]
    by_op = {op: next(c for c in table_of(text, op) if c[1].startswith("raw/online"))
             for op in ("softmax", "logsoftmax")}  # fmt: skip
    assert by_op["softmax"][-3:] == ["0.930", "**0.910**", "missed by 1.1% at 262144 (512 MiB)"]
    assert by_op["logsoftmax"][-3:-1] == ["", "0.950"]
    assert "262144" in by_op["logsoftmax"][-1], "the smaller array is not recorded"
    assert "logsoftmax raw/online 0.950 at 262144 (512 MiB)" in text


def test_what_limits_a_row_follows_from_the_others():
    text = row_tables.row_operations([
        share(0.88), share(0.95, op="layernorm", kernel="two_pass"), share(0.85, 8192),
        share(0.84, 8192, op="layernorm", kernel="two_pass"),
        share(0.99, 8192, op="rmsnorm", bandwidth={"of": "copy", "moved_bytes": 1, "fraction": 1}),
    ])  # fmt: skip
    assert "2 of 5 recorded shares are 0.92 or more (0.95 to 1)" in text
    assert (
        "- softmax raw/online: 0.880 at 4096, 0.850 at 8192. The memory allows more, as rows of "
        "as many bytes show: layernorm raw/two_pass 0.950 at 4096. What is missing are its own "
        "instructions and waits, with 24 warps an SM (limited by registers; 77 registers a "
        "thread, 8 bytes spilled). The fastest of as many bytes: this row 0.850 at 8192."
    ) in text
    assert (
        "- layernorm raw/two_pass: 0.840 at 8192. The fastest of as many bytes: softmax "
        "raw/online 0.850 at 8192, with 24 warps an SM"
    ) in text


def test_attention_is_held_to_its_targets():
    text = attention.attention([
        attended(300.0), attended(299.0, 16384), attended(271.0, causal=1),
        attended(256.5, 16384, causal=1), attended(500.0, fmt="fp16", verdict="FAIL"),
        attended(20.0, kernel="simt"), attended(150.0, head_dim=64),
    ])  # fmt: skip
    name = "raw/mma bf16, fp32 acc -> bf16"
    found = [(c[1], c[2], *c[7:9], c[-1]) for c in table_of(text, name)]
    assert found == [
        ("full", "4096", "300", "300", "met"),
        ("full", "16384", "299", "300", "missed by 0.3%"),
        ("causal", "4096", "271", "270", "met"),
        ("causal", "16384", "256.5", "270", "missed by 5.0%"),
        ("full", "4096", "150", "", ""),
    ]
    assert table_of(text, name)[0][3:7] == ["4 x 16", "128", "0.0123", "0.417"]
    assert table_of(text, name)[0][9] == "61.2% mma.sync bf16"
    (failed,) = table_of(text, "raw/mma fp16, fp32 acc -> fp16")
    assert failed[-2:] == ["FAIL", "no rate"]
    (other,) = table_of(text, "raw/simt bf16, fp32 acc -> bf16")
    assert (other[8], other[-1]) == ("", "")
    assert text.endswith(
        "Targets that are not recorded: fp16 causal at 4096, fp16 full at 16384, fp16 causal at "
        "16384.\n"
    )


def test_what_limits_attention_follows_from_what_is_left_out():
    ceiling = {"kind": "ceiling", "tflops": 500.0, "verdict": "PASS"}
    found = [
        ceiling, limit("shipped", 200.0), limit("shipped", 250.0, causal=1),
        limit("ablation", 250.0, "copies", verdict=None),
        limit("ablation", 312.5, "copies", 1, verdict=None),
        limit("ablation", 220.0, "softmax", verdict=None),
        limit("ablation", 275.0, "softmax", 1, verdict=None),
        limit("ablation", 400.0, attention.PRODUCTS, verdict=None),
        limit("ablation", 500.0, attention.PRODUCTS, 1, verdict=None),
        limit("tile", 210.0, keys=32), limit("tile", 225.0, causal=1, keys=32),
    ]  # fmt: skip
    text = attention.limits(found)
    assert table_of(text, "without copies") == [
        ["without copies", "250 (+25.0%)", "312.5 (+25.0%)", "255", "0", "104448", "8",
         "not judged"]
    ]  # fmt: skip
    (products,) = table_of(text, "products only")
    assert products[1:3] == ["400 (+100.0%)", "500 (+100.0%)"]
    assert "shipped: 4 warps of 32 queries, 64 keys, 2 stages, 16 heads together, 2 blocks" in text
    assert (
        "runs at 500 TFLOP/s here; the shipped kernel comes to 40% to 50% of that, its products "
        "with the reads of their operands from shared memory, and nothing else, to 80% to 100%."
    ) in text
    # 1 - 200 / 250; 1 - 200 / 220; 1 - 200 / 400
    assert "saves of its time: the copies 20.0%, the softmax 9.1%." in text
    assert "All of it left out saves 50.0%" in text
    assert "The largest cost, of the copies, is 40% of that." in text
    assert "An SM holds 8 warps (limited by registers)" in text
    assert "32 keys, 2 stages, 16 heads together, 2 blocks: -10.0% to +5.0%. None is fas" in text
    faster = attention.limits([*found[:-1], limit("tile", 260.0, causal=1, keys=32)])
    assert "Faster everywhere: 4 warps of 32 queries, 32 keys" in faster
    wrong = attention.limits([*found[:-1], limit("tile", 260.0, causal=1, keys=32, verdict="FAIL")])
    assert "other tiles" not in wrong
    assert [c[2] for c in table_of(wrong, "4 warps of 32 queries, 32 keys, 2 stages, 16 heads "
                                          "together, 2 blocks")] == ["FAIL"]  # fmt: skip
    assert "not among the records" in attention.limits([ceiling, found[3]])


def test_sections_of_files_that_are_not_there_say_so(tmp_path):
    write(tmp_path, "attention_limits", limit("shipped", 200.0))
    text = update_performance.page(tmp_path)
    assert "## Attention\n\nNot recorded yet: `gpulab bench attention" in text
    assert "## Row operations\n\nNot recorded yet: `gpulab bench rmsnorm" in text
    after = text[text.index("## Attention: what limits it") :]
    assert after.index("| shipped: 4 warps") < after.index("## First and later calls")


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


def test_the_ways_of_the_traffic_stand_below_the_rows():
    def beside(**speeds):
        best = max(speeds, key=speeds.__getitem__)
        return {"of": "copy", "way": best, "moved_bytes": 128 << 20, "fraction": 0.95,
                "ways_gb_per_s": speeds}  # fmt: skip

    text = row_tables.row_operations([
        share(0.95, 4096, bandwidth=beside(one=3900.0, two=3800.0)),
        share(0.95, 8192, bandwidth=beside(one=3700.0, two=3800.0)),
        share(0.95, 32768, bandwidth=beside(one=3950.0, two=3810.0)),
    ])  # fmt: skip
    assert "| traffic | MB | one | two |" in text
    assert "| copy | 130 | **3900** | 3800 |" in text, "medians, the fastest in bold"
    assert "traffic |" not in row_tables.row_operations([share(0.95)])
