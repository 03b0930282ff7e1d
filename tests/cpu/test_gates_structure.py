"""Checks without numbers: shape, poison, changed inputs, repetition, non-finite places."""

import json

import gate_kernels as wrong
import numpy as np
import pytest
from gate_kernels import Row, change, runner, sequential

from gpulab.numerics import errors, structure
from gpulab.ops.base import RunResult
from gpulab.ops.matmul import MATMUL

DIMS = {"m": 20, "n": 24, "k": 33}
FP16 = Row("fp16")


def judge(row, run, dims=None, **options):
    return MATMUL.judge(row, DIMS if dims is None else dims, run, capability=(8, 9), **options)


def put(index, value):
    def edit(c, poison):
        c[index] = value

    return edit


def leave(index):
    def edit(c, poison):
        c.view(np.uint8).reshape(*c.shape, -1)[index] = poison

    return edit


@pytest.mark.parametrize(
    ("edit", "code", "index"),
    [
        (put(np.s_[:], np.nan), "nonfinite", (0, 0)),
        (put((13, 5), np.nan), "nonfinite", (13, 5)),
        (put((13, 5), np.inf), "nonfinite", (13, 5)),
        (leave((19, 23)), "unwritten", (19, 23)),
        (leave(np.s_[19]), "unwritten", (19, 0)),
        (leave(np.s_[:, 23]), "unwritten", (0, 23)),
        (leave(np.s_[:]), "unwritten", (0, 0)),
        (
            lambda c, poison: c.__setitem__((3, 4), c[3, 4] * (1 + poison)),
            "nondeterministic",
            (3, 4),
        ),
    ],
)
def test_structure(edit, code, index):
    j = judge(FP16, change(edit, FP16, sequential))
    assert j.verdict == "FAIL"
    assert j.reason.code == code
    assert j.reason.index == index
    assert not j.arithmetic_passed
    assert j.to_record()["first_bad_index"] == list(index)


@pytest.mark.parametrize("at_once", [1, 24, 25, 100])
def test_large_results_are_compared_a_piece_at_a_time(monkeypatch, at_once):
    monkeypatch.setattr(structure, "_AT_ONCE", at_once)
    first, second = (np.full((5, 12), byte * 0x0101, np.uint16) for byte in structure.POISONS)
    first[:3], second[:3] = 7, 7
    first[3], second[3] = 8, 9
    found = structure.check_written(first, second)
    assert (found.count, found.index) == (12, (4, 0))
    found = structure.check_repeat(first, second)
    assert (found.count, found.index) == (12, (3, 0))
    assert structure.check_written(first[:4], second[:4]) is None
    assert structure.check_repeat(first[:3], second[:3]) is None


def test_same_bits():
    nan = np.full((3, 5), np.nan, np.float32)
    assert structure.same_bits(nan, nan.copy())
    assert not structure.same_bits(np.zeros(3, np.float32), -np.zeros(3, np.float32))
    assert not structure.same_bits(nan, nan.view(np.uint32))
    assert not structure.same_bits(nan, nan[:, :4])
    for size in range(1, 20):
        one = np.arange(size, dtype=np.uint8)
        for at in range(size):
            other = one.copy()
            other[at] ^= 128
            assert not structure.same_bits(one, other)
        assert structure.same_bits(one, one.copy())


def test_an_element_that_happens_to_hold_one_poison_is_written():
    """Only an element that follows both colours is unwritten."""
    pattern = np.frombuffer(b"\xa5" * 4, np.float32)[0]
    j = judge(FP16, change(put((2, 2), pattern), FP16, sequential))
    assert j.reason.code != "unwritten"


def test_inputs_changed():
    def run(inputs, *, poison):
        return RunResult(runner(FP16, sequential)(inputs, poison=poison).outputs, False)

    assert judge(FP16, run).reason.code == "inputs-changed"


@pytest.mark.parametrize(
    "make",
    [
        lambda c: c.T,
        lambda c: c.astype(np.float64),
        lambda c: c.astype(np.float16),
        lambda c: c[:-1],
        lambda c: c[0],
    ],
)
def test_shape_and_type(make):
    def run(inputs, *, poison):
        return RunResult(
            {"c": make(runner(FP16, sequential)(inputs, poison=poison).outputs["c"])}, True
        )

    j = judge(FP16, run)
    assert (j.verdict, j.reason.code) == ("FAIL", "shape")
    json.dumps(j.to_record(), allow_nan=False)


def test_no_output():
    assert judge(FP16, lambda inputs, *, poison: RunResult({}, True)).reason.code == "shape"


def test_atomics_may_differ_between_runs_but_not_leave_elements():
    def last_bits(c, poison):
        c[...] = np.nextafter(c, np.float32(np.inf if poison == 0xA5 else -np.inf))

    kernel = change(last_bits, FP16, wrong.exact)
    assert judge(FP16, kernel).reason.code == "nondeterministic"
    allowed = judge(FP16, kernel, atomics=True)
    assert "nondeterministic" not in {r.code for r in allowed.reasons}
    assert (
        judge(FP16, change(leave((0, 0)), FP16, sequential), atomics=True).reason.code
        == "unwritten"
    )


def test_non_finite_inputs_must_reach_their_elements():
    def hides(a, b):
        c = sequential(a, b)
        return np.where(np.isfinite(c), c, 0.0)

    quick = judge(FP16, runner(FP16, hides))
    full = judge(FP16, runner(FP16, hides), effort="full")
    assert quick.verdict == "PASS"
    assert (full.verdict, full.reason.code, full.reason.where) == (
        "FAIL",
        "nonfinite",
        "non_finite",
    )


def test_clamped_tails_meet_an_infinity():
    """Reading past K as the last row of B times a zero of A: 0 * inf is NaN."""

    def clamped(a, b):
        pad = -a.shape[1] % 16
        return wrong.sequential(
            np.pad(a, ((0, 0), (0, pad))), np.concatenate([b, np.repeat(b[-1:], pad, axis=0)])
        )

    dims = {"m": 4, "n": 5, "k": 1}
    assert judge(FP16, runner(FP16, clamped), dims).verdict == "PASS"
    found = judge(FP16, runner(FP16, clamped), dims, effort="full")
    assert found.reason.code == "nonfinite"


@pytest.mark.parametrize("kind", [np.nan, np.inf, -np.inf])
def test_kinds_must_match_element_by_element(kind):
    right = np.array([[1.0, kind], [2.0, 3.0]])
    assert structure.check_kinds(right, right) is None
    for index, value in (((0, 1), 5.0), ((1, 0), kind)):
        got = right.copy()
        got[index] = value
        found = structure.check_kinds(got, right)
        assert found is not None
        assert (found.index, found.count) == (index, 1)
    if np.isinf(kind):
        opposite = right.copy()
        opposite[0, 1] = -kind
        assert structure.check_kinds(opposite, right).index == (0, 1)


def test_what_the_usual_allclose_says_is_what_numpy_says():
    special = [0.0, 1.0, 1.0 + 1e-3, 1.02, 1e30, np.inf, -np.inf, np.nan]
    for one in special:
        for other in special:
            close = {}
            errors.usual_allclose(close, np.array([one]), np.array([other]))
            for t in errors.USUAL:
                with np.errstate(all="ignore"):
                    want = bool(np.allclose(one, other, rtol=t, atol=t, equal_nan=True))
                assert close[f"{t:g}"] == want, (one, other)
