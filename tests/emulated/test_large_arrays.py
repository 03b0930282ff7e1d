"""Repeated entries must give repeated results: the script's comparison, at small sizes."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import large_arrays
from large_arrays import FEW, check, chosen, elements, large

from gpulab import ops
from gpulab.lab.runner import KernelRunner
from gpulab.runtime.emulated import EmulatedDevice

SOFTMAX = next(c for c in chosen("softmax", "online") if c.spec.backend == "raw")
SMALL = {"rows": 5, "cols": 64}


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice((9, 0))


@pytest.fixture
def checked(device):
    return partial(check, SOFTMAX, device, SMALL, large(SOFTMAX, SMALL, 1000))


def after_launch(monkeypatch, change):
    """Kernels of more rows than were judged do something else as well."""

    class Runner(KernelRunner):
        def bind(self, arrays):
            start = super().bind(arrays)

            def launch():
                report = start()
                if self.dims["rows"] > SMALL["rows"]:
                    change(self.device, arrays)
                return report

            return launch

    monkeypatch.setattr(large_arrays, "KernelRunner", Runner)


def test_repetitions_of_the_judged_rows_pass(checked):
    line = checked()
    assert (line["verdict"], line["reason"]) == ("PASS", None)
    assert line["dims"] == {"rows": 26, "cols": 64}
    assert line["elements"] == 26 * 64


@pytest.mark.parametrize("row", [0, 5, 20, 25])
def test_one_wrong_row_anywhere_fails(checked, monkeypatch, row):
    def spoil(device, arrays):
        one = device.part(arrays["y"], row, row + 1)
        codes = device.download(one)
        codes[0, -1] ^= 1
        device.machine.write(one.handle, codes)

    after_launch(monkeypatch, spoil)
    line = checked()
    assert (line["verdict"], line["reason"]) == ("FAIL", "y is not the judged result repeated")


def test_a_row_that_another_one_has_overwritten_fails(checked, monkeypatch):
    """What an offset that wraps does: row 21 = 1 mod 5 lands on row 3."""

    def wrap(device, arrays):
        row = device.download(device.part(arrays["y"], 21, 22))
        device.machine.write(device.part(arrays["y"], 3, 4).handle, row)

    after_launch(monkeypatch, wrap)
    assert checked()["verdict"] == "FAIL"


def test_a_changed_input_fails(checked, monkeypatch):
    def spoil(device, arrays):
        device.machine.write(device.part(arrays["x"], 25, 26).handle, np.zeros(64, np.uint16))

    after_launch(monkeypatch, spoil)
    assert checked()["reason"] == "the kernel wrote to x"


@pytest.mark.parametrize("op", list(FEW))
def test_sizes_reach_past_32_bits_and_end_within_a_repetition(op):
    for case in chosen(op, None):
        for few in FEW[op]:
            whole, along = large(case, few, 1 << 31), ops.get(op).dims[0]
            ops.get(op).check_dims(whole)
            assert elements(case, whole) - elements(case, few) > 1 << 31
            assert whole[along] % few[along] == 1
            assert all(few[along] % p for p in range(2, few[along])), "a prime number of entries"


def test_one_case_of_each_kernel_and_lessons_only_by_name():
    for op in FEW:
        cases = list(chosen(op, None))
        names = [(c.spec.backend, c.spec.name) for c in cases]
        assert len(set(names)) == len(names)
        assert not any(c.variant.lesson or c.spec.backend == "library" for c in cases)
    (lesson,) = chosen("softmax", "index32")
    assert lesson.variant.lesson
