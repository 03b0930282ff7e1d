"""The commands of the row operations on the emulated device: what they print and refuse."""

import json

import pytest

from gpulab.cli import main

SMALL = ("--rows", "9", "--cols", "65", "--backend", "raw", "--no-time")


def run(capsys, op, *arguments):
    with pytest.raises(SystemExit) as done:
        main([op, "--device", "emulated", *arguments])
    captured = capsys.readouterr()
    return done.value.code, captured.out, captured.err


@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "softmax", "logsoftmax", "crossentropy"])
def test_every_row_passes_and_every_lesson_fails(capsys, op):
    code, out, _ = run(capsys, op, *SMALL, "--format", "bf16", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    ran = [r for r in records if r["verdict"] is not None]
    assert code == 0
    assert {r["op"] for r in ran} == {op}
    assert all(r["dims"] == {"rows": 9, "cols": 65} for r in ran)
    assert all((r["verdict"] == "FAIL") == r["lesson"] for r in ran)
    for record in ran:
        assert record["arithmetic_gate"]["text"].startswith("D = ")
        if record["lesson"]:
            assert record["caught_on"]
            assert record["allclose_passes_on"].keys() <= {"0.01", "0.001"}


def test_the_contract_gate_prints_its_arithmetic(capsys):
    code, out, _ = run(capsys, "softmax", *SMALL, "--kernel", "online", "--format", "fp16")
    assert code == 0
    assert "rtol = max(0.001, 4 * 2^-10 * sqrt(65)) = 0.031493" in out


@pytest.mark.parametrize(
    ("arguments", "kernels"),
    [
        (("--residual",), {"residual", "residual_rounded", "early_rounding"}),
        (("--contract", "fp32-sum"), {"residual", "early_rounding"}),
        (("--contract", "rounded-sum"), {"residual_rounded"}),
    ],
)
def test_contracts_choose_rows(capsys, arguments, kernels):
    code, out, _ = run(capsys, "rmsnorm", *SMALL, "--format", "fp16", "--json", *arguments)
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {r["kernel"] for r in records} == kernels
    assert {r["contract"] for r in records} <= {"fp32-sum", "rounded-sum"}


@pytest.mark.parametrize(
    ("op", "arguments", "words"),
    [
        ("softmax", ("--cols", "-3"), "--cols -3 is outside 1 .."),
        ("rmsnorm", ("--contract", "half"), "'half' is not one of"),
        ("softmax", ("--residual",), "No such option"),
        ("crossentropy", ("--kernel", "welford"), "crossentropy has no kernel 'welford'"),
        (
            "layernorm",
            ("--kernel", "welford", "--contract", "two-pass"),
            "no row with these options",
        ),
        ("softmax", ("--seed", "-1"), "--seed -1 is outside"),
    ],
)
def test_a_bad_request_gets_one_line_and_exit_code_2(capsys, op, arguments, words):
    code, _, err = run(capsys, op, *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
