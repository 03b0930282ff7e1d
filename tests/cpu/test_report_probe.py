"""The judgement of an executed product, with devices that are right and wrong on purpose."""

import json

import numpy as np
import pytest

from gpulab.formats import decode, get
from gpulab.numerics import tensorcore
from gpulab.report.capability import PROBED
from gpulab.report.probe import build_request, compare, depth, exact_operands, random_operands
from gpulab.runtime import nvrtc

CASES = [
    (name, capability)
    for capability in ((7, 5), (8, 0), (8, 9), (9, 0), (12, 0))
    for name in PROBED
    if get(name).path("mma.sync", capability) is not None
]


def model_device(path, capability):
    """A device that computes exactly as the model does."""

    def multiply(a, b, c):
        bits = tensorcore.mma(a, b, c.view(np.uint32), path.instruction, capability)
        return bits.view(np.float32)

    return multiply


def judge(name, capability, multiply=None, kind="cuda"):
    row = get(name)
    path = row.path("mma.sync", capability)
    return compare(row, path, capability, kind, multiply or model_device(path, capability))


@pytest.mark.parametrize(("name", "capability"), CASES)
def test_a_right_device_is_proven(name, capability):
    result = judge(name, capability)
    assert (result.status, result.different, result.outputs) == ("executed", 0, 128)
    assert result.proven
    json.dumps(result.to_json())


def test_the_emulated_device_is_never_called_executed():
    result = judge("bf16", (8, 0), kind="emulated")
    assert result.status == "emulated"
    assert "executed" not in result.reason


def test_a_device_that_does_not_multiply_the_format_is_caught():
    """Codes read as another format: fp8 operands multiplied as e5m2 instead of e4m3."""
    e5m2 = get("e5m2")

    def multiply(a, b, c):
        return (decode(e5m2, a) @ decode(e5m2, b) + c).astype(np.float32)

    result = judge("e4m3", (9, 0), multiply)
    assert result.status == "mismatch"
    assert not result.proven
    assert "small integers" in result.reason


def test_a_transposed_fragment_is_caught():
    row = get("fp16")
    path = row.path("mma.sync", (9, 0))
    right = model_device(path, (9, 0))
    result = judge("fp16", (9, 0), lambda a, b, c: right(a[::-1].copy(), b, c))
    assert result.status == "mismatch"


def test_another_arithmetic_is_caught_and_shown():
    """Sums in float32, rounded to nearest: right for small integers, not what the card does."""

    def multiply(a, b, c):
        return (a.astype(np.float32) @ b.astype(np.float32) + c).astype(np.float32)

    result = judge("fp16", (9, 0), multiply)
    assert result.status == "mismatch"
    assert 0 < result.different < 128
    assert set(result.first) == {"index", "got", "want"}
    assert "differ from the model, which is recorded" in result.reason


def test_a_difference_from_an_assumed_model_is_told_but_is_no_failure_of_the_card():
    def multiply(a, b, c):
        return (a.astype(np.float32) @ b.astype(np.float32) + c).astype(np.float32)

    result = judge("fp16", (7, 5), multiply)
    assert tensorcore.model(result.instruction, (7, 5)).verified == "assumed"
    assert result.status == "executed"
    assert result.different > 0
    assert "assumed" in result.reason
    assert judge("fp16", (7, 5), multiply, kind="emulated").status == "mismatch"


def test_a_capability_without_a_model_is_judged_by_the_exact_product():
    def multiply(a, b, c):
        return (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32)

    result = judge("fp16", (8, 7), multiply)
    assert (result.status, result.outputs) == ("executed", 0)
    assert "no model" in result.reason


@pytest.mark.parametrize("name", PROBED)
def test_operands(name):
    row = get(name)
    assert depth(row) * row.storage.itemsize == 32
    a, b, c = exact_operands(row)
    assert a.shape == (16, depth(row))
    assert b.shape == (depth(row), 8)
    for codes in (a, b):
        values = decode(row, codes)
        assert set(np.unique(values)) <= {-2.0, -1.0, 0.0, 1.0, 2.0}
        assert len(np.unique(values)) == 5
    a, b, c = random_operands(row)
    assert np.isfinite(decode(row, a)).all()
    assert c.dtype == np.float32


@pytest.mark.parametrize(("name", "capability"), CASES)
def test_the_probe_kernel_compiles_to_the_named_instruction(name, capability):
    row = get(name)
    path = row.path("mma.sync", capability)
    request = build_request(row, path)
    made = nvrtc.compile_cubin(
        request.source, request.entry, capability, feature_target=request.feature_target
    )
    assert made.cubin
    parts = path.instruction.replace("mma.sync.", "mma.sync.aligned.")
    shape, types = parts.split(path.shape)
    assert f"{shape}{path.shape}.row.col{types} " in made.ptx
