"""The table of tile costs: the fit, the sizes it is measured at, and the file it becomes."""

import json

import numpy as np
import pytest
import runtime_fakes
from runtime_fakes import FakeCupy

from gpulab.bench import tune
from gpulab.kernels.matmul import wgmma_tiles
from gpulab.kernels.matmul.wgmma_tiles import CANDIDATES, Tile
from gpulab.runtime import tensor_map
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.summary import summarize
from gpulab.runtime.timing import Timing


def test_the_fit_finds_the_two_numbers():
    points = [(work, 4.5 + 0.625 * work) for work in (16, 128, 256)]
    assert tune.fit(points) == pytest.approx((4.5, 0.625))
    noisy = [(w, us * f) for (w, us), f in zip(points, (1.01, 0.99, 1.0), strict=True)]
    start, slab = tune.fit(noisy)
    assert start == pytest.approx(4.5, rel=0.1)
    assert slab == pytest.approx(0.625, rel=0.02)


@pytest.mark.parametrize("tile", CANDIDATES, ids=lambda t: t.key)
@pytest.mark.parametrize("multiprocessors", [132, 114, 78])
@pytest.mark.parametrize("rounds", [1, 4])
def test_every_multiprocessor_gets_its_tiles(tile: Tile, multiprocessors, rounds):
    m, n = tune.full_grid(tile, rounds, multiprocessors)
    dims = {"m": m, "n": n, "k": 64}
    assert (
        tile.units(dims) * tile.cluster == multiprocessors // tile.cluster * tile.cluster * rounds
    )
    assert tile.rounds(dims, multiprocessors) == rounds
    assert m % tile.block_m == 0
    assert n % tile.block_n == 0
    assert max(m, n) <= 8 * min(m, n) or multiprocessors == 78


def test_every_candidate_has_a_key_and_a_cost():
    keys = [tile.key for tile in CANDIDATES]
    assert len(set(keys)) == len(keys)
    assert {t.key for t, _ in wgmma_tiles.TILES} == set(keys)
    assert {t.key for t, _ in wgmma_tiles.PROMOTED} == {
        t.key for t in CANDIDATES if t.block_n >= t.part
    }
    for _, cost in (*wgmma_tiles.TILES, *wgmma_tiles.PROMOTED):
        assert cost.start > 0
        assert cost.slab > 0


def test_a_candidate_that_was_not_measured_is_not_chosen(tmp_path, monkeypatch):
    known = CANDIDATES[1]
    rows = [{"tile": known.key, "start_us": 1.0, "slab_us": 2.0}, {"tile": "gone", "start_us": 0}]
    rows[1]["slab_us"] = 0
    (tmp_path / wgmma_tiles.COSTS_FILE).write_text(json.dumps({"sums": rows}))
    monkeypatch.setattr(wgmma_tiles, "files", lambda package: tmp_path)
    assert wgmma_tiles.load_costs("sums") == ((known, wgmma_tiles.Cost(1.0, 2.0)),)


def test_the_table_has_a_row_a_tile_and_kind(tmp_path, monkeypatch):
    """Times that the model gives come back as the model's numbers, through every launch bound."""
    monkeypatch.setattr(tensor_map, "encode", lambda *_: bytes(128))
    cupy = FakeCupy(total=1 << 40)
    device = CudaDevice(connection=runtime_fakes.connection(cupy), store=Store(tmp_path / "cache"))
    monkeypatch.setattr(tune, "CANDIDATES", CANDIDATES[:2])
    monkeypatch.setattr(
        tune._Memory, "__init__", lambda self, device, variant: _small(self, device, variant)
    )
    seen = {}

    def timed(clock, subjects, runs):
        for name, subject in subjects.items():
            subject.launch(0)
            seen[name] = cupy.launches[-1]
        return {name: _taken(name) for name in subjects}

    monkeypatch.setattr(tune, "time_interleaved", timed)
    table = tune.tune(device, None, 132)
    assert set(table) == {"sums", "promoted"}
    for rows in table.values():
        assert [row["tile"] for row in rows] == [tile.key for tile in CANDIDATES[:2]]
        for row in rows:
            assert row["start_us"] == pytest.approx(5.0, abs=0.01)
            assert row["slab_us"] == pytest.approx(0.5, abs=0.001)
    assert all(grid == (132, 1, 1) for _, grid, *_ in seen.values())


def _small(self, device, variant):
    self.device, self.variant = device, variant
    one = device.upload(np.zeros(1, np.uint8))
    shape = (1 << 26,)
    self.inputs = tune.DeviceArray(shape, one.dtype, one.handle)
    self.output = tune.DeviceArray(shape, one.dtype, one.handle)


def _taken(name):
    rounds, slabs = map(int, name.split(": ")[1].split(" x "))
    ms = (5.0 + 0.5 * rounds * slabs) * 1e-3
    made = Timing("events", 1, "flushed", 1, 0, 0, 1, samples_ms=[ms])
    assert made.summary == summarize([ms])
    return made
