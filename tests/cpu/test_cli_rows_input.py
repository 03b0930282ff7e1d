"""Wrong input of row operations and attention: one clear line and exit code 2, in one process."""

import json

import pytest
from click.testing import CliRunner

from gpulab.cli import main, session
from gpulab.errors import UsageError

BAD = [
    (("rmsnorm", "--rows", "0"), "--rows 0 is outside 1 .."),
    (("softmax", "--rows", "nan"), "'nan' is not a valid integer"),
    (("layernorm", "--cols", "0"), "--cols 0 is outside 1 .."),
    (("logsoftmax", "--cols", "inf"), "'inf' is not a valid integer"),
    (("rmsnorm", "--eps", "-1e-6"), "eps = -1e-06 is not above 0"),
    (("rmsnorm", "--eps", "nan"), "eps = nan is not above 0"),
    (("layernorm", "--eps", "inf"), "eps = inf is not above 0"),
    (("layernorm", "--eps", "-1"), "eps = -1 is not above 0"),
    (("layernorm", "--eps", "1e-300"), "eps = 1e-300 is not above 0 in float32"),
    (
        ("attention", "--batch", "70000", "--heads", "70000"),
        "heads=70000 seq_q=77 seq_k=77 head_dim=64: q has more than 2^40",
    ),
    (("rmsnorm", "--eps", "little"), "'little' is not a valid float"),
    (("crossentropy", "--labels", "1000"), "label 1000 of row 0 is outside 0 .. 999"),
    (("crossentropy", "--labels", "3,-1"), "label -1 of row 1 is outside 0 .. 999"),
    (("crossentropy", "--cols", "8", "--labels", "7,8"), "label 8 of row 1 is outside 0 .. 7"),
    (("crossentropy", "--labels", "3,nan"), "'nan' is no whole number"),
    (("crossentropy", "--labels", ""), "'' is no whole number"),
    (("crossentropy", "--rows", "2", "--labels", "1,2,3"), "3 labels for 2 rows"),
    (("crossentropy", "--labels", "-100"), "every label is -100"),
    (("attention", "--window", "0"), "--window 0 is outside 1 .."),
    (("attention", "--heads", "8", "--kv-heads", "3"), "--kv-heads 3 does not divide --heads 8"),
    (("attention", "--head-dim", "300"), "--head-dim 300 is outside 1 .. 256"),
    (("attention", "--seq-q", "0"), "--seq-q 0 is outside 1 .."),
    (("attention", "--seq-k", "nan"), "'nan' is not a valid integer"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda v: str(v)[:40])
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, words):
    done = CliRunner().invoke(main, [*arguments, "--device", "emulated"])
    assert done.exit_code == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert words in said[0]
    assert "  fix: " in done.stderr
    assert "Traceback" not in done.output
    assert all(line.startswith("device: ") for line in done.stdout.splitlines())


@pytest.mark.parametrize(("arguments", "words"), BAD[::4], ids=lambda v: str(v)[:40])
def test_bad_input_as_json_is_one_object(arguments, words):
    done = CliRunner().invoke(main, [*arguments, "--device", "emulated", "--json"])
    assert done.exit_code == 2
    (line,) = done.stdout.splitlines()
    assert words in json.loads(line)["error"]["message"]


BEYOND_32_BITS = (
    ("softmax", "--rows", "1048673", "--cols", "4096"),
    ("rmsnorm", "--rows", "8193", "--cols", "262144"),
    ("attention", "--batch", "4103", "--seq-q", "8192", "--seq-k", "64"),
    ("matmul", "--m", "131203", "--n", "16384", "--k", "64"),
)


@pytest.mark.parametrize("arguments", BEYOND_32_BITS, ids=lambda a: a[0])
def test_only_memory_limits_arrays_past_2_31_elements(arguments, monkeypatch):
    def asked(dims, needed_bytes):
        raise UsageError(f"{needed_bytes / 1e9:.0f} GB of host memory")

    monkeypatch.setattr(session, "check_memory", asked)
    done = CliRunner().invoke(main, [*arguments, "--device", "emulated"])
    assert done.exit_code == 2
    assert "GB of host memory" in done.stderr


def test_given_labels_and_eps_are_in_the_record():
    shape = ("--rows", "8", "--cols", "65", "--backend", "raw", "--no-time", "--json")
    for arguments, scalars in (
        (("crossentropy", "--kernel", "online", "--labels", "64,0,-100"), {"ignore_index": -100}),
        (("rmsnorm", "--kernel", "row", "--eps", "0.125"), {"eps": 0.125}),
    ):
        done = CliRunner().invoke(
            main, [*arguments, *shape, "--format", "fp32", "--device", "emulated"]
        )
        assert done.exit_code == 0, done.output
        (record,) = map(json.loads, done.stdout.splitlines())
        assert record["verdict"] == "PASS"
        assert record["scalars"] == scalars
