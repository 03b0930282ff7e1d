"""The cover of all honest kernels: pairs are covered, and each way to fall short is seen."""

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import cover_honest
import cover_paths
import cover_report
import cover_spaces
from cover_spaces import OPS, SEEDS, Arrays, Space, families, spaces
from covering import covering, uncovered

from gpulab import registry
from gpulab.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, DeviceMissingError, FaultError

NINE = [(9, 0)]
sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), min_size=2, max_size=6)


def brute_force(factors, cases):
    """Pairs that no case has, counted without the code under test."""
    return {
        (a, x, b, y)
        for a, b in itertools.combinations(factors, 2)
        for x in factors[a]
        for y in factors[b]
        if not any(case[a] == x and case[b] == y for case in cases)
    }


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 99), st.data())
def test_every_pair_is_covered_and_a_missing_case_is_noticed(counts, seed, data):
    factors = {name: list(range(count)) for name, count in counts.items()}
    cases = covering(factors, seed)
    assert brute_force(factors, cases) == uncovered(factors, cases) == set()
    assert cases == covering(factors, seed)
    kept = cases[: data.draw(st.integers(0, len(cases)))]
    assert brute_force(factors, kept) == uncovered(factors, kept)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_what_cannot_go_together_never_does(most, other, seed):
    factors = {"a": range(4), "b": range(4), "c": range(3)}

    def allowed(case):
        return case["a"] < most or case["b"] < other

    cases = covering(factors, seed, allowed)
    assert all(allowed(case) for case in cases)
    left = brute_force(factors, cases)
    assert left == {("a", x, "b", y) for x in range(most, 4) for y in range(other, 4)}
    assert uncovered(factors, cases, allowed) == set()


def test_few_cases_are_enough():
    """No array can be smaller than the product of its two longest factors."""
    for op in ("softmax", "matmul"):
        for space in spaces(op):
            factors = space.factors(families(op, "fp16"))
            two = sorted(map(len, factors.values()))[-2:]
            assert len(covering(factors, 0)) <= 1.1 * two[0] * two[1]


def test_no_operation_is_left_out():
    assert {spec.op for spec in registry.specs()} == set(OPS)


def of(op, name, fmt, backend="raw"):
    return next(registry.cases(op, kernel=name, format=fmt, backend=backend))


@pytest.fixture
def small(monkeypatch):
    """The same code over two families, two seeds and two sizes."""
    monkeypatch.setattr(cover_spaces, "SEEDS", SEEDS[:2])
    monkeypatch.setattr(cover_spaces, "COLUMNS", (3, 257))
    monkeypatch.setattr(cover_spaces, "ROWS", (1, 3))
    monkeypatch.setattr(cover_spaces, "SIZES", (1, 17))
    every = cover_spaces.families
    monkeypatch.setattr(cover_spaces, "families", lambda op, fmt: every(op, fmt)[:2])


def covered(cases, folder, **options):
    lines, code = cover_honest.cover(cases, NINE, folder / "lines.jsonl", **options)
    return {line["kernel"]: line for line in lines}, code


@pytest.mark.usefixtures("small")
def test_real_kernels_pass_and_lessons_fail(tmp_path):
    cases = [of("softmax", "online", "bf16"), of("softmax", "no_max", "fp16"),
             of("matmul", "mma", "fp16")]  # fmt: skip
    found, code = covered(cases, tmp_path)
    assert code == EXIT_PASS
    assert len(found) == 3
    for line in found.values():
        assert line["pass"] == line["cases"] > 0
        assert line["seeds"] == 2
    assert found["raw/mma fp16->fp32 (fp32 acc)"]["families"] == 2
    assert found["raw/mma fp16->fp32 (fp32 acc)"]["sizes"] > 2, "two squares and mixed ones"
    assert found["raw/online bf16->bf16 (fp32 acc)"]["share"] <= 1.0
    assert "share" not in found["raw/no_max fp16->fp16 (fp32 acc)"]
    text = cover_report.table(list(found.values()))
    assert "raw/no_max fp16->fp16 (fp32 acc) (lesson)" in text


