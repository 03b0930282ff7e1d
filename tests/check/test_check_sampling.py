"""A few blocks at the timed size, without a card."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from gpulab import arch, exercises
from gpulab.check import page, ptx, reports, sampling, token
from gpulab.check.evidence import STAGES
from gpulab.emulator.machine import Machine

TESTS = Path(__file__).resolve().parents[1]
CHEAT = TESTS / "exploits" / "files" / "half_at_the_timed_size_only.cu"
WRONG = TESTS / "submissions" / "wrong"
COUNTER = TESTS / "exploits" / "files" / "counter_beside_half.cu"
SPLIT = TESTS / "submissions" / "correct" / "fp16-matmul" / "split_k_in_turn.cu"
NAIVE = TESTS / "submissions" / "correct" / "fp16-matmul" / "naive.cu"
TOO_FEW = "softmax/timed-size/too_few_blocks.cu"
BETWEEN_ROWS = "rmsnorm/race/between_rows.cu"
ROW_BUFFER = "softmax/out-of-bounds/row_buffer.cu"
AT_LARGE_SIZES = (TOO_FEW, BETWEEN_ROWS, ROW_BUFFER)
MATMUL = exercises.get("fp16-matmul")


def stage(result, name="timed size"):
    return next(s for s in result.stages if s.name == name)


def changed(tmp_path, old, new, path=NAIVE):
    text = path.read_text()
    assert old in text
    copy = tmp_path / path.name
    copy.write_text(text.replace(old, new))
    return copy


def judged_at(judged, path, dims):
    """Judge one size alone."""
    only = token.Token("fp16-matmul", 20240611, dict(dims), "emulated", arch.DEFAULT_EMULATED)
    return judged(path, only=only)


def at_the_timed_size(judged, path):
    return judged_at(judged, path, MATMUL.timed)


def test_another_path_at_the_timed_size_is_seen_and_replayed(judged):
    result = judged(CHEAT)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == ("FAIL", "timed-size", 1)
    only = token.parse(result.facts["replay"])
    assert dict(only.dims) == {"m": 2048, "n": 2048, "k": 2048}
    again = judged(CHEAT, only=only, seed=only.seed)
    assert (again.verdict, again.diagnosis) == ("FAIL", result.diagnosis)
    right = judged(NAIVE, only=only, seed=only.seed)
    assert right.verdict == "PASS"


def test_what_is_right_there_says_how_much_was_looked_at(judged):
    result = at_the_timed_size(judged, NAIVE)
    assert result.verdict == "PASS", result.reason
    assert "4 of 16384 blocks" in stage(result).text
    assert "all 1024 elements" in stage(result).text


def test_a_fault_there_is_told_with_that_size(judged, tmp_path):
    far = changed(
        tmp_path, "if (row < m", "if (min(m, n) > 1000) c[(size_t)m * n + row] = 0; if (row < m"
    )
    result = judged(far)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == (
        "FAIL", "out-of-bounds", 6,
    )  # fmt: skip
    assert "m2048" in result.facts["replay"]


def test_an_atomic_that_nothing_reads_does_not_hide_the_timed_size(judged):
    result = at_the_timed_size(judged, COUNTER)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", "timed-size")
    assert "2048" in result.facts["replay"]


@pytest.mark.parametrize(
    ("read", "verdict"), [("fast", "INCONCLUSIVE"), ("false", "PASS")], ids=["wrong", "right"]
)
def test_what_blocks_that_meet_write_is_a_pass_or_nothing(judged, tmp_path, read, verdict):
    """An atomic on the result itself: others might add to it too."""
    met = changed(
        tmp_path, "= sum;", "= sum; atomicAdd(c + (size_t)row * n + column, 0.0f);", COUNTER
    )
    met = changed(tmp_path, "sum = fast", f"sum = {read}", met)
    result = at_the_timed_size(judged, met)
    assert (result.verdict, result.exit_code) == (verdict, 0 if verdict == "PASS" else 3)
    assert "meet by atomics" in stage(result).text
    assert ("needs a card" in result.reason) is (verdict != "PASS")


TILES = "ceil(n/16),ceil(m/16),2"
FLAT = "const int across = (n + 15) / 16, tile = {tile}, part = {part};"
PLACES = (
    "const int row = tile / across * 16 + threadIdx.y, column = tile % across * 16 + threadIdx.x;"
)


NEXT = ("blockIdx.x / 2", "blockIdx.x % 2")
FAR = ("blockIdx.x % (gridDim.x / 2)", "blockIdx.x / (gridDim.x / 2)")


@pytest.mark.parametrize(("tile", "part", "lost"), [(*NEXT, 0), (*FAR, 0), (*FAR, 1)])
def test_blocks_that_share_a_tile_are_launched_together(
    judged, tmp_path, monkeypatch, tile, part, lost
):
    monkeypatch.setattr(sampling, "BUDGET", 50_000)  # so long they wait for blocks not launched
    flat = changed(tmp_path, TILES, "ceil(n/16)*ceil(m/16)*2", SPLIT)
    lines = flat.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "const int row" in line)
    lines[at] = FLAT.format(tile=tile, part=part)
    lines[at + 1] = PLACES
    lines.insert(at + 2, "const int terms = (k + 1) / 2, first = part * terms;")
    flat.write_text("\n".join(line for i, line in enumerate(lines) if i != at + 3))
    flat = changed(tmp_path, "first + terms); ++t", f"first + terms) - {lost}; ++t", flat)
    result = at_the_timed_size(judged, flat)
    assert result.verdict == ("INCONCLUSIVE" if lost else "PASS"), result.reason
    if not lost:
        assert "8 of 32768 blocks" in stage(result).text


def test_blocks_that_write_nothing_decide_nothing(judged, tmp_path):
    """All work is done by blocks between the first and the last."""
    idle = changed(tmp_path, "ceil(m/16)", "ceil(m/16)+60000")
    idle = changed(tmp_path, "blockIdx.y * blockDim.y", "(int(blockIdx.y) - 30000) * 16", idle)
    idle = changed(tmp_path, "if (row < m", "if (row >= 0 && row < m", idle)
    result = at_the_timed_size(judged, idle)
    assert (result.verdict, result.exit_code) == ("INCONCLUSIVE", 3)
    assert "write nothing" in result.reason


def test_a_grid_too_small_for_the_result_is_told(judged):
    result = judged(WRONG / TOO_FEW)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", "timed-size")
    assert (
        "1024 blocks that write at most 4096 elements of y each are too few for its 16777216"
        in (result.diagnosis.text)
    )
    assert "grid" in result.diagnosis.fix
    assert "4096" in result.facts["replay"]


def test_blocks_that_have_nothing_to_do_are_no_grid_too_small(judged, tmp_path):
    idle = changed(tmp_path, "grid=ceil(n/16),ceil(m/16)", "grid=ceil(n/16),ceil(m/16),2")
    idle = changed(tmp_path, "float sum", "if (blockIdx.z) return; float sum", idle)
    result = at_the_timed_size(judged, idle)
    assert result.verdict == "PASS", result.reason
    assert stage(result).status == "PASS"


def test_a_race_of_long_loops_is_seen_there(judged):
    """At smaller sizes a block has one row, and nothing to overwrite."""
    result = judged(WRONG / BETWEEN_ROWS)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == ("FAIL", "race", 6)
    assert "4096" in result.facts["replay"]


def test_more_terms_than_are_timed_are_looked_at_and_replayed(judged, tmp_path):
    few = changed(tmp_path, "t < k", "t < min(k, 2048)")
    result = judged_at(judged, few, MATMUL.longest.dims)
    assert (result.verdict, result.diagnosis.slug) == ("FAIL", "timed-size")
    assert "k=4621" in result.diagnosis.text
    only = token.parse(result.facts["replay"])
    again = judged(few, only=only, seed=only.seed)
    assert (again.verdict, again.diagnosis) == ("FAIL", result.diagnosis)
    assert judged(NAIVE, only=only, seed=only.seed).verdict == "PASS"
    assert judged(few, timed=False).verdict == "PASS"


def test_what_is_too_slow_for_more_terms_passes_and_says_so(judged, monkeypatch):
    longest = MATMUL.longest.dims
    assert "not_looked_at" not in judged_at(judged, NAIVE, longest).facts
    monkeypatch.setattr(sampling, "BUDGET", 100)
    result = judged_at(judged, NAIVE, longest)
    assert (result.verdict, result.facts["not_looked_at"]) == ("PASS", "more terms than are timed")


def test_a_buffer_of_the_size_that_is_timed_ends_there(judged):
    result = judged(WRONG / ROW_BUFFER)
    assert (result.verdict, result.diagnosis.slug, result.exit_code) == (
        "FAIL", "out-of-bounds", 6,
    )  # fmt: skip
    assert "9227" in result.facts["replay"]


def test_blocks_that_take_too_long_leave_it_to_a_card(judged, monkeypatch):
    monkeypatch.setattr(sampling, "BUDGET", 100)
    result = judged(NAIVE)
    assert result.verdict == "PASS", result.reason
    assert stage(result).status == "not run"
    assert "needs a card" in stage(result).text
    assert result.facts["not_looked_at"] == "timed size, more terms than are timed"
    record, console = result.to_json(), Console(width=200)
    with console.capture() as shown:
        page.print_page(console, record)
    assert "PASS" in shown.get().splitlines()[0]
    assert all(
        "timed size, more terms than are timed not looked at" in text.splitlines()[line]
        for text, line in ((shown.get(), 0), (reports.markdown([record]), 2))
    )


@pytest.mark.parametrize(
    ("line", "meets"),
    [
        ("atom.global.add.f32 %f1, [%rd1], %f2;", True),
        ("red.global.add.f32 [%rd1], %f2;", True),
        ("atom.add.u32 %r1, [%rd1], 1;", True),
        ("ld.volatile.global.u32 %r1, [%rd1];", True),
        ("ld.acquire.gpu.global.u32 %r1, [%rd1];", True),
        ("atom.shared.add.u32 %r1, [%r2], 1;", False),
        ("red.shared.add.u32 [%r2], 1;", False),
        ("ld.global.nc.f32 %f1, [%rd1];", False),
        ("redux.sync.add.s32 %r1, %r2, -1;", False),
    ],
)
def test_which_code_lets_blocks_meet(line, meets):
    assert ptx.meets(f"\t{line}\n") is meets


COUNTED = """
.global .align 4 .u32 count;
\tmov.u64 \t%rd3, count;
\tatom.global.add.u32 \t%r1, [%rd3], 1;
"""


@pytest.mark.parametrize(
    ("further", "meets"),
    [
        ("", False),
        ("\tred.global.add.u32 \t[%rd3], 1;\n", False),
        ("\tsetp.eq.s32 \t%p1, %r1, 7;\n", True),
        ("\tld.global.u32 \t%r2, [%rd3];\n", True),
        ("\tmov.u64 \t%rd4, count;\n", True),
        ("\tatom.global.add.f32 \t%f1, [%rd9], %f2;\n", True),
    ],
)
def test_an_atomic_of_which_nothing_is_seen_is_no_meeting(further, meets):
    assert ptx.meets(COUNTED + further) is meets


def test_variables_are_those_that_code_names():
    text = (
        ".visible .global .align 4 .u32 count;\n.global .align 1 .b8 left_behind[1];\n"
        ".const .align 4 .u32 table[4];\n.common .global .align 8 .u64 environment;\n"
        ".visible .entry k() {\n\tld.global.u32 %r1, [count];\n\tld.const.u32 %r2, [table];\n}\n"
    )
    assert ptx.variables(text) == ("count",)


def test_the_first_and_the_last_block_are_among_them():
    drawn = {sampling._choose(1000, seed) for seed in range(9)}
    assert len(drawn) > 5
    assert all(blocks[0] == 0 and blocks[-1] == 999 for blocks in drawn)
    assert sampling._choose(1, 3) == (0,)
    assert sampling.STAGE in STAGES


def test_a_machine_runs_the_blocks_it_is_told():
    text = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
  .reg .b32 %r<3>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %ctaid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r1;
  ret;
}
"""
    machine = Machine((8, 0))
    program = machine.load(text)
    address = machine.alloc(40)
    machine.fill(address, 40, 0xFF)
    machine.blocks = [2, 7]
    machine.launch(program, "k", (10,), (1,), [address.to_bytes(8, "little")])
    got = machine.read(address, 40).view(np.int32)
    assert [int(x) for x in np.flatnonzero(got != -1)] == [2, 7]
    machine.blocks = None
    machine.launch(program, "k", (10,), (1,), [address.to_bytes(8, "little")])
    assert (machine.read(address, 40).view(np.int32) == np.arange(10)).all()
