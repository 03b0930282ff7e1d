"""What the checker makes of numbers it was given: stages, floors, claims, places, journals."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gpulab.check import claims, diagnose, judge, ptx, sampling, speed
from gpulab.check.evidence import Result
from gpulab.check.folder import Journal
from gpulab.check.hypotheses import Evidence
from gpulab.check.runner import Code, Submitted
from gpulab.check.session import Options
from gpulab.check.subject import Expected, get_subject
from gpulab.check.submission import Launch
from gpulab.check.worker import digest
from gpulab.errors import FaultError, UsageError
from gpulab.exercises import get
from gpulab.exercises.base import Shape
from gpulab.numerics.contract import Contract
from gpulab.numerics.structure import POISONS

MATMUL = get("fp16-matmul")


def checked(**more):
    """What a stage needs of a check."""
    return SimpleNamespace(**{
        "result": Result("a.cu"), "options": Options(device="cuda"), "exercise": MATMUL,
        "capability": (9, 0), "seed": 3, "progress": lambda _: None, "judged": [],
        "subject": get_subject("matmul"), "token": lambda shape: "token", "timed_token": "token",
        "timed_shape": Shape(dict(MATMUL.timed), "", ("normal",)), **more,
    })  # fmt: skip


def statuses(result):
    return {s.name: s.status for s in result.stages}


# -- stages ----------------------------------------------------------------------------------------


def test_a_stage_that_failed_stays_so():
    result = Result("a.cu")
    for status in ("PASS", "FAIL", "PASS", "note"):
        result.note("witness", status, status)
    assert [(s.status, s.text) for s in result.stages] == [("FAIL", "FAIL")]


@pytest.mark.parametrize(
    ("error", "stage", "code"),
    [
        (FaultError("two threads", fault="race"), "races", 6),
        (FaultError("far off", fault="out_of_bounds"), "faults", 6),
        (UsageError("no such launch"), "structure", 2),
    ],
)
def test_an_error_belongs_to_its_stage(error, stage, code):
    check = checked()
    judge._broken(check, error, check.timed_shape)
    assert statuses(check.result) == {stage: "FAIL"}
    assert (check.result.verdict, check.result.exit_code) == ("FAIL", code)


def test_families_are_looked_at_before_probes():
    looked = []

    def inputs(setting, where):
        looked.append(where)

    check = checked(setting=lambda dims: None, subject=SimpleNamespace(inputs=inputs))
    wheres = ["exact", "one_hot", "uniform", "exact", ""]
    judgement = SimpleNamespace(reasons=[SimpleNamespace(where=w) for w in wheres])
    shape = Shape({"m": 1, "n": 1, "k": 1}, "", ("uniform",))
    assert judge._looks_like(check, None, shape, judgement) is None
    assert looked == ["uniform", "exact", "one_hot", "normal"]


# -- the timed size --------------------------------------------------------------------------------


@pytest.fixture
def three_rows(monkeypatch):
    """Rows 4, 7 and 9 of a result: what they must be, and what a kernel left there."""
    right = np.arange(1.0, 7.0).reshape(3, 2)
    one = Expected("c", "fp32", right, np.full(right.shape, 0.25), right, lambda got: got == right)
    monkeypatch.setattr(sampling, "_expected", lambda *_: (one,))
    subject = SimpleNamespace(moving=lambda _: {"c": 0})
    check = checked(subject=subject, setting=lambda dims: None)
    return check, np.array([4, 7, 9]), right.astype(np.float32)


@pytest.mark.parametrize("whole", [False, True])
def test_poison_that_is_left_is_wrong_only_where_all_was_computed(three_rows, whole):
    check, places, stored = three_rows
    stored.view(np.uint8)[1, 4:] = POISONS[0]
    seen = sampling._right(check, {}, places, {"c": stored}, whole=whole)
    if not whole:
        assert seen == 5
        return
    assert seen is None
    assert statuses(check.result) == {sampling.STAGE: "FAIL"}
    assert check.result.diagnosis.index == (7, 1)


def test_a_wrong_element_is_named_by_its_place_in_the_whole(three_rows):
    check, places, stored = three_rows
    stored[2, 0] = 50
    assert sampling._right(check, {}, places, {"c": stored}) is None
    found = check.result.diagnosis
    assert (found.slug, found.index) == ("timed-size", (9, 0))
    assert (found.got, found.wanted, found.bound) == (50, 5, 0.25)
    assert found.share == 1 / 6


@pytest.mark.parametrize(("times", "status"), [(0.98, "FAIL"), (1.02, "PASS")])
def test_no_kernel_is_faster_than_the_card(monkeypatch, times, status):
    peaks = {"sm_khz": 1_980_000, "multiprocessors": 132}
    least = 2 * 2048**3 / (132 * 1.98e9 * 4096) * 1e3
    answer = {"time_ms": {"median": times * least}, "timing": {}, "outputs": [], "peaks": peaks}
    monkeypatch.setattr(speed, "take", lambda *_: answer)
    check = checked()
    speed.times(check, None)
    assert statuses(check.result) == {"timing": status}
    assert check.result.facts["least_ms"] == pytest.approx(least)


@pytest.mark.parametrize(("off", "right"), [(0, True), (1, False)])
def test_each_timed_output_is_the_judged_one_in_the_place_of_its_inputs(monkeypatch, off, right):
    small = replace(MATMUL, timed={"m": 7, "n": 2, "k": 5})
    result = np.arange(14, dtype=np.float32).reshape(7, 2)

    class Worker:
        def ask(self, message, arrays=None, **_):
            if message["do"] == "run":
                return {"inputs": {n: digest(a) for n, a in arrays.items()}}, {"c": result}
            if message["do"] != "time":
                return {}, {}
            first = message["first"]
            shown = [np.roll(result, first + i + (off if i == 2 else 0), 0) for i in range(3)]
            return {"outputs": [[i, "c", digest(c)] for i, c in enumerate(shown)]}, {}

    monkeypatch.setattr(Submitted, "wire_plan", lambda self: [])
    run = Submitted(Worker(), Code("", "matmul", "c", Launch((), (), None)), small, 1)
    if right:
        assert len(speed.take(checked(), run, small, small.timed)["outputs"]) == 3
        return
    with pytest.raises(speed.WrongOutput, match="input set 2"):
        speed.take(checked(), run, small, small.timed)


# -- claims ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "claimed", "holds"),
    [
        ("time_ms", 1.0, True),  # 1.25 is measured
        ("time_ms", 0.99, False),
        ("time_ms", 1.5625, True),
        ("time_ms", 1.57, False),
        ("max_abs_err", 0.25, True),  # 0.5 is measured
        ("max_abs_err", 0.24, False),
        ("max_abs_err", 1.0, True),
        ("max_abs_err", 1.01, False),
        ("gate_fraction", 0.0, True),  # 0 is measured
        ("gate_fraction", 0.001, False),
    ],
)
def test_a_claim_holds_within_its_factor_on_either_side(name, claimed, holds):
    judgement = SimpleNamespace(families=[SimpleNamespace(max_abs_err=0.5)], contract_fraction=0.0)
    plain = replace(MATMUL, baseline=None)
    check = checked(exercise=plain, parsed=SimpleNamespace(claims={name: claimed}))
    check.judged.append((check.timed_shape, judgement))
    check.result.facts["time_ms"] = {"median": 1.25}
    claims.claims(check, None)
    (answer,) = check.result.facts["claims"]
    assert answer["holds"] is holds
    assert ("1 of 1 do not hold" in check.result.stages[0].text) is not holds


# -- what it looks like ----------------------------------------------------------------------------


def test_what_was_never_written_is_told_though_the_poison_is_within_the_bound():
    stored = [np.zeros((2, 2), np.float32) for _ in POISONS]
    for one, poison in zip(stored, POISONS, strict=True):
        one.view(np.uint8)[1, 4:] = poison  # the first colour is -2.9e-16: nearly 0
    right = np.zeros((2, 2))
    expected = Expected("c", "fp32", right, right + 1e-3, right, lambda got: np.abs(got) <= 1e-3)
    got = expected.values(stored[0])
    e = Evidence(None, {}, expected, got, ~expected.ok(got), {"c": (expected, got)})
    assert not e.bad.any()
    found = diagnose._of_output(get_subject("matmul"), e, tuple(stored))
    assert (found.slug, found.index, found.share) == ("unwritten", (1, 1), 0.25)


def test_of_two_instructions_the_looser_one_gives_the_bound():
    names = ["mma.sync.m16n8k32.f32.e4m3.e4m3.f32", "wgmma.m64n8k32.f32.e4m3.e4m3"]
    allowed = {
        n: Contract("e4m3", "fp32", "fp32", n, (9, 0)).allowance(512).relative for n in names
    }
    assert len(set(allowed.values())) == 2
    for order in (names, names[::-1]):
        found = ptx.loosest(order, "e4m3", "fp32", (9, 0), 512)
        assert found == max(names, key=lambda n: allowed[n])


def test_codes_that_are_widened_first_are_held_to_their_own_instruction():
    widened = "mma.sync.m16n8k16.f32.f16.f16.f32"
    own = "mma.sync.m16n8k32.f32.e4m3.e4m3.f32"
    assert ptx.loosest([widened], "e4m3", "fp32", (8, 9), 512) == own
    assert ptx.loosest([widened], "fp16", "fp32", (8, 9), 512) == widened
    assert ptx.loosest([widened], "fp32", "fp32", (8, 9), 512) is None


# -- many submissions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        ({}, True),
        ({"seed": 9}, True),  # the journal's own seed is taken over
        ({"capability": (9, 0)}, False),
        ({"device": "cuda"}, False),
        ({"timed": False}, False),
    ],
)
def test_results_of_other_options_are_not_taken_over(tmp_path, other, taken):
    options = Options(seed=4)
    with closing(Journal(tmp_path / "journal", options)) as journal:
        journal.add({"file": "a.cu", "seed": 4}, "digest")
    with closing(Journal(tmp_path / "journal", replace(options, **other))) as journal:
        found, seed = journal.read()
    assert (list(found), seed) == (([("a.cu", "digest")], 4) if taken else ([], None))
