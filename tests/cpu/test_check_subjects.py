"""What mistakes look like to the checker, on results of kernels in plain NumPy."""

import re

import attention_kernels
import int4_kernels
import numpy as np
import pytest

from gpulab import exercises
from gpulab.check import diagnose
from gpulab.check.session import Check, Options
from gpulab.check.subject import Setting, get_subject
from gpulab.numerics.approx import evaluate
from gpulab.ops import get as get_op
from gpulab.ops.base import RunResult


def looks_like(name, run, dims, where, seed=3, narrow=()):
    """The diagnosis of a kernel on inputs of a family or probe; None where nothing is wrong."""
    exercise = exercises.get(name)
    subject = get_subject(exercise.op)
    setting = Setting(exercise.variant, (8, 9), False, dims, seed, narrow)
    return diagnose.of_case(subject, setting, subject.inputs(setting, where), run)


def attention(kernel, where="normal", **changes):
    dims = attention_kernels.dims(**{"kv_heads": 2, "seq_k": 37, "head_dim": 9} | changes)
    run = kernel(attention_kernels.Row("fp16"), dims)
    return looks_like("attention", run, dims, where)


class FirstHead(attention_kernels.Kernel):
    def kv_head(self, head):
        return 0


class StopsEarly(attention_kernels.Kernel):
    def sees(self, entry, i, j, mask):
        return super().sees(entry, i, j, mask) and j < 32


class MaskBillion(attention_kernels.Kernel):
    def hidden(self, x):
        return np.float32(-1e9)


ATTENTION = [
    (attention_kernels.NoRescale, "ascending", {}, "no-rescale"),
    (attention_kernels.MaskZero, "normal", {"causal": 1}, "mask-zero"),
    (MaskBillion, "normal", {"causal": 1, "seq_q": 41}, "masked-average"),
    (attention_kernels.OffByOne, "normal", {"causal": 1}, "causal-off-by-one"),
    (attention_kernels.TopLeft, "normal", {"causal": 1}, "causal-alignment"),
    (attention_kernels.Unscaled, "normal", {}, "wrong-scale"),
    (attention_kernels.HalfScores, "high", {}, "scores-in-half"),
    (attention_kernels.HalfScores, "normal", {}, "scores-in-half"),
    (attention_kernels.HalfProbabilities, "normal", {}, "rounded-weights"),
    (attention_kernels.NoMax, "high", {}, "no-max"),
    (attention_kernels.EmptyRowsNaN, "normal", {"causal": 1, "seq_q": 41}, "masked-nan"),
    (attention_kernels.WrongLse, "normal", {}, "wrong-lse"),
    (attention_kernels.SkipsLastQuery, "normal", {}, "unwritten"),
    (FirstHead, "normal", {}, "heads-mixed"),
    (StopsEarly, "normal", {}, "dropped-terms"),
]


@pytest.mark.parametrize(("kernel", "where", "changes", "slug"), ATTENTION)
def test_mistakes_of_attention_are_named(kernel, where, changes, slug):
    found = attention(kernel, where, **changes)
    assert found is not None
    assert (found.slug, found.fix != "") == (slug, True), found


@pytest.mark.parametrize("kernel", [attention_kernels.Backwards, attention_kernels.Online])
@pytest.mark.parametrize("where", ["normal", "high", "non_finite", "one_hot"])
def test_right_attention_looks_like_nothing(kernel, where):
    assert attention(kernel, where, causal=1, seq_q=41) is None


INT4_DIMS = {"m": 7, "n": 19, "k": 91, "group": 16}
INT4 = {
    int4_kernels.Swapped: "nibbles-swapped",
    int4_kernels.Unsigned: "no-sign-extension",
    int4_kernels.ZeroPoint: "zero-point",
    int4_kernels.NextGroup: "wrong-scale",
    int4_kernels.NoScale: "missing-scale",
    int4_kernels.NoTail: "dropped-terms",
    int4_kernels.HalfWeights: "rounded-weights",
    int4_kernels.HalfGroupSums: "rounded-group-sum",
    int4_kernels.HalfSum: "half-accumulator",
    int4_kernels.SkipsLastColumn: "unwritten",
}


@pytest.mark.parametrize("kernel", INT4, ids=lambda k: k.__name__)
def test_mistakes_with_int4_weights_are_named(kernel):
    found = looks_like("dequant-int4", kernel(INT4_DIMS), INT4_DIMS, "normal")
    assert found is not None
    assert found.slug == INT4[kernel], found


@pytest.mark.parametrize("where", ["normal", "lognormal", "codes", "non_finite"])
def test_right_int4_products_look_like_nothing(where):
    for kernel in (int4_kernels.Backwards, int4_kernels.GroupSums):
        assert looks_like("dequant-int4", kernel(INT4_DIMS), INT4_DIMS, where) is None


@pytest.mark.parametrize(
    ("kernel", "bits", "slug"),
    [(int4_kernels.Kernel, None, None), (int4_kernels.GroupSums, None, None),
     (int4_kernels.HalfSum, 11, "half-accumulator")],
)  # fmt: skip
def test_the_width_of_an_int4_sum_is_read_off_its_results(kernel, bits, slug):
    exercise = exercises.get("dequant-int4")
    setting = Setting(exercise.variant, (8, 9), False, INT4_DIMS, 3)
    seen = get_subject(exercise.op).witness(setting, kernel)
    assert (seen.against and seen.against.slug) == slug
    assert seen.facts["bits"] == bits if bits else seen.facts["at_least"]


