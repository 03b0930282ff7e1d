"""The script that records performance on a card: its units, its budget, and a dry run of them."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import card_performance
import performance_units
from performance_units import UNITS, Unit

from gpulab import registry
from gpulab.bench import first_call
from gpulab.runtime.emulated import EmulatedDevice

FILES = {"ceilings", "ladder", "matmul_large", "fp8_growth", "tune", "first_call"}


def test_the_units_fill_every_file_and_fit_into_the_budget():
    assert {u.file for u in UNITS} == {f"{name}.jsonl" for name in FILES}
    assert len({u.name for u in UNITS}) == len(UNITS)
    assert sum(u.estimate_s for u in UNITS) < card_performance.BUDGET_S <= 720
    assert UNITS[0].file == "ceilings.jsonl"  # what the others are held against


def labels(*wanted):
    return {c.label for c in performance_units.rows(*wanted)}


def in_groups(groups):
    """Rows of all groups; a row and its library are of one group, timed in turns."""
    return set().union(*(labels(*wanted) for wanted in groups.values()))


def test_the_rows_are_those_that_were_promised():
    every, at_8192 = map(in_groups, (performance_units.GROUPS, performance_units.AT_8192))
    for fmt in ("bf16", "fp16"):
        for kernel in ("raw/wgmma", "library/cublas"):
            assert f"{kernel} {fmt}->{fmt} (fp32 acc)" in every & labels(*performance_units.SAME)
            assert f"{kernel} {fmt}->fp32 (fp32 acc)" in every
        assert f"raw/mma {fmt}->fp32 (fp32 acc)" in every
    for accumulation in ("fast", "promoted"):
        for kernel in ("raw/wgmma", "library/cublaslt"):
            row = f"{kernel} e4m3->fp32 (fp32 acc, {accumulation})"
            assert row in every & labels(*performance_units.FP8) & at_8192
    for kernel in ("raw/wgmma", "library/cublas"):
        assert f"{kernel} tf32->fp32 (fp32 acc)" in at_8192
    assert "raw/mma bf16->fp32 (fp32 acc)" in at_8192
    for kernel in ("raw/blocked", "raw/blocked_tma", "library/cublas"):
        assert f"{kernel} fp32->fp32 (fp32 acc)" in at_8192
    for kernel in ("raw/mma_3xtf32", "raw/wgmma_3xtf32"):
        row = f"{kernel} fp32->fp32 (fp32 acc, 3xtf32)"
        assert row in every & at_8192
    assert not any("numba" in label or "simt" in label for label in every)


class Children:
    """Units as processes that end as they are told to."""

    def __init__(self, monkeypatch, codes, seconds=1.0):
        self.codes, self.seconds, self.now = codes, seconds, 0.0
        self.ran, self.limits = [], []
        monkeypatch.setattr(card_performance.subprocess, "run", self.run)
        monkeypatch.setattr(card_performance, "time", SimpleNamespace(monotonic=lambda: self.now))

    def run(self, command, timeout):
        name = command[command.index("--unit") + 1]
        self.ran.append(name)
        self.limits.append(timeout)
        self.now += self.seconds
        code = self.codes.get(name, 0)
        if code == "late":
            raise subprocess.TimeoutExpired(command, timeout)
        return SimpleNamespace(returncode=code)


@pytest.fixture
def three(monkeypatch):
    units = [Unit(f"{name}/x", 10.0, None) for name in ("ceilings", "tune", "ladder")]
    monkeypatch.setattr(card_performance, "UNITS", units)
    return units


def arguments(tmp_path, *more):
    return ["--out", str(tmp_path), *more]


def test_what_is_recorded_is_not_done_again(monkeypatch, tmp_path, three, capsys):
    (tmp_path / "tune.jsonl").write_text(json.dumps({"unit": "tune/x"}) + "\n")
    done = Children(monkeypatch, {})
    assert card_performance.main(arguments(tmp_path)) == 0
    assert done.ran == ["ceilings/x", "ladder/x"]
    assert "tune/x: recorded" in capsys.readouterr().out


def test_nothing_is_begun_that_does_not_fit(monkeypatch, tmp_path, three, capsys):
    done = Children(monkeypatch, {}, seconds=9.0)
    assert card_performance.main(arguments(tmp_path, "--budget", "19.5")) == 3
    assert done.ran == ["ceilings/x", "tune/x"]
    assert done.limits == [19.5, 10.5]  # the budget's rest, where that is less than twice 10
    assert "ladder/x: 10 s do not fit" in capsys.readouterr().out


@pytest.mark.parametrize("code", [1, 6, "late"])
def test_one_unit_that_fails_does_not_stop_the_others(monkeypatch, tmp_path, three, code):
    done = Children(monkeypatch, {"tune/x": code})
    assert card_performance.main(arguments(tmp_path)) == 1
    assert done.ran == ["ceilings/x", "tune/x", "ladder/x"]


def test_without_a_card_it_ends_at_once(monkeypatch, tmp_path, three):
    done = Children(monkeypatch, {"ceilings/x": 7})
    assert card_performance.main(arguments(tmp_path)) == 7
    assert done.ran == ["ceilings/x"]


def test_a_dry_run_never_writes_to_the_results():
    with pytest.raises(SystemExit):
        card_performance.main(["--dry"])


@pytest.mark.parametrize("name", ["fp8_growth/1024", "ladder/4096", "tune/all"])
def test_a_dry_unit_writes_rows_without_times(tmp_path, name):
    assert card_performance.main(arguments(tmp_path, "--dry", "--unit", name)) == 0
    (path,) = tmp_path.iterdir()
    assert path.stem == name.split("/")[0]
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found
    for record in found:
        assert record["unit"] == name
        assert record["dry"] is True
        assert record["time_ms"] is None
        assert record["environment"]["device"] == "emulated"
        assert record["verdict"] in ("PASS", None)
        assert record["verdict"] or record["reason"]
    assert name != "ladder/4096" or [r["kernel"] for r in found][:2] == ["mma", "wgmma-tma"]
    assert card_performance.recorded(tmp_path) == {name}


def test_first_and_later_calls_are_told_apart():
    """A clock that moves by a second a reading: what is between two readings is one second."""
    (case,) = registry.cases("matmul", kernel="simt", format="fp32", backend="raw")
    seen, ticks = [], iter(range(10_000))

    def opened(store):
        seen.append(store.folder)
        assert any(store.folder.iterdir()) == (len(seen) == 2)  # empty first, then filled
        return EmulatedDevice((8, 9), store=store)

    dims = {"m": 8, "n": 8, "k": 8}
    record = first_call.measure(opened, case, dims, rounds=2, host_ms=lambda: 1000.0 * next(ticks))
    assert record["verdict"] == "PASS"
    assert record["first_ms"] == record["cached_ms"] == 1000.0
    assert record["launch_us"]["median"] == 1e6 / first_call._QUEUED
    assert record["call_us"] == {"median": 1e6, "min": 1e6, "p90": 1e6, "runs": 2}
    assert not seen[0].exists()
    assert (record["kernel"], record["device"]) == ("simt", "emulated")


def test_a_call_that_gives_other_bits_fails(monkeypatch):
    monkeypatch.setattr(first_call, "_equal", lambda one, other: False)
    (case,) = registry.cases("matmul", kernel="simt", format="fp32", backend="raw")
    record = first_call.measure(
        lambda store: EmulatedDevice((8, 9), store=store), case, {"m": 2, "n": 2, "k": 2}, rounds=1
    )
    assert record["verdict"] == "FAIL"
    assert "other bits" in record["reason"]