@pytest.mark.usefixtures("small")
def test_a_run_goes_on_where_it_stopped_and_notices_what_is_left_out(tmp_path):
    cases, path = [of("softmax", "online", "bf16")], tmp_path / "lines.jsonl"
    found, code = covered(cases, tmp_path, limit_s=-1.0)
    (line,) = found.values()
    assert (code, line["cases"]) == (EXIT_FAIL, 0)
    assert line["to_go"] == len(list(cover_honest.jobs(cases, NINE)))
    assert line["pairs_left_out"] > 0
    whole, code = covered(cases, tmp_path)
    assert code == EXIT_PASS
    lines = path.read_text().splitlines()
    cut = json.loads(lines[0])["case"]
    path.write_text("\n".join([*lines[1:-1], lines[-1][:30]]))
    found, code = covered(cases, tmp_path, limit_s=-1.0)
    (line,) = found.values()
    assert (code, line["to_go"]) == (EXIT_FAIL, 2), "a line that was cut short is no line"
    assert any(str(cut["family"]) in pair for pair in line["left_out"])
    again, code = covered(cases, tmp_path)
    assert code == EXIT_PASS
    assert len(path.read_text().splitlines()) == len(lines)
    for line in (*whole.values(), *again.values()):
        del line["cpu_s"]
    assert again == whole


@pytest.mark.parametrize("shares", [1, 3])
def test_shares_together_are_every_case_once(shares):
    every = list(range(20))
    parts = [every[cover_honest.share_of(f"{i + 1}/{shares}")] for i in range(shares)]
    assert sorted(itertools.chain(*parts)) == every


@pytest.mark.parametrize("share", ["0/3", "4/3", "3", "a/b"])
def test_a_share_that_is_none_is_refused(share, capsys):
    assert cover_honest.main(["--ops", "softmax", "--share", share]) == 2
    assert "cover_honest: " in capsys.readouterr().err


def test_a_line_of_one_device_says_nothing_of_another(tmp_path, monkeypatch):
    cases, path = [of("softmax", "online", "bf16")], tmp_path / "lines.jsonl"
    emulated = list(cover_honest.jobs(cases, NINE))
    on_card = list(cover_honest.jobs(cases, NINE, device="cuda"))
    assert [job.values for job in on_card] == [job.values for job in emulated]
    monkeypatch.setattr(cover_honest.Bench, "run", lambda self, job: {**json.loads(line_of(job)),
                        "verdict": "PASS", "lesson": False, "cpu_s": 0.0})  # fmt: skip
    half = emulated[::2]
    assert set(cover_honest.run_all(half, path)) == {job.key for job in half}
    known = cover_honest.run_all(on_card, path)
    assert {job.key for job in half} | {job.key for job in on_card} == set(known)


def line_of(job):
    """The line that the key of a job is made of."""
    names = ("device", "op", "kernel", "capability", "space", "case")
    return json.dumps(dict(zip(names, json.loads(job.key), strict=True)))


def test_without_a_card_there_is_nothing_to_cover_on_it(capsys, tmp_path, monkeypatch):
    def missing(*_, **__):
        raise DeviceMissingError("no NVIDIA driver is installed", fix="install it")

    monkeypatch.setattr(cover_paths, "open_device", missing)
    code = cover_honest.main(["--device", "cuda", "--ops", "softmax", "--out", str(tmp_path / "o")])
    assert code == DeviceMissingError.exit_code
    assert "cover_honest: " in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.usefixtures("small")
def test_a_wrong_kernel_that_claims_to_be_right_is_an_error(tmp_path):
    lesson = of("softmax", "no_max", "fp16")
    liar = registry.Case(lesson.spec, replace(lesson.variant, lesson=False))
    found, code = covered([liar], tmp_path)
    (line,) = found.values()
    assert code == EXIT_FAIL
    assert line["fail"] > 0
    assert line["wrong"][0]["verdict"] == "FAIL"
    assert "interval" in line["wrong"][0]["reason"]
    assert f"fail: {line['fail']}" in cover_report.table([line])
    assert line["share"] is None, "NaN is no number that JSON could hold"
    assert "inf" in cover_report.table([line])


@pytest.mark.usefixtures("small")
def test_a_lesson_that_passes_is_an_error(tmp_path):
    honest = of("softmax", "online", "fp16")
    harmless = registry.Case(honest.spec, replace(honest.variant, lesson=True))
    found, code = covered([harmless], tmp_path)
    (line,) = found.values()
    assert (code, line["pass"]) == (EXIT_FAIL, 0)


@pytest.mark.usefixtures("small")
def test_a_lesson_that_did_not_run_is_not_caught(tmp_path):
    found, code = covered([of("softmax", "no_max", "fp16")], tmp_path, limit_s=-1.0)
    (line,) = found.values()
    assert (code, line["pass"], line["pairs_left_out"]) == (EXIT_INCONCLUSIVE, 0, 0)
    assert line["to_go"] > 0


