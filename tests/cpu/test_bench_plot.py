"""Plots of records: what is drawn, the same file for the same records, and plain refusals."""

import json
import re

import pytest

from gpulab.bench import plot, records
from gpulab.cli import main
from gpulab.errors import UsageError


def record(kernel="wgmma", size=1024, ratio=0.9, **fields):
    return {
        "schema": 1, "op": "matmul", "kernel": kernel, "backend": "raw", "format": "bf16",
        "accumulator": "fp32", "output": "fp32", "contract": "", "verdict": "PASS",
        "device_name": "NVIDIA H200", "dims": {"m": size, "n": size, "k": size},
        "max_abs_err": 1e-3 * size, "vs_library": {"ratio": ratio},
        "environment": {"device_name": "NVIDIA H200", "driver": "580"},
    } | fields  # fmt: skip


RECORDS = [
    record(),
    record(size=4096, ratio=1.01),
    record("mma", ratio=0.6),
    record("mma", size=4096, ratio=0.62),
    record("mma", size=4096, ratio=0.65),
    record("mma", dims={"m": 8192, "n": 64, "k": 1024}, ratio=0.5),
    record("cublas", backend="library", ratio=1.0),
    record("broken", verdict="FAIL"),
    record("untimed", vs_library=None),
    record("refused", verdict=None, max_abs_err=None),
]


def test_lines_are_rows_that_pass_beside_their_library():
    found = plot.lines(RECORDS)
    assert list(found) == ["wgmma bf16, fp32 acc", "mma bf16, fp32 acc"]
    ratios = {plot.size_name(d): p.ratio for d, p in found["mma bf16, fp32 acc"].items()}
    assert ratios == {"1024": 0.6, "4096": 0.65, "8192x64x1024": 0.5}
    assert [plot.size_name(d) for d in plot.sizes(found)] == ["8192x64x1024", "1024", "4096"]


@pytest.mark.parametrize("rows", [[], [record(verdict="FAIL")], [record(backend="library")]])
def test_nothing_to_plot_is_said(rows, tmp_path):
    with pytest.raises(UsageError, match="nothing to plot"):
        plot.lines(rows)


@pytest.mark.parametrize("given", ["plot", "plot.png", "plot.svg"])
def test_two_files_of_one_name(tmp_path, given):
    assert plot.files(tmp_path / given) == (tmp_path / "plot.png", tmp_path / "plot.svg")
    assert plot.files(tmp_path / "v1.5")[1] == tmp_path / "v1.5.svg"


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "plot", *map(str, arguments)])
    return ended.value.code, capsys.readouterr()


def test_a_missing_matplotlib_is_one_line_with_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    saved = tmp_path / "records.jsonl"
    saved.write_text(json.dumps(record()) + "\n")
    code, said = run(capsys, saved, "--out", tmp_path / "plot")
    assert code == 2
    assert "pip install 'gpulab[plot]'" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", ":1: no JSON"), ("\n[1]\n", ":2: not a JSON object"), (None, "No such file")],
)
def test_a_file_that_holds_no_records_is_named(capsys, tmp_path, text, message):
    saved = tmp_path / "records.jsonl"
    if text is not None:
        saved.write_text(text)
    code, said = run(capsys, saved, "--out", tmp_path / "plot")
    assert code == 2
    assert message in said.err


@pytest.mark.parametrize("refused", [False, True])
def test_rows_that_did_not_run_are_kept_where_that_is_asked(tmp_path, refused):
    path = tmp_path / "records.jsonl"
    rows = [{"kernel": "a", "verdict": "PASS"}, {"kernel": "b", "verdict": None}]
    records.append(path, rows, {}, refused=refused)
    assert [r["kernel"] for r in records.read(path)] == (["a", "b"] if refused else ["a"])


def test_saved_records_come_back_and_refused_rows_are_left_out(tmp_path):
    path = tmp_path / "records.jsonl"
    records.append(path, RECORDS, {"date": "today"})
    records.append(path, [record(size=7)], {"date": "later"})
    back = records.read(path)
    assert len(back) == len(RECORDS)
    assert back[-1] == record(size=7) | {"environment": {"date": "later"}}


def test_the_same_records_give_the_same_files(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib (extra plot) is not installed")
    saved = tmp_path / "records.jsonl"
    saved.write_text("".join(json.dumps(r) + "\n" for r in RECORDS))
    files = []
    for name in ("one", "two"):
        code, said = run(capsys, saved, "--out", tmp_path / name)
        assert code == 0
        assert said.out.split() == [str(tmp_path / f"{name}{s}") for s in (".png", ".svg")]
        files.append([(tmp_path / f"{name}{s}").read_bytes() for s in (".png", ".svg")])
    assert files[0] == files[1]
    svg = files[0][1].decode()
    assert "<dc:date>" not in svg
    shown = set(re.findall(r">([^<>]+)</text>", svg))
    assert {"1024", "4096", "8192x64x1024", "wgmma bf16, fp32 acc", "NVIDIA H200, 580"} <= shown
    assert not any("broken" in text or "cublas" in text for text in shown)
    for name, why in (
        (tmp_path / "no" / "plot", "does not exist"),
        ("", ". is a folder"),
        (tmp_path, "is a folder"),
    ):
        code, said = run(capsys, saved, "--out", name)
        assert code == 2
        assert why in said.err
