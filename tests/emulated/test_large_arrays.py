"""Repeated entries must give repeated results: the script's comparison, at small sizes."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import large_arrays
from large_arrays import FEW, check, chosen, elements, large

from gpulab import ops, registry
from gpulab.lab.runner import KernelRunner
from gpulab.lab.verdict import lesson_holds
from gpulab.runtime.emulated import EmulatedDevice

RESULTS = large_arrays.ROOT / "docs" / "results" / "large_arrays.jsonl"
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


def test_one_case_of_each_kernel_and_no_lesson():
    for op in FEW:
        cases = list(chosen(op, None))
        names = [(c.spec.backend, c.spec.name) for c in cases]
        assert len(set(names)) == len(names)
        assert not any(c.variant.lesson or c.spec.backend == "library" for c in cases)
    assert list(chosen("softmax", "index32")) == []


RECORDED = [json.loads(line) for line in RESULTS.read_text().splitlines()]


def test_every_kernel_held_past_2_31_elements_on_a_card():
    held = {(r["op"], r["kernel"]) for r in RECORDED if "judged" in r}
    assert held == {(op, c.label) for op in FEW for c in chosen(op, None)}
    for record in RECORDED:
        if "judged" in record:
            assert (record["verdict"], record["environment"]["device"]) == ("PASS", "cuda")
            assert record["elements"] > 1 << 31


def test_a_32_bit_offset_fails_beyond_2_32_elements_on_a_card_and_the_honest_kernel_passes():
    """The command's own records: every row from 2^32 / 4096 on was never written."""
    honest, lesson = (r for r in RECORDED if "judged" not in r)
    assert (honest["kernel"], lesson["kernel"]) == ("online", "index32")
    assert honest["dims"] == lesson["dims"] == {"rows": 1048673, "cols": 4096}
    assert honest["verdict"] == "PASS"
    assert lesson["first_bad_index"] == [1 << 20, 0]
    assert lesson["reason"].startswith(f"unwritten: normal: {97 * 4096} of ")
    declared = next(c for c in registry.cases("softmax", kernel="index32")).variant
    assert lesson_holds(lesson | {"shown_by": declared.shown_by})
    assert not lesson_holds(lesson | {"shown_by": ()})
