"""``gpulab formats``: values, JSON, reports with and without a device, and bad input."""

import json

import pytest
from click.testing import CliRunner

from gpulab import arch
from gpulab.cli import main
from gpulab.errors import DeviceMissingError
from gpulab.formats import FORMATS
from gpulab.report import probe
from gpulab.report.capability import FAMILIES
from gpulab.report.probe import ProbeResult
from gpulab.runtime import select


def result(name, status, **more):
    return ProbeResult(name, "mma.sync.x", status, f"{status}!", **more)


def run(*arguments):
    return CliRunner().invoke(main, ["formats", *arguments])


def test_values_on_the_command_line():
    done = run("1.0007", "300000", "-0.5")
    assert done.exit_code == 0
    assert "1.0009765625" in done.stdout
    assert "299008.0" in done.stdout
    assert "-0.5" in done.stdout


def test_json_is_one_object_a_line_and_nothing_else():
    done = run("nan", "-inf", "300000", "--json", "--saturate", "--rounding", "toward-zero")
    assert done.exit_code == 0
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == 3 * len(FORMATS)
    assert all(r["schema"] == 1 and r["kind"] == "value" for r in records)
    assert done.stderr == ""


@pytest.mark.parametrize("capability", ["7.5", "8.9", "9.0", "12.0", "sm_100"])
def test_capability_needs_no_device(capability):
    done = run("--capability", capability, "--json")
    assert done.exit_code == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["format"] for r in lines] == list(FAMILIES)
    yes = [r["format"] for r in lines if r["supported"]]
    counts = {(7, 5): 1, (8, 9): 4, (9, 0): 4, (10, 0): 4, (12, 0): 5}
    assert yes == list(FAMILIES)[: counts[arch.parse(capability)]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["abc"], "not a number"),
        (["1e400"], "range of float64"),
        (["--capability", "7.0"], "sm_75 or newer"),
        (["--capability", "nine"], "not a compute capability"),
        (["--rounding", "up", "1"], "nearest"),
        (["--bogus"], "no such option"),
        (["--saturate"], "need a VALUE"),
        (["1.0", "--capability", "8.9"], "does not depend on a device"),
        (["--device", "tpu"], "emulated"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    again = run(*arguments, "--json")
    assert again.exit_code == 2
    assert json.loads(again.stdout)["error"]["exit_code"] == 2


class FakeCard:
    """Stands for an opened card; ``answers`` are its probe results."""

    kind = "cuda"
    name = "a card"
    capability = (8, 9)


def with_card(monkeypatch, **states):
    monkeypatch.setattr(select, "open_device", lambda *a, **k: FakeCard())
    names = ("fp16", "bf16", "tf32", "e4m3", "e5m2")
    answers = {n: result(n, states.get(n, "executed")) for n in names}
    monkeypatch.setattr(probe, "run_probes", lambda device, formats: answers)


def test_without_a_card_the_table_comes_with_a_hint(monkeypatch):
    def none(*a, **k):
        raise DeviceMissingError("no driver")

    monkeypatch.setattr(select, "open_device", none)
    done = run()
    assert done.exit_code == 0
    assert "mxfp8" in done.stdout
    assert "No card to report on: no driver" in done.stderr
    as_json = run("--json")
    assert len(as_json.stdout.splitlines()) == len(FORMATS)


def test_a_missing_card_that_was_asked_for_is_exit_code_7(monkeypatch):
    def none(*a, **k):
        raise DeviceMissingError("no driver")

    monkeypatch.setattr(select, "open_device", none)
    assert run("--device", "cuda").exit_code == 7


def test_on_a_card_the_yes_is_executed(monkeypatch):
    with_card(monkeypatch)
    done = run()
    assert done.exit_code == 0
    assert done.stdout.count("yes, executed") == 4
    assert "a card, cuda" in done.stdout
    lines = [json.loads(x) for x in run("--device", "cuda", "--json").stdout.splitlines()]
    assert [x["status"] for x in lines] == ["executed"] * 4 + ["table"]
    assert lines[0]["proof"][0]["status"] == "executed"


@pytest.mark.parametrize(("status", "code"), [("mismatch", 1), ("not run", 3)])
def test_a_yes_that_is_not_proven_is_no_success(monkeypatch, status, code):
    with_card(monkeypatch, e5m2=status)
    done = run("--device", "cuda")
    assert done.exit_code == code
    assert f"yes, {status}" in done.stdout
