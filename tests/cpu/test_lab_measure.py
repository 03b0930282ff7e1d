"""Timed outputs are compared bit for bit with the judged ones, wherever rows were shifted to."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpulab.lab.measure import _against_library, _Sets
from gpulab.ops.base import RunResult
from gpulab.registry import Param
from gpulab.runtime.device import DeviceArray

PARAMS = (Param("a", "in", "fp32", ("m", "k")), Param("b", "in", "fp32", ("k", "n")),
          Param("c", "out", "fp32", ("m", "n")))  # fmt: skip


class FakeRunner:
    """A float32 product on arrays of the host, with a hook that spoils it."""

    params = PARAMS

    def __init__(self):
        self.spoil, self.steps = lambda c: None, 0
        self.device = SimpleNamespace(
            download=lambda array: array.handle.copy(),
            refill=lambda array, poison: array.handle.fill(np.nan),
            free=lambda *arrays: None,
        )

    def __call__(self, inputs, *, poison=0):
        return RunResult({"c": inputs["a"] @ inputs["b"]}, True)

    def upload(self, inputs):
        return {n: DeviceArray(x.shape, x.dtype, x.copy(), n) for n, x in inputs.items()}

    def outputs(self, poison):
        c = np.full((5, 4), np.nan, np.float32)
        return {"c": DeviceArray(c.shape, c.dtype, c, "c")}

    def bind_parts(self, arrays):
        def before():
            self.steps += 1

        def start():
            arrays["c"].handle[:] = arrays["a"].handle @ arrays["b"].handle
            self.spoil(arrays["c"].handle)

        return [before, start]


@pytest.fixture
def held():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, s).astype(np.float32) for s in ((5, 3), (3, 4)))
    b[0, 0] = np.nan  # a NaN that belongs there
    return _Sets(FakeRunner(), {"a": a, "b": b}, 7)


def test_shifted_rows_give_shifted_results(held):
    for i in range(7):
        held.refill(i)
        held.launch(i)
        assert held.verify(i) is None


def test_the_kernel_alone_leaves_its_steps_out(held):
    for launch, steps in ((held.launch, 1), (held.launch_alone, 1), (held.launch, 2)):
        held.refill(2)
        launch(2)
        assert held.runner.steps == steps
        assert held.verify(2) is None


def row(backend, fmt, output, ms, contract="", alone=None):
    record = {"backend": backend, "kernel": backend, "format": fmt, "output": output}
    record |= {"contract": contract, "time_ms": {"median": ms}}
    return record | ({"kernel_alone": {"time_ms": {"median": alone}}} if alone else {})


def test_rows_are_compared_with_the_library_row_of_their_formats():
    mine = [
        row("raw", "bf16", "fp32", 2.0),
        row("raw", "bf16", "bf16", 2.0),
        row("raw", "e4m3", "fp32", 2.0, "promoted", 1.0),
        row("raw", "int8", "int32", 2.0),
    ]
    library = [
        row("library", "bf16", "bf16", 3.0),
        row("library", "bf16", "fp32", 1.0),
        row("library", "e4m3", "bf16", 8.0, "fast", 6.0),
        row("library", "e4m3", "bf16", 10.0, "promoted", 7.0),
    ]
    _against_library([(None, record) for record in (*mine, *library)])
    assert [r.get("vs_library", {}).get("ratio") for r in mine] == [0.5, 1.5, 5.0, None]
    assert mine[1]["vs_library"]["baseline"] == "library bf16->bf16"
    assert mine[2]["vs_library"]["kernel_ratio"] == 7.0
    assert "kernel_ratio" not in mine[0]["vs_library"]
    assert all(r["vs_library"]["ratio"] == 1.0 for r in library)


def test_sets_differ(held):
    assert not np.array_equal(held.inputs[0]["a"].handle, held.inputs[1]["a"].handle)


@pytest.mark.parametrize("at", [(0, 1), (4, 3), (2, 2)])
def test_one_wrong_element_is_named(held, at):
    def spoil(c):
        c[at] = np.nextafter(c[at], np.float32(np.inf))

    held.runner.spoil = spoil
    for i in (0, 3, 6):
        held.launch(i)
        assert held.verify(i).startswith(f"c[{at[0]}, {at[1]}] is ")


def test_an_unwritten_output_is_seen(held):
    held.launch(1)
    held.refill(1)
    assert "c[" in held.verify(1)
