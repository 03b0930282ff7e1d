"""Large arrays repeat a few rows: what repeats is seen on the device and judged once, and what does
not comes back and is judged whole."""

import numpy as np
import pytest

from gpulab import ops, registry
from gpulab.formats import encode
from gpulab.lab.measure import _Sets
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.repeat import repeated
from gpulab.ops import rows_data
from gpulab.ops.base import RunResult
from gpulab.runtime.emulated import EmulatedDevice

DIMS = {"rows": 40, "cols": 64}
SOFTMAX = ops.get("softmax")
(CASE,) = registry.cases("softmax", kernel="online", backend="raw", format="bf16")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """13 of the 40 rows are distinct."""
    monkeypatch.setattr(rows_data, "DISTINCT_ELEMENTS", 1 << 10)


@pytest.fixture(scope="module")
def runner():
    return KernelRunner(CASE, EmulatedDevice((8, 9)), DIMS)


def stored():
    return SOFTMAX.stored_inputs(CASE.variant, DIMS, "normal", 0)


def judged(run):
    return SOFTMAX.judge(CASE.variant, DIMS, run, capability=(8, 9))


def test_an_output_that_repeats_comes_back_as_its_distinct_rows(runner):
    inputs = stored()
    assert inputs["x"].shape == (13, 64)
    found = runner(inputs)
    assert (found.stands_for, found.outputs["y"].shape) == ({"y": 40}, (13, 64))
    whole = runner(runner.whole(inputs))
    assert whole.stands_for == {}
    assert np.array_equal(found.whole()["y"], whole.outputs["y"])


def test_an_output_that_does_not_repeat_comes_back_whole(runner, monkeypatch):
    def repeats(array, step):
        row = runner.device.part(array, 39, 40)  # another one than the kernel wrote
        runner.device.machine.write(row.handle, np.zeros(64, np.uint16))
        return EmulatedDevice.repeats(runner.device, array, step)

    monkeypatch.setattr(runner.device, "repeats", repeats)
    found = runner(stored())
    assert (found.stands_for, found.outputs["y"].shape) == ({}, (40, 64))
    j = judged(runner)
    assert j.verdict == "FAIL"
    assert (39, 0) in {r.index for r in j.reasons}


def test_judged_by_its_distinct_rows_a_kernel_gets_the_same_numbers(runner):
    short = judged(runner)
    whole = judged(lambda inputs, *, poison: RunResult(runner(inputs, poison=poison).whole(), True))
    assert short.verdict == whole.verdict == "PASS"
    for one, other in zip(short.families, whole.families, strict=True):
        assert one.max_abs_err == other.max_abs_err
        assert one.interval_fraction == other.interval_fraction
    assert [p.checked for p in (*short.probes, *whole.probes)] == [39 * 64, 40 * 64]
    assert short.coverage_text == "every element is checked; the 40 rows repeat 13 distinct ones"


def test_a_repetition_that_one_run_has_and_another_lacks_is_no_repetition(runner):
    runs = []

    def run(inputs, *, poison):
        found = runner(inputs, poison=poison)
        runs.append(found)
        if len(runs) != 2:
            return found
        y = found.whole()["y"]
        y[30, 5] ^= 1
        return RunResult({"y": y}, True)

    assert "nondeterministic" in {r.code for r in judged(run).reasons}


@pytest.mark.parametrize("rows", [7, 12, 39])
def test_rows_that_are_not_the_distinct_ones_stand_for_nothing(runner, rows):
    def run(inputs, *, poison):
        found = runner(inputs, poison=poison)
        return RunResult({"y": repeated(found.outputs["y"], rows)}, True, {"y": 40})

    assert judged(run).reason.code == "shape"


def test_timed_sets_shift_the_distinct_rows_and_verify_all(runner):
    held = _Sets(runner, stored(), 3)
    for i in range(3):
        held.refill(i)
        assert held.verify(i).startswith("y[0, 0] is ")
        held.launch(i)
        assert held.verify(i) is None
    x = [runner.device.download(each["x"]) for each in held.inputs]
    assert np.array_equal(x[1], repeated(np.roll(stored()["x"], 1, axis=0), 40))
    last = runner.device.part(held.outputs[2]["y"], 39, 40)
    runner.device.machine.write(last.handle, encode("bf16", np.full(64, 3.0)))
    assert held.verify(2).startswith("y[39, 0] is 3, was ")
    held.free()
