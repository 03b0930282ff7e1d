"""``gpulab bench ceilings`` without a card, and with one that is pretended."""

import json
from types import SimpleNamespace

import pytest

from gpulab.bench import ceilings
from gpulab.cli import main, session
from gpulab.errors import DeviceMissingError
from gpulab.runtime import cuda_clock
from gpulab.runtime.emulated import EmulatedDevice


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "ceilings", *arguments])
    return ended.value.code, capsys.readouterr()


@pytest.fixture
def no_card(monkeypatch):
    def missing(*_, **__):
        raise DeviceMissingError("no NVIDIA driver is installed", fix="install it")

    monkeypatch.setattr(session, "open_device", missing)


def test_without_a_card_there_is_nothing_to_measure(capsys, no_card):
    code, said = run(capsys)
    assert code == 7
    assert "no NVIDIA driver" in said.err
    code, said = run(capsys, "--json")
    assert code == 7
    assert json.loads(said.out)["error"]["exit_code"] == 7


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--save", "/nowhere/at/all.jsonl"]])
def test_bad_requests_are_refused_first(capsys, no_card, arguments):
    code, said = run(capsys, *arguments)
    assert code == 2
    assert arguments[0] in said.err


def found(verdict):
    return {
        "schema": 1, "op": "ceiling", "kernel": "fma", "backend": "raw", "format": "fp32",
        "accumulator": "fp32", "instruction": "fma.rn.f32", "verdict": verdict, "reason": None,
        "time_ms": {"median": 1.0}, "tflops": 55.5, "gb_per_s": None, "timing": {},
    }  # fmt: skip


@pytest.mark.parametrize(("verdict", "exit_code"), [("PASS", 0), ("FAIL", 1)])
def test_records_are_printed_and_kept(capsys, monkeypatch, tmp_path, verdict, exit_code):
    device = EmulatedDevice((8, 9))
    monkeypatch.setattr(session, "open_device", lambda *_, **__: device)
    monkeypatch.setattr(cuda_clock, "clock_of", lambda _: SimpleNamespace())
    refused = found(None) | {"reason": "does not build: x"}
    monkeypatch.setattr(ceilings, "measure", lambda *_, **__: [found(verdict), refused])
    kept = tmp_path / "ceilings.jsonl"
    code, said = run(capsys, "--save", str(kept))
    assert code == exit_code
    assert "55.5" in said.out
    assert "does not build: x" in said.out
    (line,) = kept.read_text().splitlines()
    record = json.loads(line)
    assert record.pop("environment")["device_name"] == device.name
    assert record == found(verdict)
    code, said = run(capsys, "--json")
    assert [json.loads(x)["verdict"] for x in said.out.splitlines()] == [verdict, None]
