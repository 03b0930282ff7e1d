"""What docs/emulator.md says of costs is what is recorded."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import measure_emulator

AROUND = {"processor": "Chip", "python": "3.20.1", "numpy": "9.8.7", "date": "2030-01-02"}
RECORDS = [
    {"kind": "instruction", "name": "add.s32", "us": [0.44, 1.26, 131.072], "environment": AROUND},
    {"kind": "kernel", "name": "raw/k", "seconds": [0.0016, 0.25, None], "environment": AROUND},
]


def test_the_page_shows_what_is_recorded():
    text = measure_emulator.PAGE.read_text()
    assert measure_emulator.page(text, measure_emulator.read()) == text


def test_every_instruction_is_recorded():
    kinds = [r["name"] for r in measure_emulator.read() if r["kind"] == "instruction"]
    assert kinds == list(measure_emulator.INSTRUCTIONS)


def test_a_record_becomes_two_tables():
    """131.072 us over 65,536 lanes are 2 ns each."""
    text = measure_emulator.tables(RECORDS)
    assert "Chip, Python 3.20.1, NumPy 9.8.7" in text
    assert "| add.s32 | 0.4 | 1.3 | 131 | 2.00 |\n" in text
    assert "| raw/k | 0.002 | 0.250 | - |\n" in text


def test_a_page_without_markers_is_refused():
    with pytest.raises(SystemExit, match="no markers"):
        measure_emulator.page("nothing", RECORDS)


def test_a_measurement_is_recorded_and_shown(tmp_path, monkeypatch):
    record, page = tmp_path / "costs.jsonl", tmp_path / "page.md"
    page.write_text("before\n<!-- costs:begin (x) -->\nold\n<!-- costs:end -->\nafter\n")
    monkeypatch.setattr(measure_emulator, "RECORD", record)
    monkeypatch.setattr(measure_emulator, "PAGE", page)
    monkeypatch.setattr(measure_emulator, "INSTRUCTIONS", {"add.s32": "add.s32 %r{d}, %r{s}, %r1;"})
    monkeypatch.setattr(measure_emulator, "SHAPES", ((1, 32),) * 3)
    monkeypatch.setattr(measure_emulator, "kernels", lambda: iter(()))
    monkeypatch.setattr(sys, "argv", ["measure_emulator.py"])
    measure_emulator.main()
    (made,) = map(json.loads, record.read_text().splitlines())
    assert made["environment"]["device"] == "emulated"
    assert all(us > 0 for us in made["us"])
    assert page.read_text().startswith("before\n<!-- costs:begin (x) -->\nProcessor time")
    assert "old" not in page.read_text()
