"""What roundings to half and a wrong maximum look like in softmax, on results in plain NumPy."""

import numpy as np
import pytest

from gpulab import exercises
from gpulab.check import diagnose
from gpulab.check.subject import Setting, get_subject
from gpulab.ops.base import RunResult

DIMS = {"rows": 13, "cols": 137}
half = np.float16


def setting(name):
    return Setting(exercises.get(name).variant, (8, 9), False, DIMS, 3, ("fp16",))


def looks_like(name, result, inputs):
    subject = get_subject(exercises.get(name).op)

    def run(given, *, poison):
        x = np.asarray(given["x"])
        x = np.float64(x.view(half) if x.dtype.itemsize == 2 else x)
        with np.errstate(all="ignore"):
            return RunResult(result(x, given), inputs_unchanged=True)

    return diagnose.of_case(subject, setting(name), inputs, run)


def softmax(change):
    def result(x, given):
        d = x - x.max(axis=1, keepdims=True)
        return {"y": np.asarray(change(d), half)}

    return result


def narrow(value):
    return np.float64(np.asarray(value, half))


def total(d):
    return np.exp(d).sum(axis=1, keepdims=True)


ROUNDED = {
    "difference": lambda d: np.exp(narrow(d)) / total(narrow(d)),
    "the exponentials are": lambda d: narrow(np.exp(d)) / total(d),
    "the sum, once": lambda d: np.exp(d) / narrow(total(d)),
    "exponentials and complete sum": lambda d: narrow(np.exp(d)) / narrow(total(d)),
    "one over the sum": lambda d: np.exp(d) * narrow(1 / total(d)),
    "exponentials and one over": lambda d: narrow(np.exp(d)) * narrow(1 / total(d)),
}


@pytest.mark.parametrize("text", ROUNDED)
def test_what_is_rounded_to_half_is_no_running_sum_in_half(text):
    inputs = get_subject("softmax").inputs(setting("softmax"), "normal")
    found = looks_like("softmax", softmax(ROUNDED[text]), inputs)
    assert (found.slug, found.fix != "") == ("narrow-arithmetic", True), found
    assert text in found.text


def test_results_that_are_all_alike_as_they_should_be_are_not_called_constant():
    inputs = get_subject("softmax").inputs(setting("softmax"), "equal")
    found = looks_like("softmax", softmax(lambda d: 1.01 * np.exp(d) / total(d)), inputs)
    assert found.slug == "row-scale", found


def log_softmax(x, given):
    largest = x[:, :-1].max(axis=1, keepdims=True)
    return {"y": np.float32((x - largest) - np.log(np.float32(total(x - largest))))}


def cross_entropy(x, given):
    largest = x[:, :-1].max(axis=1)
    log = np.log(np.float32(np.exp(x - largest[:, None]).sum(axis=1)))
    label = np.asarray(given["labels"])
    loss = (largest - x[np.arange(len(x)), np.where(label < 0, 0, label)]) + log
    loss[label == -100] = 0.0
    return {"loss": np.float32(loss), "lse": np.float32(largest + log)}


@pytest.mark.parametrize(
    ("name", "result"), [("log-softmax", log_softmax), ("cross-entropy", cross_entropy)]
)
def test_an_infinite_sum_is_no_logarithm_of_a_softmax(name, result):
    subject = get_subject(exercises.get(name).op)
    (above,) = [b for b in subject.beyond(setting(name)) if "far above" in b.name]
    found = looks_like(name, result, above.inputs)
    assert found.slug == "missing-max", found
    assert "infinite" in found.text
