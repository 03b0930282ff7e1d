"""The table of what the gates catch, on records made by hand."""

import io

import pytest
from rich.console import Console

from gpulab.lab import lessons


def family(name, interval, rms=0.5, *, close=(True, True), error=0.25, reasons=()):
    return {
        "family": name, "interval_fraction": interval, "rms_fraction": rms, "reasons": reasons,
        "max_abs_err_stored": error, "allclose": dict(zip(("0.01", "0.001"), close, strict=True)),
    }  # fmt: skip


def record(families, *, verdict="FAIL", shows_on=(), probes=(), lesson=True, reason=None, **more):
    caught = [f["family"] for f in families if f["reasons"]]
    caught += [p["probe"] for p in probes if p["reasons"]]
    reasons = [r for f in (*families, *probes) for r in f["reasons"]]
    return {
        "op": "softmax", "kernel": "no_max", "backend": "raw", "format": "fp16",
        "accumulator": "fp32", "output": "fp16", "contract": None, "device": "emulated",
        "capability": "8.9", "dims": {}, "note": "", "lesson": lesson, "verdict": verdict,
        "shows_on": list(shows_on), "families": families, "probes": list(probes),
        "caught_on": caught, "reasons": reasons, "reason": reason,
    } | more  # fmt: skip


NORMAL = family("normal", 0.4)
HIGH = family("high", None, None, close=(False, False), error=None,
              reasons=["interval: NaN", "contract: NaN"])  # fmt: skip
LOW = family("low", 9.0, reasons=["rms: 3 > 1", "interval: far"], close=(True, False))
PROBE = {"probe": "exact", "reasons": ["exact-probe: one bit"]}


def text(rows, absent=()):
    console = Console(width=200, file=io.StringIO())
    console.print(lessons.table(rows, absent))
    return console.file.getvalue()


def test_the_input_that_a_lesson_is_made_for_is_shown():
    (row,) = lessons.caught([record([NORMAL, HIGH, LOW], shows_on=("zero", "low"))])
    assert row["caught"]
    assert row["input"] == "low"
    assert row["failed_by"] == ["interval", "rms"]
    assert row["max_abs_err"] == 0.25
    assert row["allclose"] == {"0.01": True, "0.001": False}
    assert row["allclose_ordinary"] == {"0.01": True, "0.001": True}
    line = next(x for x in text([row]).splitlines() if "raw/no_max" in x)
    assert line.split()[-4:] == ["passes", "fails", "passes", "passes"]
    assert "interval, rms" in line


def test_else_the_worst_family_where_a_number_that_json_cannot_hold_is_the_worst():
    (row,) = lessons.caught([record([NORMAL, LOW, HIGH])])
    assert row["input"] == "high"
    assert row["failed_by"] == ["interval", "contract"]
    assert "not finite" in text([row])


def test_else_the_probe_that_saw_it():
    (row,) = lessons.caught([record([NORMAL], probes=[PROBE])])
    assert (row["caught"], row["input"], row["failed_by"]) == (True, "exact", ["exact-probe"])
    assert row["allclose"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        record([NORMAL], verdict="PASS"),
        record([NORMAL], verdict="INCONCLUSIVE", reason="power"),
        record([LOW], reasons=["unwritten: c[0]", "interval: far"]),  # not for its arithmetic
    ],
    ids=["passes", "inconclusive", "unwritten"],
)
def test_a_lesson_that_no_gate_catches_is_lost(wrong):
    good = record([NORMAL, HIGH], op="logsoftmax")
    rows = lessons.caught([good, wrong])
    assert lessons.lost(rows) == ["softmax raw/no_max fp16"]
    assert lessons.sentence(rows).startswith("FAIL: the gates catch 1 of 2 lessons")
    assert "nothing" in text(rows)
    assert lessons.lost(lessons.caught([good])) == []


def test_only_lessons_that_ran_are_asked():
    away = record([], verdict=None, reason="shows beyond 2^32 elements only", kernel="index32")
    broken = record([], error={"kind": "build"})
    honest = record([NORMAL], lesson=False, verdict="PASS", kernel="online")
    records = [away, broken, honest, record([LOW], kernel="half_sum")]
    assert len(lessons.caught(records)) == 1
    assert lessons.refused(records) == [away]
    assert "shows beyond 2^32 elements only" in text([], lessons.refused(records))


def test_the_sentence_counts_what_the_usual_comparison_lets_through():
    none = family("normal", 5.0, close=(False, False), reasons=["interval: far"])
    wide = family("normal", 5.0, close=(True, False), reasons=["interval: far"])
    families = ([none], [wide], [wide], [NORMAL, LOW])
    rows = lessons.caught([record(f, kernel=str(i)) for i, f in enumerate(families)])
    assert lessons.sentence(rows) == (
        "the gates catch 4 of 4 lessons; allclose on N(0, 1), as tests are usually written, "
        "passes 3 with rtol = atol = 0.01 and 1 with rtol = atol = 0.001"
    )


def test_a_lesson_judged_at_several_sizes_is_told_once_and_must_be_caught_at_each():
    here, there = record([HIGH]), record([NORMAL], verdict="PASS", dims={"rows": 2})
    away = record([], verdict=None, reason="too wide")
    assert len(lessons.caught([here, here])) == 1
    assert lessons.refused([here, away]) == []
    assert lessons.refused([away, away]) == [away]
    for order in ([here, there], [there, here]):
        assert lessons.lost(lessons.caught(order)) == ["softmax raw/no_max fp16"]
    other = record([HIGH], format="bf16")
    assert len(lessons.caught([here, other])) == 2
