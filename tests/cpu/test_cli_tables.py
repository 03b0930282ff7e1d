"""What tables of the command line must not lose: brackets, and commands in one piece."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gpulab.cli import main
from gpulab.cli.session import print_counters
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
    shown = SimpleNamespace(counters=True, quiet=False, say=lambda: None)
    print_counters(shown, [row])
    told = capsys.readouterr().out.splitlines()
    (line,) = [line for line in told if "wgmma-persistent" in line]
    assert line.startswith("e4m3, fp32 acc promoted -> bf16")
    assert line.rstrip().endswith("213120        12%  warps, registers, shared memory")
    assert " 1207 " in line  # copies of both kinds
