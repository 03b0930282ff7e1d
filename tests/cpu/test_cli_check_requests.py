"""What ``gpulab check`` refuses before it judges, and what it says beside a folder's table."""

from types import SimpleNamespace

import pytest

from gpulab.cli import main

NOTHING = "not a kernel"
TOKEN = "fp16-matmul:95c601d9:m33,n65,k47:emulated-8.9"


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """``gpulab check`` in a folder of two submissions: its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "class").mkdir()
    for name in ("a.cu", "b.cu"):
        (tmp_path / "class" / name).write_text(NOTHING)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["check", "--jobs", "1", *arguments], prog_name="gpulab")
        printed = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=printed.out, err=printed.err)

    return run


@pytest.mark.parametrize("option", ["--junit", "--markdown", "--sarif", "--results"])
@pytest.mark.parametrize("path", ["class/a.cu", "class/../class/a.cu"])
def test_a_report_is_not_written_over_a_submission(here, tmp_path, option, path):
    done = here("class", option, path)
    assert done.code == 2
    assert f"{option}: {path} is a submission" in done.err
    assert (tmp_path / "class" / "a.cu").read_text() == NOTHING


def test_two_reports_do_not_share_a_file(here, tmp_path):
    done = here("class", "--junit", "report", "--sarif", "./report")
    assert done.code == 2
    assert "--sarif: report is the file of --junit too" in done.err
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    "more", [("--device", "emulated"), ("--capability", "8.9"), ("--seed", "1")]
)
def test_a_replay_names_device_capability_and_seed(here, more):
    done = here("class/a.cu", "--replay", TOKEN, *more)
    assert done.code == 2
    assert "--replay names device, capability and seed" in done.err


def test_a_folder_says_how_to_learn_more_and_quiet_says_the_verdict_alone(here):
    loud, quiet = here("class"), here("class", "--quiet")
    assert (loud.code, quiet.code) == (2, 2)
    assert "gpulab check FILE" in loud.out
    assert "2/2 FAIL class/b.cu" in loud.err
    assert (quiet.out, quiet.err) == ("0 of 2 submissions pass\n", "")


def test_what_was_judged_at_one_case_is_not_kept_as_a_result(here, tmp_path):
    assert here("class").code == 2
    kept = (tmp_path / "gpulab-check.jsonl").read_bytes()
    assert kept.count(b"\n") == 2
    here("class", "--replay", TOKEN)
    assert (tmp_path / "gpulab-check.jsonl").read_bytes() == kept
    for more in (("--resume",), ("--results", "other.jsonl")):
        done = here("class", "--replay", TOKEN, *more)
        assert done.code == 2
        assert "--replay judges one case" in done.err
    assert not (tmp_path / "other.jsonl").exists()
