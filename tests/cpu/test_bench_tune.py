"""The table of tile costs: the fit, the sizes it is measured at, and the file it becomes."""

import json

import numpy as np
import pytest
import runtime_fakes
from runtime_fakes import FakeCupy

from gpulab.bench import tune
from gpulab.cli import main, session
from gpulab.kernels.matmul import wgmma, wgmma_tiles
from gpulab.kernels.matmul.wgmma_tiles import CANDIDATES, Tile
from gpulab.registry import Case, specs
from gpulab.runtime import cuda_clock, residency, tensor_map
from gpulab.runtime.cache import Store
from gpulab.runtime.cuda import CudaDevice
from gpulab.runtime.summary import summarize
from gpulab.runtime.timing import Timing


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    """That would say how many clusters fit: as many as there are pairs of multiprocessors."""
    monkeypatch.setattr(residency, "clusters_at_once", lambda function, plan: 66)


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


def test_the_table_has_a_row_a_tile_and_kind(store, monkeypatch):
    """Times that the model gives come back as the model's numbers, through every launch bound."""
    monkeypatch.setattr(tensor_map, "encode", lambda *_: bytes(128))
    cupy = FakeCupy(total=1 << 40)
    device = CudaDevice(connection=runtime_fakes.connection(cupy), store=store)
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


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One compile cache for the file."""
    return Store(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def card(store, monkeypatch):
    """A pretended H200 whose launches take what their shape says: 5 us and 0.5 us a slab."""
    monkeypatch.setattr(tensor_map, "encode", lambda *_: bytes(128))
    cupy = FakeCupy(total=1 << 40)
    device = CudaDevice(connection=runtime_fakes.connection(cupy), store=store)
    monkeypatch.setattr(tune, "CANDIDATES", CANDIDATES[:2])
    monkeypatch.setattr(tune._Memory, "__init__", _small)
    monkeypatch.setattr(
        tune, "time_interleaved", lambda clock, subjects, runs: {n: _taken(n) for n in subjects}
    )
    monkeypatch.setattr(session, "open_device", lambda *_, **__: device)
    monkeypatch.setattr(cuda_clock, "clock_of", lambda _: None)
    return device


def _tune(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "tune", *map(str, arguments)])
    return ended.value.code


def test_the_saved_table_is_one_that_ships(card, tmp_path, monkeypatch, capsys):
    """From the command to the choice: what was measured, on this card, decides."""
    saved = tmp_path / wgmma_tiles.COSTS_FILE
    assert _tune("--save", saved) == 0
    assert CANDIDATES[0].key in capsys.readouterr().out
    table = json.loads(saved.read_text())
    assert table["environment"]["device_name"] == card.name
    assert table["environment"]["multiprocessors"] == 132
    monkeypatch.setattr(wgmma_tiles, "files", lambda package: tmp_path)
    costs = wgmma_tiles.load_costs("sums")
    assert [tile for tile, _ in costs] == list(CANDIDATES[:2])
    for _, cost in (*costs, *wgmma_tiles.load_costs("promoted")):
        assert (cost.start, cost.slab) == (pytest.approx(5, abs=0.01), pytest.approx(0.5, abs=1e-3))


def test_a_folder_that_is_not_there_is_refused_before_anything_is_measured(card, capsys):
    assert _tune("--save", "/nowhere/at/all.json") == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_card_without_wgmma_has_nothing_to_tune(card, capsys):
    card.capability = (8, 9)
    assert _tune() == 2
    assert "nothing to tune" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dims", "multiprocessors", "wanted"),
    [
        # 8 tiles of 128 x 256 fill a round of 8, 16 of 128 x 128 take two: the large one wins
        # where its slab costs less than two small ones, and loses where the card has 16.
        ({"m": 1024, "n": 256, "k": 4096}, 8, "large"),
        ({"m": 1024, "n": 256, "k": 4096}, 16, "small"),
        ({"m": 128, "n": 128, "k": 4096}, 8, "small"),
    ],
)
def test_the_loaded_table_chooses_by_shape_and_by_multiprocessors(
    monkeypatch, dims, multiprocessors, wanted
):
    tiles = {"large": Tile(128, 256, 4, 2), "small": Tile(128, 128, 6, 2)}
    costs = {"large": wgmma_tiles.Cost(5.0, 0.6), "small": wgmma_tiles.Cost(5.0, 0.35)}
    monkeypatch.setattr(wgmma, "TILES", tuple((tiles[n], costs[n]) for n in tiles))
    bf16 = next(v for v in wgmma.VARIANTS if (v.format, v.output) == ("bf16", "bf16"))
    case = Case(next(s for s in specs("matmul") if s.name == "wgmma"), bf16).on(multiprocessors)
    build = case.spec.build(bf16, (9, 0), dims)
    assert build.entry == wgmma.entry(bf16, tiles[wanted])
    assert case.spec.plan(bf16, (9, 0), dims).block == (tiles[wanted].threads, 1, 1)


def test_the_shipped_table_is_the_one_in_use():
    assert wgmma_tiles.load_costs("sums") == wgmma.TILES
    assert wgmma_tiles.load_costs("promoted") == wgmma.PROMOTED


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
