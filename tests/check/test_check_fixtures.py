"""A covering sample of the fixtures; ``scripts/check_fixtures.py`` judges all of them.

Every third exercise has its solution here, the others their starters; every eighth one has its
solution in Numba, every other eighth one its starter, every fourth one a right submission. Every
diagnosis that a folder names has one wrong submission, here or in another test.
"""

import json
import tomllib
from dataclasses import replace

import check_fixtures
import pytest
from check_fixtures import EXPLOITS, ROOT, SUBMISSIONS, Fixture, judge
from conftest import SEED
from test_check_beyond import UNUSED
from test_check_cli import REPLAYED
from test_check_sampling import AT_LARGE_SIZES

from gpulab import exercises
from gpulab.bench import records
from gpulab.check.session import Options

ALL = list(check_fixtures.fixtures())
NAMES = list(exercises.catalogue())
SLOW = ("thread_a", "register_blocked", "serial", "by_tiles", "double_sum", "wmma")
"""Slow to emulate (little runs in parallel) or judged below; the script judges them."""
EXPLOITED = tomllib.loads((EXPLOITS / "cases.toml").read_text()).values()
ELSEWHERE = {
    *(f"wrong/{path}" for path in (*AT_LARGE_SIZES, *(path for path, *_ in UNUSED))),
    *(str(path.relative_to(SUBMISSIONS)) for path in REPLAYED if SUBMISSIONS in path.parents),
    *(case["submission"] for case in EXPLOITED if "submission" in case),
}
"""Judged in other tests, which look at the diagnosis too."""


def told_elsewhere():
    return {f.slug for f in ALL if f.name in ELSEWHERE and f.verdict == "FAIL"}


def is_cheap(one):
    return not any(word in one.name for word in SLOW)


def sample():
    """Fixtures that cover exercises, languages and diagnoses."""
    chosen = []
    for one in ALL:
        kind, _, rest = one.name.partition("/")
        is_starter = kind == "starter"
        wanted = rest in [f"{n}.cu" for n in NAMES[is_starter::3]]
        wanted |= rest in [f"{n}.py" for n in NAMES[5 if is_starter else 1 :: 8]]
        if kind in ("solution", "starter") and wanted:
            chosen.append(one)
    for name in NAMES[3::4]:
        right = [f for f in ALL if f.name.startswith(f"correct/{name}/")]
        styles = [f for f in right if is_cheap(f) and f.name not in ELSEWHERE]
        chosen += styles[:1]
    used = dict.fromkeys(NAMES, 0)
    wrong = [f for f in ALL if f.name.startswith("wrong/") and is_cheap(f)]
    for slug in sorted({f.slug for f in wrong} - told_elsewhere()):
        one = min((f for f in wrong if f.slug == slug), key=lambda f: used[f.exercise])
        used[one.exercise] += 1
        chosen.append(one)
    return chosen


@pytest.mark.parametrize("one", sample(), ids=lambda one: one.name)
def test_a_fixture_gets_what_it_should(one, cache):
    # Every fourth solution: the right ones are much the same there, and the script has them all.
    timed = one.path.suffix == ".cu" and (
        one.name.startswith("wrong/") or one.name in [f"solution/{name}.cu" for name in NAMES[1::4]]
    )
    line = judge(one, Options(seed=SEED, timed=timed), cache, isolated=False)
    assert line["agrees"], (line["verdict"], line["diagnosis"], line["reason"])
    assert json.loads(json.dumps(line)) == line


def test_the_sample_covers_every_exercise_and_every_diagnosis():
    chosen = sample()
    assert {f.exercise for f in chosen} == set(NAMES)
    every = {p.parent.name for p in (SUBMISSIONS / "wrong").rglob("*.*") if p.is_file()}
    assert {f.name for f in ALL} >= ELSEWHERE
    assert {f.slug for f in chosen if f.name.startswith("wrong/")} | told_elsewhere() == every


@pytest.mark.parametrize(
    ("verdict", "slug"), [("PASS", ""), ("FAIL", "half-accumulator"), ("INCONCLUSIVE", "scaled")]
)
def test_a_fixture_that_gets_something_else_disagrees(verdict, slug, cache):
    path = SUBMISSIONS / "wrong" / "fp16-matmul" / "scaled" / "twice.cu"
    wanted, options = Fixture("x", path, "fp16-matmul", verdict, slug), Options(seed=SEED)
    line = judge(wanted, replace(options, timed=False), cache, isolated=False)
    assert not line["agrees"]
    assert (line["verdict"], line["diagnosis"]) == ("FAIL", "scaled")


def test_the_card_and_the_emulated_device_say_the_same():
    """Of every fixture that was judged on both, with one seed."""
    lines = records.read(ROOT / "docs" / "results" / "check_fixtures.jsonl")
    assert all(line["agrees"] for line in lines)
    assert check_fixtures.apart(lines) == []
    card = next(x for x in lines if x["device"] == "cuda" and x["diagnosis"] == "scaled")
    for change in ({"verdict": "PASS"}, {"diagnosis": "zeros"}):
        (told,) = check_fixtures.apart([card, card | {"device": "emulated"} | change])
        assert told.startswith(f"{card['fixture']}, seed 1: FAIL scaled on cuda, ")
    assert check_fixtures.apart([card, card | {"device": "emulated", "skipped": "no bwrap"}]) == []
    assert check_fixtures.apart([card, card | {"device": "emulated", "seed": 2}]) == []


