"""What README.md computes is current, and its commands exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from gpulab.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def script():
    spec = importlib.util.spec_from_file_location(
        "update_docs", ROOT / "scripts" / "update_docs.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_table_is_generated_from_the_committed_records():
    update = script()
    assert update.between(README, "results", update.results()) == README


def test_a_stale_table_is_seen():
    update = script()
    assert update.between(README, "results", update.results() + "x") != README


def record(kernel, cols, **more):
    """A row of ``gpulab bench softmax --save``."""
    return {
        "op": "softmax", "kernel": kernel, "backend": "raw", "format": "bf16", "contract": None,
        "accumulator": "fp32", "output": "bf16", "speed": "gb_per_s", "verdict": "PASS",
        "dims": {"rows": 128, "cols": cols}, "max_abs_err": cols * 1e-6, "gb_per_s": 4000.0,
        "bandwidth": {"fraction": 0.951}, "time_ms": {"median": 1.0},
        "environment": {"device_name": "H", "driver": "1", "nvrtc": "2", "date": "3"},
    } | more  # fmt: skip


def test_speeds_of_operations_are_a_table_of_shapes():
    update = script()
    rows = [record("online", 4096), record("online", 8192), record("two_pass", 8192)]
    rows.append(record("simt", 64, op="attention", speed="tflops", tflops=361.0,
                       roofline={"compute": {"fraction": 0.5}}, verdict="FAIL"))  # fmt: skip
    lines = update.speed_tables(rows, Path("rows.jsonl")).splitlines()
    assert lines[0] == "H, driver 1, NVRTC 2, 3 (`docs/results/rows.jsonl`)."
    assert "softmax, rows 128: GB/s and share of the bandwidth" in lines
    assert "| case | kernel | max abs err | cols 4096 | cols 8192 | verdict |" in lines
    name = "bf16, fp32 acc -> bf16"
    assert f"| {name} | raw/online | 0.00819 | 4000 (0.95) | 4000 (0.95) | PASS |" in lines
    assert f"| {name} | raw/two_pass | 0.00819 | - | 4000 (0.95) | PASS |" in lines
    assert f"| {name} | raw/simt | 6.4e-05 | 361 (0.50) | FAIL |" in lines


def test_commands_of_the_readme_exist():
    used = set(re.findall(r"^gpulab (\w+)", README, re.MULTILINE))
    assert used
    assert used <= set(COMMANDS)


def test_run_output_is_there():
    block = README.split("<!-- run:begin")[1].split("<!-- run:end")[0]
    assert "PASS: " in block


@pytest.mark.whole
def test_run_output_is_what_run_prints_now():
    update = script()
    assert update.between(README, "run", update.run_output()) == README


@pytest.mark.parametrize("name", re.findall(r"`(docs/[\w./]+)`", README))
def test_named_documents_exist(name):
    assert (ROOT / name).exists()


def test_folders_of_the_map_exist():
    for name in re.findall(r"`([a-z_]+/(?:[a-z_]+/)?)`", README.split("## Map")[1]):
        places = (ROOT, ROOT / "raw_kernels", ROOT / "docs", ROOT / "tests")
        assert any((place / name).is_dir() for place in places), name
