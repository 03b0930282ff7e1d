"""What tables of the command line must not lose: brackets, and commands in one piece."""

import pytest
from click.testing import CliRunner

from gpulab.cli import main
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
