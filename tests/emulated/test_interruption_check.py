"""Ctrl-C while submissions are judged: what is known by then, exit code 130, nothing is left."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpulab.cli import interruption

ROOT = Path(__file__).resolve().parents[2]
GOOD = ROOT / "tests" / "submissions" / "correct" / "fp16-matmul" / "naive.cu"


def _ended(group):
    """Whether no process of the group is left, soon."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_the_first_signal_ends_the_processes_below_where_that_is_asked():
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    child.start()
    before = {each: signal.getsignal(each) for each in interruption.SIGNALS}
    with pytest.raises(KeyboardInterrupt), interruption.heard(ends_children=True):
        signal.raise_signal(signal.SIGINT)
    for each, handler in before.items():  # what is there now would end this process
        signal.signal(each, handler)
    child.join(10)
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("sent", interruption.SIGNALS)
def test_an_interrupted_folder_says_what_was_judged_and_how_it_goes_on(sent, tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.cu").write_text("no kernel")
    for name in ("b.cu", "c.cu", "d.cu"):
        (tmp_path / "class" / name).write_text(GOOD.read_text())
    as_json = ["--json"] if sent == signal.SIGTERM else []
    command = [sys.executable, "-m", "gpulab", "check", "class", "--jobs", "2", *as_json]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        first = process.stdout.readline() if as_json else process.stderr.readline()
        assert "a.cu" in first
        os.killpg(process.pid, sent)  # as a terminal does, to all of them
        printed, _ = process.communicate(timeout=20)
    last = printed.splitlines()[-1]
    assert process.returncode == 130
    if as_json:
        error = json.loads(last)["error"]
        assert (error["kind"], error["exit_code"]) == ("interrupted", 130)
        assert error["judged"] + error["left"] == 4
        assert "--resume" in error["fix"]
    else:
        assert last.startswith("INTERRUPTED: ")
        assert last.endswith(
            " of 4 submissions judged, 0 pass; the same command with --resume goes on"
        )
        assert "a.cu" in printed
    assert _ended(process.pid)
