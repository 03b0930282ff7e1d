"""The approximate instructions equal the recordings of an H200, bit for bit."""

import importlib.util
import lzma
import sys
from functools import cache

import numpy as np
import pytest
from golden_data import ROOT, SAMPLES, full_archive, full_path

from gpulab.numerics import _interpolate
from gpulab.numerics.approx import evaluate

SWEEPS = {  # key: (bits of the first argument, exact function, instruction)
    "ex2_1_2": (0x3F800000, np.exp2, "ex2"),
    "ex2_m2_m1": (0xBF800000, np.exp2, "ex2"),
    "rcp_1_2": (0x3F800000, np.reciprocal, "rcp"),
    "rsqrt_1_4": (0x3F800000, lambda x: 1 / np.sqrt(x), "rsqrt"),
    "sqrt_1_4": (0x3F800000, np.sqrt, "sqrt"),
    "lg2_1_2": (0x3F800000, np.log2, "lg2"),
    "lg2_05_1": (0x3F000000, np.log2, "lg2"),
}
SPECIAL = {
    "ex2": "ex2.approx.ftz.f32",
    "ex2_noftz": "ex2.approx.f32",
    "rsqrt": "rsqrt.approx.ftz.f32",
    "rsqrt_noftz": "rsqrt.approx.f32",
    "rcp": "rcp.approx.ftz.f32",
    "lg2": "lg2.approx.ftz.f32",
    "lg2_noftz": "lg2.approx.f32",
    "sqrt": "sqrt.approx.ftz.f32",
}
SUBNORMAL = {"rsqrt_noftz": "rsqrt.approx.f32", "lg2_noftz": "lg2.approx.f32"}
HALVES = {
    "ex2_f16": "ex2.approx.f16",
    "ex2_bf16": "ex2.approx.ftz.bf16",
    "tanh_f16": "tanh.approx.f16",
    "tanh_bf16": "tanh.approx.bf16",
}


@cache
def sample():
    with np.load(SAMPLES / "approx_sm90_sample.npz") as archive:
        return {key: archive[key] for key in archive.files}


def recorded_sweep(archive, name):
    """Arguments and results, rebuilt from the stored differences to the exact function."""
    key = next(k for k in archive.files if k.startswith(f"{name}|"))
    ulps = np.frombuffer(lzma.decompress(archive[key].tobytes()), dtype=key.split("|")[1])
    first, exact, _ = SWEEPS[name]
    x = np.arange(first, first + len(ulps), dtype=np.int64).astype(np.uint32)
    y = exact(x.view(np.float32).astype(np.float64)).astype(np.float32).view(np.int32)
    return x, (y + ulps.astype(np.int32)).view(np.uint32)


@pytest.mark.parametrize("flush", [".ftz", ""])
@pytest.mark.parametrize("name", SWEEPS)
def test_sample_of_every_sweep_is_equal(name, flush):
    x, y = sample()[f"{name}/x"], sample()[f"{name}/y"]
    got = evaluate(f"{SWEEPS[name][2]}.approx{flush}.f32", x)
    assert got.dtype == np.uint32
    assert (got == y).all()


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.whole)])
@pytest.mark.parametrize("name", SWEEPS)
def test_every_value_of_every_sweep_is_equal(name, step):
    """`make test` takes every fifth."""
    with full_archive("approx_sm90.npz") as archive:
        x, y = recorded_sweep(archive, name)
    assert len(x) >= 1 << 23
    assert (
        np.count_nonzero(evaluate(f"{SWEEPS[name][2]}.approx.ftz.f32", x[::step]) != y[::step]) == 0
    )


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_are_equal(name):
    got = evaluate(SPECIAL[name], sample()["special_inputs"])
    assert [hex(v) for v in got] == [hex(v) for v in sample()[f"special_{name}"]]


@pytest.mark.parametrize("name", SUBNORMAL)
def test_sample_of_subnormals_is_equal(name):
    got = evaluate(SUBNORMAL[name], sample()[f"sub_{name}/x"])
    assert (got == sample()[f"sub_{name}/y"]).all()


@pytest.mark.parametrize("name", SUBNORMAL)
def test_every_recorded_subnormal_is_equal(name):
    with full_archive("approx_sm90.npz") as archive:
        x = (7 * np.arange(1, 65537, dtype=np.int64) % (1 << 23)).astype(np.uint32)
        assert (evaluate(SUBNORMAL[name], x) == archive[f"sub_{name}"]).all()