def test_a_failure_weighs_more_than_what_is_inconclusive():
    worst = cover_report.worst_code
    assert worst([EXIT_PASS, EXIT_INCONCLUSIVE]) == EXIT_INCONCLUSIVE
    assert worst([EXIT_INCONCLUSIVE, EXIT_FAIL, EXIT_PASS]) == EXIT_FAIL
    assert worst([EXIT_FAIL, FaultError.exit_code, EXIT_INCONCLUSIVE]) == FaultError.exit_code


@pytest.mark.usefixtures("small")
def test_a_kernel_that_faults_has_its_own_exit_code(tmp_path, monkeypatch):
    def fault(self, inputs, *, poison=0):
        raise FaultError("out of bounds")

    monkeypatch.setattr(cover_honest.KernelRunner, "__call__", fault)
    found, code = covered([of("softmax", "online", "fp16")], tmp_path)
    (line,) = found.values()
    assert (code, line["fail"]) == (FaultError.exit_code, line["cases"])
    assert line["wrong"][0]["reason"] == "out of bounds"


@pytest.mark.usefixtures("small")
def test_a_verdict_without_power_is_not_a_pass(tmp_path, monkeypatch):
    """Ordinary inputs alone do not tell a kernel without the maximum."""
    alone = [replace(space, companions=()) for space in spaces("crossentropy")]
    monkeypatch.setattr(cover_honest, "spaces", lambda op: alone)
    monkeypatch.setattr(cover_report, "spaces", lambda op: alone)
    found, code = covered([of("crossentropy", "online", "fp16")], tmp_path)
    (line,) = found.values()
    assert code == EXIT_INCONCLUSIVE
    assert any("no_max" in one["reason"] for one in line["wrong"])
    assert (line["fail"], line["pairs_left_out"]) == (0, 0)
    assert f"inconclusive: {line['inconclusive']}" in cover_report.table([line])


def test_where_nothing_runs_nothing_is_claimed(tmp_path):
    found, code = covered(
        [of("softmax", "index32", "bf16"), of("matmul", "cublas", "fp16", "library")], tmp_path
    )
    assert code == EXIT_INCONCLUSIVE
    assert [line["not_run"] for line in found.values()] == [
        "shows beyond 2^32 elements only", "needs a card"
    ]  # fmt: skip


@pytest.mark.usefixtures("small")
def test_a_further_capability_repeats_what_differs_there():
    """A float32 sum on CUDA cores is the same code everywhere; bf16 is rounded by an instruction
    from 8.0 on; tensor cores have another instruction on 7.5 and other arithmetic before 9.0."""
    cases = [of("matmul", "simt", "fp32"), of("softmax", "online", "bf16"),
             of("matmul", "mma", "fp16")]  # fmt: skip
    wanted = list(cover_honest.jobs(cases, [(9, 0), (8, 0), (7, 5)]))
    there = {(job.case.spec.name, job.capability) for job in wanted}
    assert there == {("simt", (9, 0)), ("online", (9, 0)), ("online", (7, 5)),
                     ("mma", (9, 0)), ("mma", (8, 0)), ("mma", (7, 5))}  # fmt: skip
    dims = {"m": 17, "n": 17, "k": 17}
    models = {c: cover_paths.path(cases[2], c, dims)[-1] for c in ((8, 0), (8, 9), (9, 0))}
    assert models[8, 0] == models[8, 9] != models[9, 0]


@pytest.mark.usefixtures("small")
def test_the_whole_product_has_every_combination():
    case, space = of("softmax", "online", "fp16"), spaces("softmax")[0]
    cases = Arrays().cases(space, case, (9, 0), full=True)
    assert {(c["family"], c["seed"], c["cols"]) for c in cases} == set(
        itertools.product(cover_spaces.families("softmax", "fp16"), (0, 1), (3, 257))
    )


def test_dims_of_a_refused_size_are_left_out_and_named():
    """fp8 attention needs head dims of whole blocks: the pairs with others are not asked for."""
    case, space = of("attention", "fp8", "e4m3"), spaces("attention")[0]
    cases = Arrays().cases(space, case, (9, 0), full=False)
    asked = {c["head_dim"] for c in cases}
    assert asked == {16, 64, 80, 96, 128, 192}
    assert cover_spaces.missing(space, case, (9, 0), cases) == set()
    assert cover_spaces.missing(space, case, (9, 0), cases[1:]) != set()


def test_long_rows_are_few():
    (space,) = spaces("softmax")
    assert isinstance(space, Space)
    assert space.dims({"rows": 11, "cols": 50257}) == {"rows": 3, "cols": 50257}
    assert space.dims({"rows": 11, "cols": 1000}) == {"rows": 11, "cols": 1000}
