"""Shares of measured ceilings: which ceiling a row is held against, and which of two binds."""

import io
import json

import pytest
from rich.console import Console

from gpulab import registry
from gpulab.bench import ceilings, ladder, plot, roofline
from gpulab.cli import main, session
from gpulab.errors import UsageError
from gpulab.lab import evaluate
from gpulab.runtime.emulated import EmulatedDevice


def ceiling(kernel, fmt, rate, accumulator="fp32", verdict="PASS"):
    unit = "gb_per_s" if fmt == "bytes" else "tflops"
    return {
        "op": "ceiling", "kernel": kernel, "format": fmt, "accumulator": accumulator,
        "verdict": verdict, "tflops": None, "gb_per_s": None, unit: rate,
    }  # fmt: skip


MEASURED = [
    ceiling("mma.sync", "tf32", 300.0),
    ceiling("mma.sync", "bf16", 600.0),
    ceiling("mma.sync", "fp16", 640.0),
    ceiling("mma.sync", "fp16", 650.0, accumulator="fp16"),
    ceiling("wgmma", "bf16", 800.0),
    ceiling("wgmma", "e4m3", 1600.0),
    ceiling("fma", "fp32", 60.0),
    ceiling("copy", "bytes", 4000.0),
]


def row(fmt="bf16", instruction="wgmma.m64n256k16.f32.bf16.bf16", **fields):
    return {
        "format": fmt, "accumulator": "fp32", "output": "fp32", "instruction": instruction,
        "backend": "raw", "kernel": "wgmma", "time_ms": {"median": 1.0}, "tflops": 400.0,
        "gb_per_s": 1000.0,
    } | fields  # fmt: skip


def only(record, measured=MEASURED):
    (found,) = roofline.with_fractions([record], measured)
    return found["roofline"]


def test_compute_binds_where_its_share_is_larger():
    found = only(row())
    assert found["fraction"] == pytest.approx(400 / 800)
    assert found["binds"] == "wgmma bf16"
    assert found["memory"]["fraction"] == pytest.approx(1000 / 4000)


def test_memory_binds_where_its_share_is_larger():
    found = only(row(gb_per_s=3600.0, tflops=100.0))
    assert found["fraction"] == pytest.approx(0.9)
    assert (found["binds"], found["unit"]) == ("copy bytes", "gb_per_s")
    assert found["compute"]["fraction"] == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("fields", "binds", "rate"),
    [
        ({"instruction": "mma.sync.m16n8k16.f32.bf16.bf16.f32"}, "mma.sync bf16", 600.0),
        ({"backend": "library"}, "wgmma bf16", 800.0),
        ({"instruction": None, "fmt": "fp32", "backend": "library"}, "fma fp32", 60.0),
        ({"instruction": None, "fmt": "fp16"}, "fma fp32", 60.0),
        (
            {
                "instruction": "mma.sync.m16n8k8.f32.tf32.tf32.f32",
                "fmt": "fp32",
                "contract": "3xtf32",
            },
            "mma.sync tf32 / 3",
            100.0,
        ),
        (
            {
                "instruction": "mma.sync.m16n8k16.f16.f16.f16.f16",
                "fmt": "fp16",
                "accumulator": "fp16",
            },
            "mma.sync fp16, fp16 acc",
            650.0,
        ),
    ],
)
def test_the_ceiling_is_that_of_the_row_s_own_instruction(fields, binds, rate):
    found = only(row(**fields))
    assert found["compute"]["binds"] == binds
    assert found["compute"]["ceiling"] == rate
    assert found["compute"]["fraction"] == pytest.approx(400.0 / rate)


@pytest.mark.parametrize(
    "record",
    [
        row(time_ms=None),
        row(fmt="tf32", instruction="wgmma.m64n256k8.f32.tf32.tf32"),
        row(fmt="int8", accumulator="int32", instruction=None),
        row(instruction="tcgen05.mma.m128n128k16.f32.bf16.bf16", backend="library"),
    ],
)
def test_no_time_or_no_ceiling_is_no_fraction(record):
    assert only(record) is None


def test_a_ceiling_that_failed_counts_for_nothing():
    failed = [c | {"verdict": "FAIL"} if c["kernel"] == "wgmma" else c for c in MEASURED]
    assert only(row(), failed) is None
    assert only(row(), [c for c in MEASURED if c["kernel"] != "copy"]) is None


def test_rows_with_steps_have_their_kernel_s_own_share_too():
    found = only(row(kernel_alone={"tflops": 600.0}))
    assert found["kernel_fraction_of_compute"] == pytest.approx(0.75)


