"""A user's mistake gives one clear line and the right exit code, never a traceback."""

import json
import subprocess
import sys

import pytest


def gpulab(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "gpulab", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


BAD = [
    (["matmul", "--size", "0"], 2, "--size 0 is outside 1"),
    (["matmul", "--size", "-3"], 2, "--size -3 is outside 1"),
    (["matmul", "--size", "1000000000"], 2, "is outside 1"),
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
    (["matmul", "--device", "tpu"], 2, "'tpu' is not one of"),
    (["matmul", "--frobnicate"], 2, "No such option"),
    (["frobnicate"], 2, "No such command"),
    (["list", "--op", "conv"], 2, "no operation 'conv'"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), BAD, ids=lambda v: str(v)[:40])
def test_bad_input(arguments, code, text):
    done = gpulab(*arguments)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "" or done.stdout.startswith("device: ")  # and no table, no verdict
    assert len(done.stdout.splitlines()) <= 1


@pytest.mark.parametrize(("arguments", "code", "text"), BAD, ids=lambda v: str(v)[:40])
def test_bad_input_as_json(arguments, code, text):
    done = gpulab(*arguments, "--json")
    assert done.returncode == code
    (line,) = done.stdout.splitlines()
    error = json.loads(line)
    assert error["schema"] == 1
    assert error["error"]["exit_code"] == code
    assert text in error["error"]["message"]


def test_help_names_every_command():
    from gpulab.cli import COMMANDS

    done = gpulab("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert name in done.stdout
        assert gpulab(name, "--help").returncode == 0