def cross_entropy(change):
    """A kernel in float32 of which ``change`` gets (maximum, log of the sum, x[label]); its loss is
    0 where the label is ignored."""

    def run(inputs, *, poison):
        x, labels = np.float32(inputs["x"].view(np.float16)), inputs["labels"]
        top = x.max(axis=1)
        log = np.log(np.exp(x - top[:, None]).sum(axis=1, dtype=np.float32))
        loss, lse = change(top, log, x[np.arange(len(x)), np.maximum(labels, 0)], labels < 0)
        return RunResult({"loss": loss, "lse": lse}, True)

    return run


def from_lse(top, log, target, ignored):
    return np.where(ignored, np.float32(0), (top + log) - target), top + log


def in_the_others_place(top, log, target, ignored):
    return top + log, np.where(ignored, np.float32(0), (top - target) + log)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("where", ["high", "offset"])
def test_digits_lost_by_a_rounded_lse_are_told_from_a_narrow_sum(seed, where):
    dims = {"rows": 13, "cols": 67}
    found = looks_like("cross-entropy", cross_entropy(from_lse), dims, where, seed, ("fp16",))
    assert found is None or found.slug == "lost-digits", found
    assert found is not None or where == "high"


@pytest.mark.parametrize("where", ["normal", "high"])
def test_results_in_each_others_place_are_named(where):
    run = cross_entropy(in_the_others_place)
    found = looks_like("cross-entropy", run, {"rows": 13, "cols": 67}, where)
    assert found is not None
    assert (found.slug, found.fix != "") == ("swapped-outputs", True), found


def test_one_result_in_both_places_is_not_called_swapped():
    run = cross_entropy(lambda top, log, *_: (top + log, top + log))
    found = looks_like("cross-entropy", run, {"rows": 13, "cols": 67}, "normal")
    assert found is not None
    assert found.slug == "missing-label", found


def test_scores_of_attention_are_as_large_as_its_statement_says_and_no_larger():
    exercise = exercises.get("attention")
    subject = get_subject(exercise.op)
    (stated,) = set(re.findall(r"between -(\d+) and (\d+)", exercise.statement))
    largest = 0.0
    for shape in exercise.shapes:
        setting = Setting(exercise.variant, (8, 9), False, shape.dims, 3)
        for where in (*shape.families, "one_hot"):
            if (inputs := subject.inputs(setting, where)) is None:
                continue
            q, k = (np.float64(inputs[n].view(np.float16)) for n in "qk")
            scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
            largest = max(largest, np.abs(scores).max())
    assert stated[0] == stated[1]
    assert 0.5 * int(stated[0]) < largest <= int(stated[0])


def test_the_fast_logarithm_is_off_near_one_by_what_cross_entropy_says():
    assert "is off by up to 2^-23, however small" in exercises.get("cross-entropy").statement
    bits = np.arange(0x3F800000, 0x40000000, 5, np.uint32)
    base_two = evaluate("lg2.approx.ftz.f32", bits).view(np.float32)
    fast = np.float64(base_two * np.float32(np.log(2.0)))
    right = np.log(np.float64(bits.view(np.float32)))
    assert 2.0**-23.5 < np.abs(fast - right).max() < 2.0**-23
    assert np.abs(fast[1:] / right[1:] - 1).max() > 0.01


@pytest.mark.parametrize("name", ["attention", "dequant-int4"])
def test_what_is_timed_is_shifted_with_its_right_result(name):
    exercise = exercises.get(name)
    subject, dims = get_subject(exercise.op), exercise.shape("full").dims
    setting = Setting(exercise.variant, (8, 9), False, dims, 3)
    inputs, moving = subject.inputs(setting, "normal"), subject.moving(setting)
    moved = {n: np.roll(a, 1, moving[n]) if n in moving else a for n, a in inputs.items()}
    pairs = zip(subject.expected(setting, inputs), subject.expected(setting, moved), strict=True)
    for before, after in pairs:
        shifted = np.roll(before.right, 1, moving[before.name])
        assert np.allclose(after.right, shifted, rtol=1e-12, atol=0, equal_nan=True)


def test_only_what_the_kernel_takes_is_sent():
    from gpulab.check.runner import Code, Submitted
    from gpulab.check.submission import Launch
    from gpulab.check.worker import digest

    exercise = exercises.get("attention")
    dims = exercise.shapes[0].dims
    setting = Setting(exercise.variant, (8, 9), False, dims, 3)
    inputs = get_subject(exercise.op).inputs(setting, "normal")
    assert {"bias", "mask"} < set(inputs)

    class Worker:
        def ask(self, message, arrays, **_):
            self.sent = arrays
            return {"inputs": {n: digest(a) for n, a in arrays.items()}}, {}

    worker = Worker()
    code = Code("", "attention", "c", Launch((), (), None))
    got = Submitted(worker, code, exercise, 1.0).at(dims)(inputs, poison=0xA5)
    assert set(worker.sent) == {"q", "k", "v"}
    assert got == RunResult({}, True)


@pytest.mark.parametrize("name", list(exercises.catalogue()))
def test_the_timed_size_is_judged_on_families_of_the_operation(name):
    exercise = exercises.get(name)
    asked = Check.__new__(Check)
    asked.exercise, asked.seed, asked.options = exercise, 1, Options(device="cuda")
    timed = asked.shapes()[-1]
    assert timed.dims == dict(exercise.timed)
    setting = Setting(exercise.variant, (9, 0), False, exercise.shapes[0].dims, 1)
    for family in ("normal", *timed.families):  # normal is what is timed
        assert get_subject(exercise.op).inputs(setting, family) is not None
    get_op(exercise.op).check_dims(exercise.timed)
