"""scripts/try_rows.py on an emulated device that says it is a card: every timing is 1 ms."""

import json
import sys
from pathlib import Path

import pytest
from changed_sources import changed
from test_bench_ops import Clock, Pretended

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import try_rows

from gpulab.errors import UsageError
from gpulab.kernels.row_packs import packs_of
from gpulab.kernels.row_shape import Behind, Kept, Streamed


@pytest.fixture
def tried(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(try_rows, "open_device", lambda kind: Pretended((9, 0)))
    monkeypatch.setattr("gpulab.runtime.cuda_clock.clock_of", lambda device: Clock())
    monkeypatch.setattr(try_rows, "OUT", tmp_path / "shapes.jsonl")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["try_rows.py", *arguments, "--runs", "1", "--save"])
        code = try_rows.main()
        lines = try_rows.OUT.read_text().splitlines() if try_rows.OUT.exists() else []
        return code, list(map(json.loads, lines)), capsys.readouterr()

    return run


def test_a_shape_is_judged_timed_and_recorded_beside_the_kernels_own(tried):
    code, lines, told = tried(
        "softmax", "two_pass", "--cols", "256", "--rows", "4",
        "--shape", "Kept(32, 1, resident=2048)", "--changes", "of a test",
    )  # fmt: skip
    assert code == 0, told.err
    own, mine = lines
    assert own["shape"] == {
        "holds": "kept", "threads": 128, "rows": 16, "packs": 4, "shared": 0, "blocks": 8,
        "cluster": 1,
    }  # fmt: skip
    assert mine["shape"] == own["shape"] | {"rows": 4, "packs": 1, "blocks": 16}
    assert (mine["op"], mine["changes"]) == ("softmax two-pass", ["of a test"])
    assert mine["array_bytes"] == 4 * 256 * 2
    assert mine["fraction"] == pytest.approx(mine["gb_per_s"] / mine["yardstick_gb_per_s"])
    assert mine["environment"]["capability"] == "9.0"
    assert told.out.splitlines()[0].split(" ", 1)[1].startswith("the own Kept(")


def test_a_shape_that_fails_its_gates_is_told_and_not_recorded(tried, monkeypatch, tmp_path):
    # A mistake of blocks of fewer threads than the kernel's own shape has.
    old = "probability.of(value[j])"
    mistake = old + " * (row.kThreads < 128 ? 2.0f : 1.0f)"
    changed("softmax/row.cu", old, mistake, tmp_path, monkeypatch)
    code, lines, told = tried(
        "softmax", "online", "--cols", "4096", "--rows", "2", "--shape", "Kept(64, 8)"
    )
    assert code == 1
    assert len(lines) == 1, "the kernel's own"
    assert "Kept(group=64, regs=8" in told.err
    assert ": FAIL: " in told.err


@pytest.mark.parametrize(
    "arguments", [("softmax", "no_max"), ("softmax", "online", "--shape", "Kept(a)")]
)
def test_what_is_no_kernel_or_shape_is_named(tried, arguments):
    code, lines, told = tried(*arguments, "--cols", "256", "--rows", "4")
    assert (code, lines) == (2, [])
    assert arguments[-1] in told.err


def test_a_sweep_has_shapes_that_hold_the_row_each_once():
    for cols in (4096, 32768, 262144):
        row = packs_of(cols, "bf16", ("bf16",))
        found = try_rows.sweep(row, (9, 0))
        here = [shape.on((9, 0), row) for shape in found]
        assert len(here) == len(set(here)) > 20
        assert all(row.count <= shape.packs for shape in here)
        assert all(shape.threads <= 1024 for shape in here)
        assert {type(shape) for shape in found} == {Kept, Streamed, Behind}


def test_a_shape_is_read_as_the_tables_write_it():
    assert try_rows.parse("Behind(512, 8, blocks=1, cluster=8)") == Behind(512, 8, 1, 8)
    with pytest.raises(UsageError, match="none of Kept, Streamed, Behind, Ahead"):
        try_rows.parse("print(1)")
