"""Timed outputs are compared bit for bit with the judged ones, wherever rows were shifted to."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpulab import ops
from gpulab.lab.measure import Yardstick, _against_library, _Sets, time_rows
from gpulab.numerics.cache import Cache
from gpulab.numerics.structure import same_bits
from gpulab.ops.base import RunResult
from gpulab.registry import Param, Variant
from gpulab.runtime.device import DeviceArray
from gpulab.runtime.timing import Subject, Timing

PARAMS = (Param("a", "in", "fp32", ("m", "k")), Param("b", "in", "fp32", ("k", "n")),
          Param("c", "out", "fp32", ("m", "n")))  # fmt: skip


class FakeRunner:
    """A float32 product on arrays of the host, with a hook that spoils it."""

    params = PARAMS

    def __init__(self):
        self.spoil, self.steps = lambda c: None, 0
        self.device = SimpleNamespace(
            download=lambda array: array.handle.copy(),
            upload=lambda x, name, rows: DeviceArray(x.shape, x.dtype, x.copy(), name),
            same=lambda one, other: same_bits(one.handle, other.handle),
            refill=lambda array, poison: array.handle.fill(np.nan),
            free=lambda *arrays: None,
        )

    def __call__(self, inputs, *, poison=0):
        return RunResult({"c": inputs["a"] @ inputs["b"]}, True)

    def whole(self, inputs):
        return inputs

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


class Stepped(FakeRunner):
    """A runner whose launches the clock below counts by their parts."""

    def __init__(self, label, before):
        super().__init__()
        self.label, self.ran = label, 0
        spec = SimpleNamespace(op="matmul", params=lambda variant: PARAMS)
        variant = Variant("fp32", "fp32", "fp32")
        self.case = SimpleNamespace(label=label, spec=spec, variant=variant)
        self.op = ops.get("matmul")
        self.dims = {"m": 5, "n": 4, "k": 3}
        self.steps = [(SimpleNamespace(name=name), None) for name in before]

    def bind_parts(self, arrays):
        def count():
            self.ran += 1

        def kernel():
            self.ran += 1
            arrays["c"].handle[:] = arrays["a"].handle @ arrays["b"].handle
            self.spoil(arrays["c"].handle)

        return [*(count for _ in self.steps), kernel]


def timed(monkeypatch, *runners, yardstick=None, ways=None):
    """Records of rows whose parts take a millisecond each; of a yardstick it takes one to four."""

    def taken(clock, subjects, runs, warmup):
        found = {}
        for name, subject in subjects.items():
            before = sum(r.ran for r in runners)
            subject.refill(0)
            subject.launch(0)
            parts = sum(r.ran for r in runners) - before
            told = (ways or {}).get(name.rpartition(": ")[2], [1.0, 2.0, 4.0])
            ms = [float(parts)] if parts else told
            found[name] = Timing("events", 1, "flushed", 1, 0, 0, 1, samples_ms=ms)
            found[name].wrong = [w for w in (subject.verify(0),) if w]
        return found

    monkeypatch.setattr("gpulab.runtime.timing.time_interleaved", taken)
    clock = SimpleNamespace(l2_bytes=1)
    monkeypatch.setattr("gpulab.runtime.cuda_clock.clock_of", lambda device: clock)
    records = [row("raw", "fp32", "fp32", None) for _ in runners]
    time_rows(list(zip(runners, records, strict=True)), seed=0, runs=1, warmup=0, cache=Cache(),
              yardstick=yardstick)  # fmt: skip
    return records


@pytest.mark.parametrize("wrong", [None, "byte 3 differs"])
def test_a_row_is_given_as_a_share_of_what_was_timed_beside_it(monkeypatch, wrong):
    freed = []

    def copy(device, clock, nbytes):
        subject = Subject(lambda i: None, 1, nbytes, verify=lambda i: wrong)
        return Yardstick("copy", nbytes, {"alone": subject}, lambda: freed.append(nbytes))

    (record,) = timed(monkeypatch, Stepped("plain", []), yardstick=copy)
    moved = 4 * (5 * 3 + 3 * 4 + 5 * 4)  # bytes of a, b and c
    assert freed == [moved]
    assert record["gb_per_s"] == pytest.approx(moved / 1e-3 * 1e-9)
    beside = record["bandwidth"]
    assert beside["gb_per_s"] == pytest.approx(moved / 2e-3 * 1e-9), "of the median"
    assert beside["fraction"] == pytest.approx(2.0)
    assert record.get("verdict") == ("FAIL" if wrong else None)
    assert ("the copy timed beside it is wrong: byte 3 differs" in str(record.get("reason"))) == (
        wrong is not None
    )


WAYS = {"slow": [3.0], "fast": [0.5], "also": [1.0]}
"""Milliseconds."""


@pytest.mark.parametrize("wrong", [None, "byte 3 differs"])
def test_the_fastest_way_counts_and_every_way_has_to_be_right(monkeypatch, wrong):
    def copy(device, clock, nbytes):
        plain = Subject(lambda i: None, 1, nbytes)
        bad = Subject(lambda i: None, 1, nbytes, verify=lambda i: wrong)
        return Yardstick("copy", nbytes, {"slow": bad, "fast": plain, "also": plain}, lambda: None)

    (record,) = timed(monkeypatch, Stepped("plain", []), yardstick=copy, ways=WAYS)
    beside = record["bandwidth"]
    assert beside["way"] == "fast"
    assert beside["fraction"] == pytest.approx(0.5)
    speeds = beside["ways_gb_per_s"]
    assert speeds["fast"] == beside["gb_per_s"] == pytest.approx(6 * speeds["slow"])
    assert record.get("verdict") == ("FAIL" if wrong else None)


def test_a_row_with_steps_is_timed_with_and_without_them(monkeypatch):
    plain, turned = timed(monkeypatch, Stepped("plain", []), Stepped("turned", ["transpose b"]))
    assert plain["time_ms"]["median"] == 1.0
    assert "kernel_alone" not in plain
    assert turned["time_ms"]["median"] == 2.0
    alone = turned["kernel_alone"]
    assert alone["time_ms"]["median"] == 1.0
    assert alone["without"] == ["transpose b"]
    assert alone["tflops"] == pytest.approx(2 * turned["tflops"])
    assert turned.get("verdict") is None


def test_a_wrong_output_of_the_kernel_alone_fails_the_row(monkeypatch):
    runner = Stepped("turned", ["transpose b"])
    launches = []

    def spoil(c):
        launches.append(1)
        if len(launches) == 2:  # the second is the kernel alone
            c[0, 0] += 1

    runner.spoil = spoil
    (record,) = timed(monkeypatch, runner)
    assert record["verdict"] == "FAIL"
    assert "timed output differs: c[0, 0]" in record["reason"]
