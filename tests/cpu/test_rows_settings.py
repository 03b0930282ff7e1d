"""What a user may set of a row operation reaches inputs, reference and kernel alike."""

from types import SimpleNamespace

import numpy as np
import pytest
import row_kernels as k
from row_kernels import Row, runner

from gpulab.errors import UsageError
from gpulab.lab.runner import KernelRunner
from gpulab.ops.crossentropy import CrossEntropy
from gpulab.ops.layernorm import LayerNorm
from gpulab.ops.rmsnorm import RmsNorm

DIMS = {"rows": 8, "cols": 129}
FP32 = Row("fp32", "fp32")
NORMS = [
    pytest.param(RmsNorm, FP32, k.rmsnorm, 1e-6, id="rmsnorm"),
    pytest.param(RmsNorm, Row("fp32", "fp32", "fp32-sum"), k.residual_rmsnorm, 1e-6, id="residual"),
    pytest.param(LayerNorm, Row("fp32", "fp32", "two-pass"), k.layernorm, 1e-5, id="layernorm"),
]


@pytest.mark.parametrize(("op", "row", "kernel", "usual"), NORMS)
def test_another_eps_is_judged_by_and_the_usual_one_then_fails(op, row, kernel, usual):
    run = runner(row, kernel, eps=np.float32(0.25))
    assert op(0.25).judge(row, DIMS, run, capability=(8, 9)).verdict == "PASS"
    assert op().judge(row, DIMS, run, capability=(8, 9)).verdict == "FAIL"
    plain = runner(row, kernel, eps=np.float32(usual))
    assert op(0.25).judge(row, DIMS, plain, capability=(8, 9)).verdict == "FAIL"
    assert op().scalars(row, DIMS) == {"eps": usual}
    assert op(0.25).scalars(row, DIMS) == {"eps": 0.25}


@pytest.mark.parametrize("op", [RmsNorm, LayerNorm])
@pytest.mark.parametrize("eps", [-1e-6, 0.0, float("nan"), float("inf"), 1e-60, 2.0])
def test_an_eps_that_is_none_is_refused(op, eps):
    with pytest.raises(UsageError, match="is not above 0 in float32 and at most 1"):
        op(eps)


def test_given_labels_are_taken_in_turn_and_judged_by():
    op = CrossEntropy([3, -100, 128])
    stored = op.stored_inputs(FP32, DIMS, "normal", 0)
    assert stored["labels"].tolist() == [3, -100, 128, 3, -100, 128, 3, -100]
    assert stored["labels"].dtype == np.int32
    honest = runner(FP32, k.crossentropy)
    assert op.judge(FP32, DIMS, honest, capability=(8, 9)).verdict == "PASS"
    for wrong in ({"shift": 1}, {"ignore": False}):
        run = runner(FP32, k.crossentropy, **wrong)
        assert op.judge(FP32, DIMS, run, capability=(8, 9)).verdict == "FAIL"


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 129], "label 129 of row 1 is outside 0 .. 128"),
        ([-1], "label -1 of row 0 is outside"),
        ([10**30], "of row 0 is outside"),
        ([0] * 9, "9 labels for 8 rows"),
        ([-100, -100], "no loss is left to judge"),
    ],
)
def test_labels_that_name_no_column_are_refused(labels, words):
    with pytest.raises(UsageError, match=words.replace("..", r"\.\.")):
        CrossEntropy(labels).check_dims(DIMS)


def test_the_runner_passes_the_scalars_of_its_operation():
    seen = {}
    device = SimpleNamespace(bind=lambda function, plan, args: seen.update(args=args))
    made = KernelRunner.__new__(KernelRunner)
    made.case = SimpleNamespace(variant=FP32)
    made.dims, made.device, made.op = DIMS, device, RmsNorm(0.5)
    eps = SimpleNamespace(role="scalar", name="eps")
    rows = SimpleNamespace(role="dim", name="rows")
    made._bind_one(SimpleNamespace(params=(rows, eps)), None, {})
    assert seen["args"] == [8, 0.5]
