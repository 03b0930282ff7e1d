"""scripts/sanitize_kernels.py: what counts as clean, from outputs of the tool and of the lab."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import sanitize_kernels

from gpulab.cli import main

ROW = {"backend": "raw", "kernel": "wgmma", "format": "bf16", "lesson": False, "verdict": "PASS"}
HEAD = "========= COMPUTE-SANITIZER\n"
NONE = HEAD + "========= ERROR SUMMARY: 0 errors\n"
READ = (
    HEAD + "========= Invalid __global__ read of size 4 bytes\n"
    "=========     at matmul(int)+0x70 in wgmma.cu:12\n"
    "========= ERROR SUMMARY: 1 error\n"
)


def row_of(monkeypatch, text, records, code=0):
    printed = "".join(json.dumps(r) + "\n" for r in records)

    def run(command, **options):
        assert command[:3] == ["compute-sanitizer", "--tool", "memcheck"]
        return subprocess.CompletedProcess(command, code, printed + text, "")

    monkeypatch.setattr(sanitize_kernels.subprocess, "run", run)
    return sanitize_kernels.sanitized("wgmma", "memcheck", 1)


def test_no_report_and_right_results_are_clean(monkeypatch):
    row = row_of(monkeypatch, NONE, [ROW, ROW | {"lesson": True, "verdict": "FAIL"}])
    assert row["clean"]
    assert (row["reports"], row["wrong"], row["kernels"]) == (0, 0, ["raw/wgmma bf16"])


@pytest.mark.parametrize(
    ("text", "records", "told"),
    [
        (READ, [ROW], "reports"),
        (NONE, [ROW | {"verdict": "FAIL"}], "wrong"),
        (NONE, [ROW | {"lesson": True}], "wrong"),
        (NONE, [ROW | {"verdict": None}], "problem"),
        (NONE, [], "problem"),
        (HEAD, [ROW], "problem"),
        ("", [ROW], "problem"),
    ],
)
def test_a_report_a_wrong_row_or_an_output_cut_short_is_not_clean(monkeypatch, text, records, told):
    row = row_of(monkeypatch, text, records)
    assert not row["clean"]
    assert row[told]


@pytest.mark.parametrize("name", sanitize_kernels.RUNS)
def test_every_command_is_one_of_the_lab(name):
    """Asked for a format there is none of, each ends with that complaint: its options exist."""
    words = shlex.split(sanitize_kernels.RUNS[name])
    done = CliRunner().invoke(
        main, [*words, "--no-time", "--format", "fp7", "--device", "emulated"]
    )
    assert done.exit_code == 2
    assert "fp7" in done.output
