"""What registers and local memory hold before they are set must not go into a result."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpulab.check import unset
from gpulab.check.evidence import Result
from gpulab.check.subject import Expected
from gpulab.emulator import values
from gpulab.errors import FaultError, KernelTimeoutError
from gpulab.exercises.base import Shape

MAXIMUM = (
    Path(__file__).resolve().parents[1]
    / "submissions/wrong/softmax/uninitialised/maximum_never_set.cu"
)
NAN = float("nan")
SHAPE = Shape({"m": 1, "n": 2, "k": 4}, "", ("normal",))


def held(second, right=2.0):
    """A check whose second launch on the emulated device returns this, or raises it."""

    def run(inputs, *, poison):
        if isinstance(second, Exception):
            raise second
        return SimpleNamespace(outputs={"c": np.array([[1, second]], np.float32)})

    def at(dims, unset):
        assert unset == values.OTHERWISE_UNSET != values.UNSET
        return run

    one = Expected("c", "fp32", np.array([[1.0, right]]), np.zeros((1, 2)), np.zeros(0), np.isnan)
    return SimpleNamespace(
        watched=SimpleNamespace(load=lambda: None, at=at),
        subject=SimpleNamespace(expected=lambda *_: (one,)),
        result=Result(""),
        setting=dict,
        stored=lambda _: {},
        token=lambda _: "token",
    )


@pytest.mark.parametrize(
    ("first", "second", "slug"),
    [
        (2.0, 2.0, None),
        (NAN, NAN, None),  # computed by the kernel
        (NAN, 3.0, "nan"),
        (2.0, 3.0, "uninitialised"),  # a maximum passes over NaN
        (0.0, -0.0, "uninitialised"),  # one bit
        (2.0, FaultError("an access outside"), "uninitialised"),  # an index that nobody set
        (2.0, KernelTimeoutError("the limit"), None),
    ],
)
def test_what_is_another_with_other_values_left_was_set_by_nobody(first, second, slug):
    """Of two elements the second is told of."""
    check = held(second)
    assert unset.look(check, SHAPE, {"c": np.array([[1, first]], np.float32)}) is bool(slug)
    if not slug:
        assert check.result.diagnosis is None
        assert check.result.stages == []
        return
    told = check.result.diagnosis
    assert told.slug == slug
    assert "nobody set" in told.text
    assert [(s.name, s.status) for s in check.result.stages] == [("state", "FAIL")]
    assert check.result.facts["replay"] == "token"
    if not isinstance(second, Exception):
        assert (told.index, told.got, told.wanted, told.share) == ((0, 1), second, 2.0, 0.5)


def test_nan_that_belongs_there_is_not_what_nobody_set():
    """What differs elsewhere is still told of, by another name."""
    check = held(NAN, right=NAN)
    assert unset.look(check, SHAPE, {"c": np.array([[3, NAN]], np.float32)})
    assert (check.result.diagnosis.slug, check.result.diagnosis.index) == ("uninitialised", (0, 0))


def test_without_an_emulated_device_nothing_is_looked_at():
    check = held(3.0)
    check.watched = None
    assert not unset.look(check, SHAPE, {"c": np.array([[1, 2.0]], np.float32)})


def test_a_maximum_that_passes_over_nan_is_seen_to_start_with_anything(judged):
    result = judged(MAXIMUM, timed=False)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == (
        "FAIL", "uninitialised", 1
    )  # fmt: skip
    assert "of the elements of y depend on" in result.diagnosis.text
    assert "rows13" in result.facts["replay"]
