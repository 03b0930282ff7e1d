"""On a card a submission is also run where it can be looked into: the emulated device beside it.

The card is pretended: another emulated device, of which only outputs are seen.
"""

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpulab import arch, exercises
from gpulab.check import workbench
from gpulab.errors import FaultError, KernelTimeoutError
from gpulab.ops import rows_data
from gpulab.runtime.device import LaunchReport
from gpulab.runtime.emulated import EmulatedDevice

TESTS = Path(__file__).resolve().parents[1]
WRONG = TESTS / "submissions" / "wrong" / "fp16-matmul"
NAIVE = TESTS / "submissions" / "correct" / "fp16-matmul" / "naive.cu"


class Pretended(EmulatedDevice):
    """Sees no fault of a kernel and has no state that it tells of.

    What a register or local memory holds before anything is put there is 0, with ``changes``
    another float in every launch.
    """

    changes = False

    def __init__(self, capability, store):
        super().__init__(capability, store=store)
        self.machine.track = False
        self.machine.memory.track = False
        self.launches = 0

    def _bind(self, function, plan, args):
        start = super()._bind(function, plan, args)

        def launch():
            self.launches += self.changes
            left = int(np.float32(self.launches).view(np.uint32)) * (1 + (1 << 32))
            self.machine.unset = left
            with contextlib.suppress(FaultError):
                return start()
            return LaunchReport()

        return launch

    def free(self, *arrays):
        with contextlib.suppress(FaultError):
            super().free(*arrays)


@pytest.fixture
def on_card(monkeypatch, judged):
    """Judge as on a card of a capability."""
    shown = exercises.get("fp16-matmul")
    small = replace(shown, timed={"m": 24, "n": 20, "k": 40})
    monkeypatch.setitem(exercises.catalogue(), "fp16-matmul", small)

    def run(path, capability=(9, 0), **options):
        inner = workbench.open_mode

        def opened(kind, asked, mode, store):
            if kind == "cuda":
                return Pretended(min(capability, (9, 0)), store)
            return inner(kind, asked, mode, store)

        monkeypatch.setattr(workbench, "open_mode", opened)
        describe = workbench.Workbench.describe

        def told(self):
            message = describe(self)
            if self.kind == "cuda":
                message["capability"] = list(capability)
            return message

        monkeypatch.setattr(workbench.Workbench, "describe", told)
        return judged(path, device="cuda", timed=False, **options)

    return run


def stage(result, name):
    return next(s for s in result.stages if s.name == name)


def test_a_right_kernel_is_judged_at_the_timed_size_and_watched(on_card):
    result = on_card(NAIVE)
    assert result.verdict == "PASS", result.reason
    assert {"m": 24, "n": 20, "k": 40} in result.facts["shapes"]
    assert stage(result, "races").status == "PASS"
    assert "sectors a load" in stage(result, "memory").text
    assert "32 launches" in stage(result, "state").text


@pytest.mark.parametrize(
    ("path", "slug", "code"),
    [
        ("race/no_second_barrier.cu", "race", 6),
        ("uninitialised/adds_to_the_output.cu", "uninitialised", 6),
        ("out-of-bounds/no_guard.cu", "out-of-bounds", 6),
        ("barrier-divergence/barrier_in_a_branch.cu", "barrier-divergence", 6),
        ("scaled/twice.cu", "scaled", 1),
    ],
)
def test_what_a_card_does_not_show_is_seen_beside_it(path, slug, code, on_card):
    result = on_card(WRONG / path)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == ("FAIL", slug, code)


def test_a_card_that_is_not_emulated_is_not_watched_and_says_so(on_card, monkeypatch):
    few = SimpleNamespace(**{**vars(arch), "EMULATED": ((8, 9),)})
    monkeypatch.setattr("gpulab.check.session.arch", few)
    result = on_card(NAIVE)
    assert result.verdict == "PASS", result.reason
    assert stage(result, "races").status == "not run"
    assert "sm_90 is not emulated" in stage(result, "races").text
    assert "writes beside arrays alone" in stage(result, "faults").text


class Slow:
    """Exceeds its budget from a size on."""

    def __init__(self, most):
        self.most, self.dims = most, {}

    def load(self):
        pass

    def at(self, dims):
        self.dims = dims
        return self

    def __call__(self, inputs, *, poison):
        if self.dims["m"] > self.most:
            raise KernelTimeoutError("the budget is exceeded")
        shape = self.dims["m"], self.dims["n"]
        return SimpleNamespace(outputs={"c": np.zeros(shape, np.float32)})


@pytest.mark.parametrize(("most", "verdict"), [(1, "PASS"), (0, "FAIL")])
def test_what_is_too_slow_to_emulate_is_judged_on_the_card_alone(
    most, verdict, on_card, monkeypatch
):
    """But a kernel that does not even end for one element never does."""
    monkeypatch.setattr("gpulab.check.session.Check._watch", lambda *_: Slow(most))
    result = on_card(NAIVE)
    assert result.verdict == verdict, result.reason
    if verdict == "PASS":
        assert "the budget is exceeded" in stage(result, "races").text
    else:
        assert (result.diagnosis.slug, result.exit_code) == ("timeout", 5)