def test_each_ceiling_is_measured_once_and_only_if_a_timed_row_needs_it(monkeypatch):
    asked = []

    def measure(device, clock, wanted):
        found = [
            c for c in MEASURED if wanted(ceilings.Ceiling(c["kernel"], c["format"], *[""] * 5))
        ]
        asked.append([f"{c['kernel']} {c['format']}" for c in found])
        return found

    monkeypatch.setattr(ceilings, "measure", measure)
    monkeypatch.setattr(roofline, "clock_of", lambda device: None)
    limits = roofline.Roofline(None)
    assert limits.over([row(time_ms=None)])[0]["roofline"] is None
    assert asked == []
    assert limits.over([row()])[0]["roofline"]["fraction"] == 0.5
    assert asked == [["mma.sync bf16", "wgmma bf16", "fma fp32", "copy bytes"]]
    limits.over([row(), row(fmt="e4m3", instruction="wgmma.m64n256k32.f32.e4m3.e4m3")])
    assert asked[1] == ["wgmma e4m3"]


def test_the_table_shows_both_shares():
    console = Console(file=io.StringIO(), width=200)
    rows = roofline.with_fractions([row(), row(time_ms=None)], MEASURED)
    console.print(roofline.table(rows))
    text = console.file.getvalue()
    for part in ("50.0%", "25.0%", "wgmma bf16: 800 TFLOP/s"):
        assert part in text


def test_the_ladder_evaluates_its_rungs_and_nothing_else(monkeypatch):
    seen = []
    monkeypatch.setattr(evaluate, "evaluate_all", lambda cases, *_, **__: seen.extend(cases) or [])
    opened = session.Session(EmulatedDevice((8, 9)), True, True, False)
    dims = {"m": 16, "n": 16, "k": 16}
    session.evaluate_cases(opened, "matmul", dims, seed=0, chosen=ladder.rungs())
    assert [c.label for c in seen] == [c.label for c in ladder.rungs()]
    seen.clear()
    session.evaluate_cases(opened, "matmul", dims, seed=0, format_="tf32")
    assert [c.label for c in seen] == [c.label for c in registry.cases("matmul", format="tf32")]
    with pytest.raises(UsageError):
        session.evaluate_cases(opened, "matmul", dims, seed=0, chosen=[])


@pytest.fixture
def pretended(monkeypatch):
    """Rows as a card would have given them."""
    rows = [
        row(
            verdict="PASS", reason=None, schema=1, op="matmul", contract="", lesson=False,
            max_abs_err=0.25, max_rel_err=0.5, dims={"m": 16, "n": 16, "k": 16}, note="",
            contract_gate={"fraction": 0.1, "passed": True},
            arithmetic_gate={"fraction": 0.2, "passed": True}, device_name="a card",
            vs_library={"baseline": "cublas", "ratio": 0.75},
        )
    ]  # fmt: skip
    monkeypatch.setattr(session, "open_device", lambda *_, **__: EmulatedDevice((8, 9)))
    monkeypatch.setattr(session, "evaluate_cases", lambda *_, **__: rows)
    monkeypatch.setattr(ceilings, "measure", lambda *_, **__: MEASURED)
    monkeypatch.setattr(roofline, "clock_of", lambda device: None)
    return rows


def bench_matmul(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "matmul", "--sizes", "16", *map(str, arguments)])
    return ended.value.code, capsys.readouterr()


def test_bench_shows_saves_and_draws(pretended, capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib (extra plot) is not installed")
    saved, picture = tmp_path / "rows.jsonl", tmp_path / "rows"
    code, said = bench_matmul(capsys, "--save", saved, "--plot", picture)
    assert code == 0
    assert "50.0%" in said.out
    assert "rows.png" in said.out
    assert {p.name for p in tmp_path.iterdir()} == {"rows.jsonl", "rows.png", "rows.svg"}
    record = json.loads(saved.read_text())
    assert record["roofline"]["binds"] == "wgmma bf16"
    assert record["environment"]["gpulab"]
    code, said = bench_matmul(capsys, "--json")
    assert json.loads(said.out)["roofline"]["fraction"] == pytest.approx(0.5)


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_runs(
    pretended, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(session, "evaluate_cases", lambda *_, **__: pytest.fail("it ran"))
    code, said = bench_matmul(capsys, "--plot", tmp_path / "no" / "plot")
    assert code == 2
    assert "does not exist" in said.err
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    code, said = bench_matmul(capsys, "--plot", tmp_path / "plot")
    assert code == 2
    assert "pip install 'gpulab[plot]'" in said.err
