"""A user's mistake gives one clear line and the right exit code, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpulab.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


def gpulab(*arguments):
    return CliRunner().invoke(main, arguments)


BAD = [
    (["matmul", "--size", "0"], 2, "--size 0 is outside 1"),
    (["matmul", "--size", "-3"], 2, "--size -3 is outside 1"),
    (["matmul", "--size", "1000000000"], 2, "more than 2^40 elements"),
    (["matmul", "--size", "1e9"], 2, "'1e9' is not a valid integer"),
    (["matmul", "--size", "nan"], 2, "'nan' is not a valid integer"),
    (["matmul", "--m", "3"], 2, "--m, --n and --k go together"),
    (["matmul", "--size", "4", "--m", "3"], 2, "--size excludes"),
    (["matmul", "--size", "1000000", "--device", "emulated"], 2, "GB of host memory"),
    (["matmul", "--format", "fp7", "--device", "emulated"], 2, "no format 'fp7'"),
    (["matmul", "--kernel", "warp", "--device", "emulated"], 2, "no kernel 'warp'"),
    (["matmul", "--capability", "7.0", "--device", "emulated"], 2, "sm_75 or newer"),
    (["matmul", "--capability", "banana", "--device", "emulated"], 2, "banana"),
    (["matmul", "--seed", "-1", "--device", "emulated"], 2, "--seed -1 is outside"),
    (["matmul", "--runs", "0", "--device", "emulated"], 2, "--runs 0"),
    (["attention", "--head-dim", "0", "--device", "emulated"], 2, "--head-dim 0 is outside 1"),
    (["bench", "ceilings", "--runs", "0"], 2, "--runs 0 is outside 1"),
    (["check", ".", "--timeout", "nan"], 2, "--timeout nan"),
    (["check", ".", "--memory", "inf"], 2, "--memory inf"),
    (["check", ".", "--jobs", "0"], 2, "--jobs 0"),
    (["check", "nowhere.cu"], 2, "no such file or folder: nowhere.cu"),
    (["matmul", "--device", "tpu"], 2, "'tpu' is not one of"),
    (["matmul", "--frobnicate"], 2, "No such option"),
    (["frobnicate"], 2, "No such command"),
    (["list", "--op", "conv"], 2, "no operation 'conv'"),
    (["list", "--kernel", "conv"], 2, "the lab has no kernel 'conv'"),
    (["list", "--kernel", "row", "--format", "int8"], 2, "no kernel has all of that"),
    (["exercise", "show", "softmax", "--hints", "99"], 2, "--hints 99: softmax has 0 .. 5"),
]
BAD_WITHOUT_JSON = [
    (["exercise", "start", "softmax", "--output", "no/such/a.cu"], 2, "folder no/such does not"),
    (["exercise", "start", "softmax", "--output", "a.py"], 2, "a.py: a starter in cu ends in .cu"),
    (["bench", "plot", "nowhere.jsonl", "--out", "a"], 2, "nowhere.jsonl: No such file"),
    (["bench", "plot", __file__, "--out", "a"], 2, "test_cli_errors.py:1: no JSON"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "text"), BAD + BAD_WITHOUT_JSON, ids=lambda v: str(v)[:40]
)
def test_bad_input(arguments, code, text):
    done = gpulab(*arguments)
    assert done.exit_code == code, done.output  # an exception that escapes is code 1
    assert text in done.stderr
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1
    assert "  fix: " in done.stderr
    assert done.stdout == "" or done.stdout.startswith("device: ")  # and no table, no verdict
    assert len(done.stdout.splitlines()) <= 1


@pytest.mark.parametrize(("arguments", "code", "text"), BAD, ids=lambda v: str(v)[:40])
def test_bad_input_as_json(arguments, code, text):
    done = gpulab(*arguments, "--json")
    assert done.exit_code == code
    (line,) = done.stdout.splitlines()
    error = json.loads(line)
    assert error["schema"] == 1
    assert error["error"]["exit_code"] == code
    assert text in error["error"]["message"]
    assert error["error"]["fix"]


def test_a_process_of_its_own_ends_with_the_line_and_the_code():
    for arguments, code, text in BAD[:1]:
        done = subprocess.run(
            [sys.executable, "-m", "gpulab", *arguments],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith(f"error: {text}")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["matmull"], "did you mean 'matmul'? see 'gpulab --help'"),
        (["bench", "plott"], "did you mean 'plot'? see 'gpulab bench --help'"),
        (["exercise", "strat", "softmax"], "did you mean 'start'? see 'gpulab exercise --help'"),
        (["frobnicate"], "see 'gpulab --help'"),
    ],
)
def test_a_misspelt_command_is_told_the_nearest(arguments, meant):
    done = CliRunner().invoke(main, arguments, prog_name="gpulab")
    assert done.exit_code == 2
    assert done.stderr.endswith(f"  fix: {meant}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--json"], ["bench", "-h"]])
def test_a_reader_that_goes_away_is_no_verdict(arguments):
    """128 + SIGPIPE: neither 0, all passed, nor 1, a gate failed."""
    with subprocess.Popen(
        [sys.executable, "-m", "gpulab", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"]])
def test_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpulab", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot read or write what is printed: No space left")
    assert len(done.stderr.splitlines()) == 2


def test_a_terminal_without_a_letter_gets_its_escape(tmp_path):
    name = "a\u2192b.cu"
    done = subprocess.run(
        [sys.executable, "-m", "gpulab", "exercise", "start", "softmax", "--output", name],
        env=os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(rb"wrote a\u2192b.cu; judge it with")
    assert (tmp_path / name).exists()


def test_help_names_every_command():
    done = gpulab("--help")
    assert done.exit_code == 0
    for name in COMMANDS:
        assert name in done.stdout
        assert gpulab(name, "--help").exit_code == 0


@pytest.mark.parametrize("group", [[], ["bench"], ["exercise"]], ids=lambda g: "-".join(["", *g]))
def test_a_group_alone_shows_its_commands_once(group):
    done = gpulab(*group)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"{gpulab(*group, '--help').stdout}"