def test_a_race_that_shows_at_the_timed_size_alone_is_called_a_race(on_card, tmp_path):
    text = (WRONG / "race" / "no_second_barrier.cu").read_text()
    assert "float sum = 0.0f" in text
    path = tmp_path / "kernel.cu"
    path.write_text(text.replace("float sum = 0.0f", "float sum = m == 24 && k == 40 ? 1.0f : 0"))
    result = on_card(path)
    assert (result.diagnosis.slug, result.exit_code) == ("race", 6)


def test_what_is_wrong_at_the_timed_size_alone_is_told_so(on_card, tmp_path):
    text = NAIVE.read_text()
    assert "float sum = 0.0f" in text
    path = tmp_path / "kernel.cu"
    path.write_text(text.replace("float sum = 0.0f", "float sum = m == 24 && k == 40 ? 1.0f : 0"))
    result = on_card(path)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", "timed-size")
    assert "m24" in result.facts["replay"]


def test_a_device_that_does_not_open_says_nothing_about_the_kernel(judged, monkeypatch):
    def broken(*_):
        raise FaultError("the worker died", fault="crash")

    monkeypatch.setattr(workbench.Workbench, "describe", broken)
    result = judged(NAIVE)
    assert (result.verdict, result.diagnosis.slug) == ("INCONCLUSIVE", "refused")
    assert "the worker died" in result.reason


@pytest.mark.parametrize("cheats", [True, False])
def test_what_is_judged_whole_by_rows_that_repeat_is_judged_by_others_too(
    on_card, tmp_path, monkeypatch, cheats
):
    monkeypatch.setattr(rows_data, "DISTINCT_ELEMENTS", 1 << 9)
    small = replace(exercises.get("softmax"), timed={"rows": 100, "cols": 16})
    monkeypatch.setitem(exercises.catalogue(), "softmax", small)
    assert rows_data.distinct_rows(100, 16) == 31
    text = (TESTS / "exploits" / "files" / "rows_that_repeat.cu").read_text()
    path = tmp_path / "kernel.cu"
    path.write_text(
        text.replace("row % 127", "(rows == 100 ? row % 31 : row)" if cheats else "row")
    )
    result = on_card(path)
    told = stage(result, "timed size")
    if cheats:
        assert (result.verdict, result.diagnosis.slug) == ("FAIL", "timed-size")
        assert result.diagnosis.index[0] >= 31
    else:
        assert result.verdict == "PASS", result.reason
        assert "judged whole, and " in told.text
        assert "rows of inputs that do not repeat" in told.text


@pytest.mark.parametrize("shown", ["float sum = 0.0f;", "float sum = k == 128;"])
def test_a_race_that_only_long_loops_show_is_looked_for_beside_the_card(
    shown, on_card, monkeypatch, tmp_path
):
    """At k up to 64 there is one tile; the timed size has two, and a card shows nothing of it, or
    results that are wrong at that size alone."""
    text = (WRONG.parent / "tiled-matmul" / "race" / "deep_tile.cu").read_text()
    assert "float sum = 0.0f;" in text
    deep = tmp_path / "kernel.cu"
    deep.write_text(text.replace("float sum = 0.0f;", shown))
    given = exercises.get("tiled-matmul")
    short = tuple(replace(s, dims={**s.dims, "k": min(s.dims["k"], 64)}) for s in given.shapes)
    small = replace(given, shapes=short, timed={"m": 24, "n": 20, "k": 128})
    monkeypatch.setitem(exercises.catalogue(), "tiled-matmul", small)
    result = on_card(deep)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == ("FAIL", "race", 6)
    assert "m24,n20,k128" in result.facts["replay"]


@pytest.fixture
def few_shapes(monkeypatch):
    """fp8-matmul at its two smallest shapes: where it is not wrong, all are judged."""
    given = exercises.get("fp8-matmul")
    small = replace(given, shapes=given.shapes[:2], timed={"m": 24, "n": 20, "k": 40})
    monkeypatch.setitem(exercises.catalogue(), "fp8-matmul", small)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sum_never_set.cu", False),
        ("local_sums_never_set.cu", False),
        ("local_sums_never_set.cu", True),
    ],
)
def test_a_value_that_nobody_set_is_seen_whatever_the_card_holds(
    name, changes, on_card, few_shapes, monkeypatch
):
    """With 0 there the card's results are right, with another number each time they are not."""
    monkeypatch.setattr(Pretended, "changes", changes)
    result = on_card(WRONG.parent / "fp8-matmul" / "nan" / name)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == ("FAIL", "nan", 1)
    assert stage(result, "state").status == "FAIL"
    assert (stage(result, "repeat").status == "FAIL") == changes
    assert stage(result, "races").status == "PASS"
    assert not {"timing", "claims"} & {s.name for s in result.stages}
    assert "nobody set" in result.diagnosis.text
    assert result.diagnosis.index == (0, 0)
    assert "m1,n1,k1" in result.facts["replay"]
    assert np.isfinite([result.diagnosis.got, result.diagnosis.wanted]).all()
