"""Right submissions pass; each wrong one fails with the diagnosis that its folder states."""

from pathlib import Path

import pytest

from gpulab import exercises
from gpulab.check import sandbox

ROOT = Path(__file__).resolve().parents[1] / "submissions"
RIGHT = sorted(p for p in (ROOT / "correct").rglob("*") if p.suffix in (".cu", ".py"))
WRONG = sorted(p for p in (ROOT / "wrong").rglob("*") if p.suffix in (".cu", ".py"))


def name_of(path):
    return str(path.relative_to(ROOT))


def confined(path):
    if path.suffix == ".py" and sandbox.refusal() is not None:
        pytest.skip(f"Python submissions cannot be confined here: {sandbox.refusal()}")


@pytest.mark.parametrize("path", RIGHT, ids=name_of)
def test_an_honest_kernel_passes(path, judged):
    confined(path)
    result = judged(path)
    assert result.verdict == "PASS", (result.reason, result.stages)
    assert result.exit_code == 0
    assert result.facts["arithmetic_gate"]["fraction"] <= 1


@pytest.mark.parametrize("path", WRONG, ids=name_of)
def test_a_wrong_kernel_fails_with_its_diagnosis(path, judged):
    confined(path)
    result = judged(path)
    assert result.verdict == "FAIL"
    assert result.exit_code != 0
    assert result.diagnosis.slug == path.parent.name, result.diagnosis
    assert result.diagnosis.fix or path.parent.name == "unrecognised"
    assert result.facts["replay"].startswith(f"{result.facts['exercise']}:")


@pytest.mark.parametrize("name", list(exercises.catalogue()))
def test_there_are_enough_fixtures(name):
    assert len([p for p in WRONG if p.parent.parent.name == name]) >= 6
    if name == "fp16-matmul":
        assert len([p for p in RIGHT if p.parent.name == name]) >= 8


@pytest.mark.parametrize("name", list(exercises.catalogue()))
@pytest.mark.parametrize("language", ["cu", "py"])
def test_solutions_pass_and_starters_fail_honestly(name, language, tmp_path, judged):
    exercise = exercises.get(name)
    for kind, wanted in (("solution", "PASS"), ("starter", "FAIL")):
        path = tmp_path / f"{kind}.{language}"
        path.write_text(exercise.file(kind, language).read_text())
        confined(path)
        result = judged(path)
        assert result.verdict == wanted, (result.reason, result.diagnosis)
        if kind == "starter":  # it compiles, runs and is wrong
            assert result.exit_code == 1
            assert result.diagnosis.slug != "unrecognised"


@pytest.mark.parametrize("name", list(exercises.catalogue()))
def test_the_power_certificate_holds(name):
    from gpulab.check.certificate import certificate

    lines = certificate(exercises.get(name), 5)
    assert {line.mutant for line in lines if line.status == "passes"} == set()
    assert sum(line.status == "caught" for line in lines) >= 8


def test_a_mutant_that_gets_through_makes_every_verdict_inconclusive(judged, monkeypatch):
    from gpulab.numerics import power

    real = power.certify

    def blind(contract, evidence, standard=None, thorough=True):
        found = real(contract, evidence, thorough=thorough)
        return tuple(
            power.Certificate(c.mutant, "passes", (), ("x",)) if c.mutant == "dropped_term" else c
            for c in found
        )

    monkeypatch.setattr("gpulab.ops.matmul_judge.power.certify", blind)
    from gpulab.check.judge import check
    from gpulab.check.session import Options

    matmul = next(p for p in RIGHT if p.parent.name == "fp16-matmul")
    result = check(matmul, Options(seed=1))
    assert result.verdict == "INCONCLUSIVE"
    assert "dropped_term" in result.reason
    assert result.exit_code == 3