CLAIMS = "correct/fp16-matmul/claims.cu"


@pytest.mark.parametrize("device", ["cuda", "emulated"])
def test_every_fixture_was_judged_on_both_and_solutions_with_ten_seeds(device):
    lines = records.read(ROOT / "docs" / "results" / "check_fixtures.jsonl")
    judged = {
        (x["fixture"], x["seed"]) for x in lines if x["device"] == device and not x["skipped"]
    }
    assert {f.name for f in ALL} - {name for name, seed in judged if seed == 1} == set()
    solutions = [f.name for f in ALL if f.name.startswith("solution/")]
    assert len(solutions) == 2 * len(NAMES)
    assert {(name, seed) for name in solutions for seed in range(1, 11)} <= judged


def test_solutions_passed_a_card_without_times_too():
    """Recorded later than the timed ones of these seeds, with all cases that there are."""
    lines = records.read(ROOT / "docs" / "results" / "check_untimed.jsonl")
    assert all((x["device"], x["verdict"], x["time_ms"]) == ("cuda", "PASS", None) for x in lines)
    solutions = [f.name for f in ALL if f.name.startswith("solution/")]
    judged = {(x["fixture"], x["seed"]) for x in lines}
    assert {(name, seed) for name in solutions for seed in range(2, 10)} <= judged


def test_claims_are_answered_in_the_record_on_a_card_by_numbers():
    lines = records.read(ROOT / "docs" / "results" / "check_fixtures.jsonl")
    told = {x["device"]: x["claims"] for x in lines if x["fixture"] == CLAIMS}
    assert set(told) == {"cuda", "emulated"}
    for device, answers in told.items():
        *numbers, cause = answers
        assert [a["claim"] for a in numbers] == [
            "max_abs_err", "gate_fraction", "time_ms", "baseline_ms"
        ]  # fmt: skip
        assert cause["answer"].startswith("measured: ")
        for a in numbers:
            assert (a["measured"] is None) == (device == "emulated")
            if a["claim"].endswith("_ms"):
                assert a.get("holds") is (False if device == "cuda" else None)


def test_a_right_kernel_in_a_folder_of_wrong_ones_disagrees(cache):
    path = SUBMISSIONS / "correct" / "fp16-matmul" / "tensor_core.cu"
    wanted, options = Fixture("x", path, "fp16-matmul", "FAIL", "any"), Options(seed=SEED)
    line = judge(wanted, replace(options, timed=False), cache, isolated=False)
    assert not line["agrees"]


@pytest.mark.parametrize("name", NAMES)
def test_there_are_enough_fixtures(name):
    wrong = [f for f in ALL if f.name.startswith(f"wrong/{name}/")]
    right = [f for f in ALL if f.name.startswith(f"correct/{name}/")]
    assert len(wrong) >= 6
    assert len(right) >= (8 if name == "fp16-matmul" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_power_certificate_holds(name):
    from gpulab.check.certificate import certificate

    lines = certificate(exercises.get(name), 5)
    assert {line.mutant for line in lines if line.status == "passes"} == set()
    assert sum(line.status == "caught" for line in lines) >= 8


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("gpulab.ops.matmul_judge.power.certify", "correct/fp16-matmul/tensor_core.cu"),
        ("gpulab.ops.rows_judge.certify", "correct/log-softmax/online.cu"),
    ],
)
def test_a_mutant_that_gets_through_makes_every_verdict_inconclusive(
    target, path, monkeypatch, judged
):
    from gpulab.numerics.power import Certificate

    def blind(*_, **__):
        return (Certificate("dropped_term", "passes", (), ("x",)),)

    monkeypatch.setattr(target, blind)
    result = judged(SUBMISSIONS / path, seed=1, timed=False)
    assert result.verdict == "INCONCLUSIVE"
    assert "dropped_term" in result.reason
    assert result.exit_code == 3


def test_the_exercise_decides_how_often_inputs_are_read(judged, monkeypatch):
    solution = SUBMISSIONS / "correct" / "online-softmax" / "warp_a_row.cu"
    assert judged(solution, timed=False).verdict == "PASS"
    stricter = replace(exercises.get("online-softmax"), most_reads=1)
    monkeypatch.setitem(exercises.catalogue(), "online-softmax", stricter)
    result = judged(solution, timed=False)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", "too-many-passes")


def test_a_row_whose_roundings_all_err_the_same_way_is_right(judged, monkeypatch):
    """In a row of few values, summed in order, as seed 42 draws one: the drawn case beside the
    first ones."""
    given = exercises.get("cross-entropy")
    monkeypatch.setitem(
        exercises.catalogue(), "cross-entropy", replace(given, shapes=given.shapes[:4])
    )
    path = SUBMISSIONS / "correct" / "cross-entropy" / "thread_a_row.cu"
    assert judged(path, seed=42, timed=False).verdict == "PASS"


def test_wmma_is_judged_by_what_each_capability_does_it_with(judged, tmp_path):
    text = (SUBMISSIONS / "correct" / "fp16-mma" / "wmma.cu").read_text()
    path = tmp_path / "wmma.cu"
    path.write_text(text.replace("exercise=fp16-mma", "exercise=fp16-matmul"))
    result = judged(path, capability=(7, 5), timed=False)
    assert result.verdict == "PASS", result.reason
    assert result.facts["instructions"] == ["mma.sync.m16n8k8.f32.f16.f16.f32"]
