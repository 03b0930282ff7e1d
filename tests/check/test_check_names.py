"""``gpulab check`` and names of files: those that are no text, and those that are written to."""

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from gpulab.check import reports
from gpulab.check.evidence import printable
from gpulab.check.folder import Journal
from gpulab.check.session import Options
from gpulab.cli import main
from gpulab.runtime import diagnostics, toolkit

GOOD = Path(__file__).parents[1] / "submissions" / "correct" / "fp16-matmul" / "naive.cu"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """``gpulab check`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["check", *map(str, arguments)])


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain name.cu", "plain name.cu"),
        ("naïve.cu".encode(), "naïve.cu"),
        (b"caf\xe9.cu", "caf\\xe9.cu"),
        (b"two\nlines.cu", "two\\nlines.cu"),
        (b"red\x1b[31m.cu", "red\\x1b[31m.cu"),
    ],
)
def test_a_name_is_text_of_one_line(raw, shown):
    assert printable(os.fsdecode(raw)) == shown


def test_a_right_kernel_passes_whatever_its_file_is_called(check):
    Path(os.fsdecode(b"caf\xe9.cu")).write_bytes(GOOD.read_bytes())
    done = check(".", "--no-time", "--json", "--junit", "j", "--markdown", "m", "--sarif", "s")
    record = json.loads(done.stdout)
    assert (done.exit_code, record["verdict"], record["file"]) == (0, "PASS", "caf\\xe9.cu")
    case = ElementTree.parse("j").getroot()[0]
    assert case.attrib["name"] == "caf\\xe9.cu"
    assert "| `caf\\xe9.cu` | fp16-matmul | PASS |" in Path("m").read_text()
    again = check(".", "--no-time", "--json", "--resume")
    assert json.loads(again.stdout) == record


def test_a_link_to_nothing_is_a_submission_that_cannot_be_read(check):
    Path("gone.cu").symlink_to("nowhere.cu")
    done = check(".", "--json")
    assert done.exit_code == 2
    assert "cannot read gone.cu" in json.loads(done.stdout)["reason"]


@pytest.mark.parametrize("name", ["k.cu", "kernel (1).cu", "a(2)(3) [4].cu", "(5).cu"])
def test_the_line_of_a_compile_error_is_found_whatever_the_name(name):
    log = f'{name}(8): error: expected a ";"\n    f(9);\n    ^\n'
    error = diagnostics.build_error(log, name, "f", "sm_89", toolkit.default())
    assert error.message == f'{name}:8: expected a ";"'
    assert (error.details["file"], error.details["line"]) == (name, 8)


def test_sarif_encodes_names():
    record = {"verdict": "FAIL", "reason": "", "file": "a b/k [1]%\u00fc.cu", "error": {"line": 8}}
    (result,) = json.loads(reports.sarif([record]))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b/k%20%5B1%5D%25%C3%BC.cu"
    assert place["region"]["startLine"] == 8


@pytest.mark.parametrize("resume", [(), ("--resume",)], ids=["anew", "resumed"])
def test_results_are_not_written_over_another_file(check, resume):
    Path("kernel.cu").write_text("not a kernel")
    notes = Path("notes.txt")
    notes.write_text("a year of work\n")
    done = check("kernel.cu", "--results", notes, *resume)
    assert done.exit_code == 2
    assert "notes.txt holds something else than results" in done.stderr
    assert notes.read_text() == "a year of work\n"
    notes.write_text("")
    for _ in range(2):  # an empty file, and then one of results
        assert "not a kernel" not in check("kernel.cu", "--results", notes, *resume).stderr
        assert notes.read_text().startswith('{"how": ')


@pytest.mark.parametrize("resume", [(), ("--resume",)], ids=["anew", "resumed"])
def test_results_that_a_run_writes_are_not_written_by_another(check, resume):
    Path("kernel.cu").write_text("not a kernel")
    assert "holds" not in check("kernel.cu", "--results", "kept").stderr
    before = Path("kept").read_bytes()
    running = Journal(Path("kept"), Options())
    running.read()
    done = check("kernel.cu", "--results", "kept", *resume)
    assert done.exit_code == 2
    assert "--results: another run writes kept" in done.stderr
    assert Path("kept").read_bytes() == before
    running.close()
    assert check("kernel.cu", "--results", "kept", *resume).stderr == ""


@pytest.mark.parametrize("option", ["--junit", "--markdown", "--sarif", "--results"])
def test_what_cannot_be_written_is_refused_before_anything_is_judged(check, option, monkeypatch):
    monkeypatch.setattr("gpulab.check.folder.check_many", lambda *_, **__: pytest.fail("judged"))
    Path("kernel.cu").write_text("not a kernel")
    for name, said in (
        ("no/such/file", f"{option}: folder no/such does not exist"),
        (".", f"{option}: . is a folder"),
    ):
        done = check("kernel.cu", option, name)
        assert done.exit_code == 2
        assert said in done.stderr
        assert "fix: " in done.stderr
        assert done.stdout == ""
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert f"{option}: file cannot be written" in check("kernel.cu", option, "file").stderr
