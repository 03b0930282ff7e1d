"""``gpulab run`` on the emulated device, cut down to a few kernels: sections and exit code."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from gpulab import ops, registry
from gpulab.cli import main, run
from gpulab.lab import growth, suite
from gpulab.ops.matmul import MATMUL
from gpulab.runtime.emulated import EmulatedDevice

SIZES = ((16, 32), (16, 128))
KERNELS = {"simt", "online", "no_max", "mask_zero"}
SECTIONS = [
    suite.Section("softmax", {"rows": 9, "cols": 65}, "fp16"),
    suite.Section("attention", suite._attention(seq_q=9, seq_k=41, head_dim=16), "fp16"),
]
REAL = registry.cases


@pytest.fixture(scope="module")
def grown():
    return growth.growth(EmulatedDevice((8, 9)), SIZES, 3)


def test_growth_of_the_error_is_as_said_and_its_numbers_are_right(grown):
    assert growth.lost(grown) == []
    assert {r["kernel"] for r in grown} == {"simt", "mma"}
    assert len(grown) == 2 * 2 * len(SIZES)
    for side, k in SIZES:
        drawn = MATMUL.make_inputs({"m": side, "n": side, "k": k}, "normal", "fp16", 3)
        a, b = (drawn[x].astype(np.float16) for x in "ab")
        right = drawn["a"].astype(float) @ drawn["b"].astype(float)
        storage = np.sqrt(np.mean((a.astype(float) @ b.astype(float) - right) ** 2))
        total = np.zeros((side, side), np.float16)
        for i in range(k):  # a half sum, one term after the other, each product rounded once
            total = (np.outer(a[:, i], b[i]).astype(float) + total).astype(np.float16)
        simt = {
            r["accumulator"]: r
            for r in grown
            if r["kernel"] == "simt" and r["dims"]["k"] == k
        }  # fmt: skip
        assert simt["fp32"]["storage_rms"] == pytest.approx(storage)
        assert simt["fp32"]["error_vs_storage"] == pytest.approx(1.0, abs=1e-3)
        half = np.sqrt(np.mean((total - right) ** 2)) / storage
        assert simt["fp16"]["error_vs_storage"] == pytest.approx(half, rel=0.3)


def test_growth_is_refuted_by_a_float_row_that_moves_and_a_half_row_that_does_not(grown):
    def changed(accumulator, factor):
        rows = [
            r | {"error_vs_storage": r["error_vs_storage"] * (
                factor if r["accumulator"] == accumulator and r["dims"]["k"] == 128 else 1)}
            for r in grown
        ]  # fmt: skip
        return [r | {"holds": growth._holds(r, rows)} for r in rows]

    assert growth.lost(changed("fp32", 1.005)) == []
    assert len(growth.lost(changed("fp32", 1.02))) == 2
    assert len(growth.lost(changed("fp32", 0.98))) == 2
    assert len(growth.lost(changed("fp16", 0.1))) == 2
    assert growth.sentence(changed("fp16", 0.1)).startswith("FAIL: simt with fp16 accumulator")
    assert growth.lost([r for r in grown if r["lesson"]]) == growth.lost([]) != []


def small(monkeypatch, *options, cases=lambda found: found, sections=SECTIONS):
    """The whole command with few kernels, at small sizes; ``cases`` may change what is found."""

    def few(op, **filters):
        found = REAL(op, **filters)
        return cases([c for c in found if c.spec.name in KERNELS and c.spec.backend == "raw"])

    monkeypatch.setattr(run, "LADDER", {"emulated": 48})
    monkeypatch.setattr(run, "GROWTH", {"emulated": SIZES})
    monkeypatch.setattr(suite, "SMALL", {"emulated": sections})
    monkeypatch.setattr(registry, "cases", few)
    return CliRunner().invoke(main, ["run", "--device", "emulated", *options])


def of_kind(records, kind):
    return [r for r in records if r.get("kind") == kind]


def test_run_judges_every_section_once_and_gives_one_verdict(monkeypatch):
    done = small(monkeypatch, "--json")
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in done.stdout.splitlines()]
    judged = [r for r in records if r.get("verdict")]
    keys = [(r["op"], r["kernel"], r["format"], r["accumulator"]) for r in judged]
    assert len(keys) == len(set(keys))  # nothing is judged twice
    assert {r["op"] for r in judged} == {"matmul", "softmax", "attention"}
    assert all(r["verdict"] == ("FAIL" if r["lesson"] else "PASS") for r in judged)
    assert all(r["time_ms"] is None for r in judged)
    taught = {(r["op"], r["kernel"]): r for r in of_kind(records, "lesson")}
    assert set(taught) == {("matmul", "simt"), ("softmax", "no_max"), ("attention", "mask_zero")}
    assert all(r["caught"] for r in taught.values())
    no_max = taught["softmax", "no_max"]
    assert no_max["input"] == "high"
    assert "interval" in no_max["failed_by"]
    assert no_max["max_abs_err"] is None  # NaN
    assert no_max["allclose"] == {"0.01": False, "0.001": False}
    assert no_max["allclose_ordinary"] == {"0.01": True, "0.001": True}
    assert len(of_kind(records, "growth")) == 2 * len(SIZES)
    assert records[-1]["exit_code"] == 0
    assert records[-1]["summary"].startswith("PASS: ")


def test_a_lesson_that_is_right_and_an_error_that_does_not_grow_fail_the_run(monkeypatch):
    def tamed(found):
        """The online softmax declared a lesson; nothing else of softmax or attention."""
        return [
            replace(c, variant=replace(c.variant, lesson=True)) if c.spec.name == "online" else c
            for c in found
            if c.spec.name in ("online", "simt") and c.spec.op != "attention"
        ]

    monkeypatch.setattr(growth, "FLAT", -1.0)  # nothing is flat enough
    done = small(monkeypatch, cases=tamed, sections=SECTIONS[:1])
    assert done.exit_code == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("FAIL: ")
    assert "no gate catches softmax raw/online fp16" in last
    assert "is not flat at 1" in last
    assert "yes, emulated" in done.stdout
    assert "FAIL, as it must" in done.stdout
    assert "ms" not in done.stdout.split()  # an emulated device has no time


@pytest.mark.parametrize(("rows", "whole"), [(0, 1), (1, 1), (3, 1), (4, 4), (5, 5), (6, 6)])
def test_what_fails_beside_the_rows_outweighs_missing_evidence(rows, whole):
    assert run.concluded(rows, "said", []) == (rows, "said")
    assert run.concluded(rows, "said", ["a", "b"]) == (whole, "FAIL: a; b; said")


def test_every_lesson_shows_in_the_sections_but_the_one_beyond_32_bits():
    for kind in ("emulated", "cuda"):
        hidden = {
            (s.op, c.spec.name): c.refusal((8, 9), kind, s.dims)
            for s in suite.SMALL[kind]
            for c in REAL(s.op, format=s.formats)
            if c.variant.lesson and c.refusal((8, 9), kind, s.dims)
        }
        assert set(hidden) <= {("softmax", "index32")}
        shown = {
            (s.op, c.spec.name)
            for s in suite.SMALL[kind]
            for c in REAL(s.op, format=s.formats)
            if c.variant.lesson
        }
        every = {
            (s.op, s.name)
            for s in registry.specs()
            if s.op != "matmul" and any(v.lesson for v in s.variants)
        }
        assert every - shown <= {("softmax", "index32")}


def test_section_dims_are_those_of_their_operations():
    for kind in ("emulated", "cuda"):
        for section in suite.sections(kind, full=True):
            ops.get(section.op).check_dims(section.dims)
