"""What tables of the command line must not lose: brackets, and commands in one piece."""

import io
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from gpulab.cli import main
from gpulab.cli.session import print_counters
from gpulab.lab import render, scaling
from gpulab.runtime import doctor
from gpulab.runtime.doctor import Finding


def lines(*arguments):
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "60"})
    assert done.exit_code in (0, 7), done.output
    return [line.rstrip() for line in done.stdout.splitlines()]


def test_doctor_prints_a_command_whole_however_narrow_the_terminal(monkeypatch):
    command = "pip install -e '/a/rather/long/path/of/a/checkout/of/the/lab[cuda13]'"
    detail = "not [bold]there: " + "x" * 100
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("CuPy", "missing", detail, command)])
    first, second = lines("doctor")
    assert first.endswith(detail)
    assert second.strip() == f"fix: {command}"


def test_list_says_why_a_capability_refuses_a_row():
    shown = " ".join(lines("list", "--op", "matmul", "--kernel", "mma", "--capability", "7.5"))
    assert "[needs sm_80]" in shown
    assert "[needs sm_89]" in shown
    assert "[needs" not in " ".join(lines("list", "--op", "matmul", "--kernel", "mma"))


@pytest.mark.parametrize("formula", ["E[x^2] - E[x]^2"])
def test_list_shows_formulas_as_they_are(formula):
    shown = lines("list", "--op", "layernorm", "--kernel", "naive_variance")
    assert formula in " ".join(" ".join(shown).split())


def test_the_table_of_counters_is_as_wide_as_it_must_be(capsys, monkeypatch):
    """Long names of cases and limits, and a terminal narrower than any table."""
    monkeypatch.setenv("COLUMNS", "60")
    used = {"registers": 135, "spill_bytes": 0, "shared_bytes": 213120, "occupancy": 0.125}
    row = {
        "backend": "raw", "kernel": "wgmma-persistent", "format": "e4m3", "accumulator": "fp32",
        "output": "bf16", "contract": "promoted",
        "counters": {"async_copy_sectors": 7, "tensor_copy_sectors": 1200},
        "resources": used | {"occupancy_limited_by": ["warps", "registers", "shared memory"]},
    }  # fmt: skip
    shown = SimpleNamespace(counters=True, console=Console(), say=lambda: None)
    print_counters(shown, [row])
    told = capsys.readouterr().out.splitlines()
    (line,) = [line for line in told if "wgmma-persistent" in line]
    assert line.startswith("e4m3, fp32 acc promoted -> bf16")
    assert line.rstrip().endswith("213120        12%  warps, registers, shared memory")
    assert " 1207 " in line  # copies of both kinds


def test_the_ladder_keeps_every_cell_beside_a_long_reason():
    """A row that does not run says why in as many lines as it takes; numbers stay whole."""
    row = {
        "backend": "raw", "kernel": "minus_1e9_half", "format": "fp16", "accumulator": "fp32",
        "output": "fp16", "contract": "", "dims": {}, "verdict": None, "lesson": True,
        "reason": "every query sees a key at these dims (try --mask, or --causal with more keys)",
    }  # fmt: skip
    good = row | {
        "kernel": "a_kernel_of_a_long_name", "lesson": False, "verdict": "PASS", "reason": None,
        "max_abs_err": 0.00159, "max_rel_err": 0.969, "contract_gate": {"fraction": 0.123456},
        "arithmetic_gate": {"fraction": 0.347},
        "counters": {"instructions": 23704, "load_sectors": 544},
    }  # fmt: skip
    told = io.StringIO()
    render.print_whole(Console(file=told, width=60), render.ladder([good, row]))
    lines = told.getvalue().splitlines()
    (line,) = [line for line in lines if "a_kernel_of_a_long_name" in line]
    assert {"0.00159", "0.969", "0.123", "0.347", "PASS"} <= set(line.split())
    beside = lines[0].index("verdict")
    assert " ".join(line[beside:].strip() for line in lines[2:]) == row["reason"]
    assert max(map(len, lines)) < beside + len(row["reason"])


LESSON = {
    "op": "softmax", "backend": "raw", "kernel": "no_max", "format": "fp16", "accumulator": "fp32",
    "output": "fp16", "contract": "", "verdict": "FAIL", "lesson": True, "note": "it overflows",
    "inputs": {"family": "uniform"}, "max_abs_err": 8.9e-05, "max_rel_err": 0.001,
    "contract_gate": {"fraction": None, "passed": False, "text": "rtol = 1; atol = 2"},
    "arithmetic_gate": {"fraction": 3.25, "passed": False},
    "caught_on": ["high", "low", "offset", "outlier", "exact"],
}  # fmt: skip


def test_the_ladder_says_on_which_inputs_its_numbers_are():
    """An error of one input beside shares of bounds that are the largest of all inputs."""
    told = io.StringIO()
    title = "attention " + "seq_q=5 " * 12
    render.print_ladder(Console(file=told, width=150), [LESSON], title)
    first, _, row, *notes = told.getvalue().splitlines()
    assert first.rstrip() == title.rstrip()
    assert "not finite 3.25" in " ".join(row.split())
    text = " ".join(" ".join(notes).split())
    assert "on uniform inputs, as is atol" in text
    assert "the largest over all input families and probes" in text
    assert "the arithmetic gate fails it on high, low, offset and 2 more" in text


def test_a_row_that_did_not_build_has_no_share_of_a_bound():
    error = {"error": {"kind": "compile"}, "inputs": None}
    assert render.share(LESSON | error, "contract_gate") == "-"
    assert render.share(LESSON, "contract_gate") == "not finite"
    assert render.share(LESSON, "arithmetic_gate") == "3.25"


def test_what_scales_are_worth_is_said_with_what_they_are():
    text = " ".join(scaling.notes())
    for said in (
        "every 64 rows",
        "the same where there are at most 64",
        "rotated: ",
        "outlier_row: ",
    ):
        assert said in text
