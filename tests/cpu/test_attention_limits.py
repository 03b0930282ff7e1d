"""What attention's limits are measured with is the shipped kernel, less what a record says."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import attention_limits as limits
import attention_variants as variants
from performance_units import HostClock

from gpulab import arch
from gpulab.errors import BuildError, DeviceMissingError, UsageError
from gpulab.kernels.attention import mma
from gpulab.numerics.verdict import Reason
from gpulab.runtime import nvrtc, resources
from gpulab.runtime.emulated import EmulatedDevice
from gpulab.runtime.timing import Timing

CARD = (9, 0)
SPILL_BOUND = 64
"""Bytes of tiles that are timed as data; what leaves a cost out must spill nothing."""
SHIPPED = variants.Candidate(mma.tile(CARD, variants.HEAD_DIM), "shipped")
ABLATIONS = [c for c in variants.candidates(CARD) if c.kind == "ablation"]
TILES = [c for c in variants.candidates(CARD) if c.kind == "tile"]


def compiled(candidate, folder):
    request = candidate.request(CARD, folder)
    made = nvrtc.compile_cubin(request.source, request.entry, CARD)
    return made, resources.parse(made.log, made.lowered, made.ptx)


def test_the_text_that_is_edited_is_the_shipped_kernel(tmp_path, monkeypatch):
    device = EmulatedDevice(CARD)
    limits.check_unedited(device, tmp_path)
    codes = iter([b"shipped", b"another"])
    monkeypatch.setattr(limits, "machine_code", lambda *_: next(codes))
    with pytest.raises(UsageError, match="another kernel than shipped"):
        limits.check_unedited(device, tmp_path)


def test_the_text_has_every_header_beside_it_once():
    text = variants.flattened()
    assert '#include "attention/' not in text
    for once in ("struct Tile {", "struct Warp {", "struct Shape {", "void walk(const Shape& s"):
        assert text.count(once) == 1, once


@pytest.mark.parametrize("name", variants.LEFT_OUT)
def test_every_edit_is_of_the_source_as_it_is(name, tmp_path):
    (candidate,) = (c for c in ABLATIONS if c.left_out == name)
    request = candidate.request(CARD, tmp_path)
    text = Path(request.source).read_text()
    for old, new in variants.LEFT_OUT[name]:
        assert old not in text
        assert new in text
    assert request.entry == SHIPPED.request(CARD, tmp_path).entry
    assert SHIPPED.request(CARD, tmp_path).source == variants.SOURCE


def test_an_edit_of_what_is_not_there_once_is_refused():
    assert variants.edited("a b c", (("b", "x"), ("x c", "y"))) == "a y"
    with pytest.raises(UsageError, match="0 times, not once: 'exp'"):
        variants.edited("no such thing", (("exp", ""),))
    with pytest.raises(UsageError, match="2 times, not once: 'a'"):
        variants.edited("a b a", (("a", ""),))


def test_an_object_without_the_kernel_is_refused(tmp_path):
    made, used = compiled(next(c for c in ABLATIONS if c.left_out == "softmax"), tmp_path)
    assert used.spill_bytes == 0
    code = variants.machine_code(made.cubin, made.lowered)
    assert code in made.cubin
    assert code
    assert len(code) % 16 == 0  # an instruction is 16 bytes
    with pytest.raises(BuildError, match="no code of other"):
        variants.machine_code(made.cubin, "other")


@pytest.mark.whole
@pytest.mark.parametrize("candidate", ABLATIONS + TILES, ids=lambda c: c.name)
def test_every_candidate_compiles_and_fits(candidate, tmp_path):
    made, used = compiled(candidate, tmp_path)
    assert used.spill_bytes <= (0 if candidate.kind == "ablation" else SPILL_BOUND)
    assert candidate.tile.cpp in made.entry
    row, tile = arch.get(CARD), candidate.tile
    shared = tile.shared_bytes(variants.HEAD_DIM) + row.shared_reserved_bytes
    assert tile.blocks * shared <= row.shared_per_sm_bytes
    assert tile.blocks * tile.threads * used.registers <= row.registers_per_sm


def test_the_candidates_differ():
    every = variants.candidates(CARD)
    assert len({c.name for c in every}) == len(every)
    assert every[0].name == SHIPPED.tile.cpp
    assert {c.kind for c in every} == {"shipped", "ablation", "tile"}


def test_an_edited_kernel_is_never_judged_and_a_wrong_output_fails():
    said = limits.judged(ABLATIONS[0], None, None, None)
    assert said["verdict"] is None
    assert "wrong by design: exponential" in said["reason"]
    taken = Timing("events", 1, "flushed", 1, 3, 1, 1, samples_ms=[2.0, 1.0, 4.0])
    dims = variants.problem(2, 4, 8, 1)
    made = limits.line(ABLATIONS[0], dims, {"registers": 255}, taken, said)
    assert (made["left_out"], made["verdict"], made["time_ms"]["median"]) == (
        "exponential",
        None,
        2,
    )
    pairs = 2 * 4 * (8 * 9 // 2)  # causal: 1 + 2 + ... + 8 of each head
    assert made["tflops"] == pytest.approx(4 * 128 * pairs / 2e-3 / 1e12)
    taken.wrong.append("run 3, set 0: out differs from that of the first run")
    passed = {"verdict": "PASS", "reason": None}
    made = limits.line(TILES[0], dims, None, taken, passed)
    assert (made["verdict"], made["left_out"]) == ("FAIL", None)
    assert "run 3" in made["reason"]


def test_a_tile_that_is_wrong_has_a_record_that_says_why(monkeypatch):
    reason = Reason("interval", "out[0, 0, 1, 2]: got 3", (0, 0, 1, 2), "normal")
    wrong = SimpleNamespace(verdict="FAIL", reason=reason)
    judging = SimpleNamespace(judge=lambda *_, **__: wrong)
    monkeypatch.setattr(limits.ops, "get", lambda _: judging)
    monkeypatch.setattr(limits, "KernelRunner", lambda *_: None)
    case = SimpleNamespace(variant=None)
    said = limits.judged(TILES[0], case, SimpleNamespace(capability=CARD), None)
    assert json.loads(json.dumps(said))["reason"] == "out[0, 0, 1, 2]: got 3"


class Memory:
    """A device on which an array is a list."""

    same = staticmethod(lambda one, other: one == other)


@pytest.mark.parametrize("same", [True, False])
def test_a_timed_output_is_compared_with_the_first(same):
    filled = []
    runner = SimpleNamespace(
        device=Memory(),
        outputs=lambda poison=0: {"out": [poison]},
        bind=lambda arrays: lambda: filled.append(arrays),
    )
    bound = limits.Bound(runner, {}, same)
    assert len(filled) == int(same)
    bound.out["out"] = [1, 2]
    if same:
        bound.first["out"] = [1, 2]
    assert bound.verify(0) is None
    bound.out["out"] = [1, 3]
    assert bound.verify(0) == ("out differs from that of the first run" if same else None)


def test_without_a_card_nothing_is_written(tmp_path, monkeypatch, capsys):
    def missing(*_, **__):
        raise DeviceMissingError("no usable card")

    monkeypatch.setattr(limits, "open_device", missing)
    out = tmp_path / "limits.jsonl"
    out.write_text("before")
    assert limits.main(["--out", str(out)]) == 7
    assert out.read_text() == "before"
    assert "no usable card" in capsys.readouterr().err


@pytest.mark.whole
def test_a_run_on_the_emulated_device(tmp_path, monkeypatch, capsys):
    small = [variants.problem(1, 1, 16, causal) for causal in (0, 1)]
    monkeypatch.setattr(limits, "JUDGED", variants.problem(1, 1, 17, 1))
    wanted = [SHIPPED, ABLATIONS[0], TILES[-1]]
    found = limits.measure(EmulatedDevice(CARD), HostClock(), wanted, small, tmp_path, 1)
    assert [r["verdict"] for r in found] == ["PASS", None, "PASS"] * 2
    assert [r["kind"] for r in found] == ["shipped", "ablation", "tile"] * 2
    assert found[0]["timing"]["verified"] == 1
    assert found[2]["tile"]["row_tiles"] == TILES[-1].tile.row_tiles
    assert all(r["resources"]["shared_bytes"] > 0 for r in found)
    assert json.loads(json.dumps(found)) == found
    assert capsys.readouterr().err.count("not judged") == 2
    assert np.isfinite([r["tflops"] for r in found]).all()