@pytest.mark.parametrize("name", HALVES)
def test_sample_of_16_bit_results_is_equal(name):
    got = evaluate(HALVES[name], sample()[f"h_{name}/x"])
    assert got.dtype == np.uint16
    assert (got == sample()[f"h_{name}/y"]).all()


@pytest.mark.parametrize("name", HALVES)
def test_every_16_bit_result_is_equal(name):
    with full_archive("approx_sm90.npz") as archive:
        want = archive[f"h_{name}"]
    assert (evaluate(HALVES[name], np.arange(1 << 16, dtype=np.uint16)) == want).all()


# --- the tables: small, rebuilt from the recordings, and every part of them matters ---


def builder():
    spec = importlib.util.spec_from_file_location(
        "build_approx_tables", ROOT / "scripts" / "build_approx_tables.py"
    )
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_packaged_tables_are_small_and_come_from_the_recordings(tmp_path, monkeypatch):
    script = builder()
    assert script.DEFAULT.stat().st_size < 16_000
    source = full_path("approx_sm90.npz")
    out = tmp_path / "tables.npz"
    monkeypatch.setattr("sys.argv", ["build", str(source), str(out)])
    monkeypatch.setattr(script, "SWEEPS", {"rcp": script.SWEEPS["rcp"]})  # the quickest
    script.main()
    with np.load(out) as new, np.load(script.DEFAULT) as packaged:
        assert {"rcp", "rcp_constant", "tanh_f16", "tanh_bf16"} == set(new.files)
        for key in new.files:
            assert (new[key] == packaged[key]).all()


def test_the_builder_refuses_a_table_that_misses_one_value():
    script = builder()
    sweep = script.SWEEPS["rcp"]
    with np.load(script.DEFAULT) as packaged:
        table, constant = packaged["rcp"].astype(np.int64), int(packaged["rcp_constant"])
    position = np.arange(1 << 23, dtype=np.int64)
    units = _interpolate.polynomial(_interpolate.prepare(table, constant), position, 1)
    values = ((units >> _interpolate.FRACTION) / sweep.scale).astype(np.float32)
    script.check(sweep, table, constant, values)
    values[12345] = np.nextafter(values[12345], np.float32(2))
    with pytest.raises(SystemExit, match="1 of 8388608"):
        script.check(sweep, table, constant, values)


def sweep_misses(name):
    x, y = sample()[f"{name}/x"], sample()[f"{name}/y"]
    return np.count_nonzero(evaluate(f"{SWEEPS[name][2]}.approx.ftz.f32", x) != y)


@pytest.mark.parametrize("name", ["ex2_1_2", "rcp_1_2", "rsqrt_1_4", "lg2_1_2"])
def test_the_truncated_squarer_is_what_the_hardware_has(name, monkeypatch):
    """With the exact square the polynomial misses recorded values."""
    exact = np.arange(1 << _interpolate.LOW_BITS, dtype=np.int64) ** 2
    monkeypatch.setattr(_interpolate, "truncated_squares", lambda: exact)
    assert sweep_misses(name) > 0


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("name", ["ex2_1_2", "rcp_1_2", "rsqrt_1_4", "sqrt_1_4", "lg2_1_2"])
def test_a_changed_coefficient_is_noticed(name, column, monkeypatch):
    """One unit more in every segment's C0, C1 or C2 changes recorded results."""
    function = SWEEPS[name][2]
    changed = {key: value.copy() for key, value in _interpolate.tables().items()}
    changed[function][:, column] += 8 if column == 2 else 2
    monkeypatch.setattr(_interpolate, "tables", lambda: changed)
    _interpolate._coefficients.cache_clear()
    try:
        assert sweep_misses(name) > 0
    finally:
        _interpolate._coefficients.cache_clear()


def test_squares_lose_only_low_columns():
    """Against the definition, bit by bit, for some x."""
    table = _interpolate.truncated_squares()
    for x in (0, 1, 511, 512, 513, 65535, 74565, 131071):
        kept = sum(
            ((x >> i) & (x >> j) & 1) << (i + j + (i != j))
            for i in range(17)
            for j in range(i, 17)
            if i + j + (i != j) >= 19
        )
        assert table[x] == kept
