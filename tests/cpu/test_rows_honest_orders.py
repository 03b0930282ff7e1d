"""Row kernels right in an unfavourable way: sums from the large end, a shift by an outlier."""

from dataclasses import replace

import numpy as np
import pytest

from gpulab.numerics.approx import evaluate
from gpulab.ops.base import RunResult
from gpulab.ops.crossentropy import CROSSENTROPY, IGNORE_INDEX
from gpulab.ops.layernorm import EPS, LAYERNORM
from gpulab.ops.rows_families import get_family
from gpulab.registry import Variant

DIMS = {"rows": 13, "cols": 137}
LONG = {"rows": 3, "cols": 1037}
SEEDS = range(12)
F = np.float32


def total(terms):
    """Float32, one term after the other from the last column to the first."""
    return np.add.accumulate(terms[:, ::-1].astype(F), axis=1)[:, -1:]


def from_the_large_end(inputs, *, poison):
    """Cross entropy whose sums begin with the largest terms of an ascending row."""
    x = inputs["x"].astype(F)
    largest = x.max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        argument = (x - largest) * F(np.log2(np.e))
        power = evaluate("ex2.approx.ftz.f32", argument.view(np.uint32)).view(F)  # __expf
        log = np.log(total(power))
        lse = (largest + log)[:, 0]
        label = inputs["labels"].astype(np.int64)
        inside = (label >= 0) & (label < x.shape[1])
        target = x[np.arange(len(x)), np.where(inside, label, 0)]
        loss = np.where(inside, (largest[:, 0] - target) + log[:, 0], F(np.nan))
    loss = np.where(label == IGNORE_INDEX, F(0), loss).astype(F)
    return RunResult({"loss": loss, "lse": lse.astype(F)}, inputs_unchanged=True)


def shifted_by_the_first(inputs, *, poison):
    """LayerNorm on x - x[0], whatever x[0] is."""
    x, n = inputs["x"], F(inputs["x"].shape[1])
    with np.errstate(all="ignore"):
        d = x - x[:, :1]
        d = d - total(d) / n
        rstd = F(1) / np.sqrt(total(d * d) / n + F(EPS))
        y = d * rstd * inputs["weight"] + inputs["bias"]
    return RunResult({"y": y.astype(F)}, inputs_unchanged=True)


def verdicts(op, variant, run, family, dims=DIMS):
    found = []
    for seed in SEEDS:
        judged = op.judge(variant, dims, run, capability=(8, 9), families=(family,), seed=seed)
        found.append([r.code for r in judged.reasons if r.code in ("interval", "rms")])
    return found


CROSS = Variant("fp16", "fp32", "fp32")
LAYER = Variant("fp32", "fp32", "fp32", contract="welford")


def test_sums_from_the_large_end_are_honest():
    family = get_family("ascending")
    run = from_the_large_end
    assert verdicts(CROSSENTROPY, CROSS, run, family, LONG) == [[]] * len(SEEDS)
    blind = verdicts(CROSSENTROPY, CROSS, run, replace(family, ordered=False), LONG)
    assert ["rms"] in blind, "without the other order of sums the gate would refuse some"


def test_a_row_may_be_shifted_by_an_outlier():
    family = get_family("outlier")
    first = [
        int(np.abs(LAYERNORM.make_inputs(DIMS, family, "fp32", seed)["x"]).argmax(axis=1).min())
        for seed in SEEDS
    ]
    assert 0 in first, "in some row the outlier is the first element"
    assert verdicts(LAYERNORM, LAYER, shifted_by_the_first, family) == [[]] * len(SEEDS)


@pytest.mark.parametrize("factor", [1 + 2**-19, 1 - 2**-19])
def test_and_rows_off_by_more_are_not(factor):
    def run(inputs, *, poison):
        right = shifted_by_the_first(inputs, poison=poison).outputs["y"]
        return RunResult({"y": (right * F(factor)).astype(F)}, inputs_unchanged=True)

    assert all(verdicts(LAYERNORM, LAYER, run, get_family("normal")))
