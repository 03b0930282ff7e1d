"""``gpulab attention`` on the emulated device: what it prints, and what it refuses."""

import json

import pytest

from gpulab.cli import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(["attention", "--device", "emulated", *arguments])
    captured = capsys.readouterr()
    return done.value.code, captured.out, captured.err


TINY = ("--batch", "1", "--heads", "2", "--seq-q", "9", "--seq-k", "64", "--head-dim", "16")


def test_rows_pass_lessons_fail_and_the_exit_code_is_0(capsys):
    code, out, _ = run(
        capsys, *TINY, "--causal", "--mask", "--json", "--no-time", "--kernel", "mma"
    )
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [r["verdict"] for r in records] == ["PASS", "PASS"]
    for record in records:
        assert record["op"] == "attention"
        assert record["dims"]["causal"] == 1
        assert record["dims"]["mask_planes"] == 1
        assert record["contract_gate"]["rtol"] == pytest.approx(
            max(1e-2, 4 * {"fp16": 2.0**-10, "bf16": 2.0**-7}[record["format"]] * 8)
        )
        assert record["arithmetic_gate"]["passed"]
    code, out, _ = run(capsys, *TINY, "--causal", "--no-time", "--kernel", "causal_off_by_one")
    assert code == 0
    assert "1 of 1 lessons fail, as they must" in out


def test_a_lesson_that_cannot_show_is_not_run(capsys):
    code, out, _ = run(capsys, *TINY, "--no-time", "--kernel", "causal_off_by_one", "--json")
    record = json.loads(out)
    assert record["verdict"] is None
    assert "--causal" in record["reason"]
    assert code == 3


def test_fp8_rows_end_with_what_their_scales_are_worth(capsys):
    code, out, _ = run(capsys, *TINY, "--no-time", "--kernel", "fp8", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    kinds = [r.get("kind") for r in records]
    assert kinds.count("scaling") == 2 * 2 * 3
    assert {r["contract"] for r in records} == {"block-scaled", "tensor-scaled"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seed", "-1"), "--seed -1 is outside"),
        (("--kernel", "flash9"), "no kernel 'flash9'"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert words in err
    assert err.count("error:") == 1
    assert "Traceback" not in out + err
