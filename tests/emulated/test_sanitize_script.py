"""The comparison with compute-sanitizer, fed with outputs of the tool's documented forms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "bugs"))

import corpus
import sanitize_corpus
from sanitizer_output import TOOLS, Output, parse
from sanitizer_rows import bug_row, judge_anew, twin_row

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEAD = "========= COMPUTE-SANITIZER\n"
SAMPLES = {p.stem: p.read_text() for p in (HERE / "sanitizer_samples").glob("*.txt")}
"""In the forms that the tool's manual shows, 2022 (0x70 in FILE:LINE:KERNEL) and since."""
RACE = SAMPLES["race"]
AS_WARNING = RACE.replace("Error:", "Warning:").replace("(1 error, 0 w", "(0 errors, 1 w")
AS_WARNING = AS_WARNING.replace("1 warnings", "1 warning")


def clean(tool: str, *cases: str) -> str:
    last = "ERROR SUMMARY: 0 errors"
    if tool == "racecheck":
        last = "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
    return HEAD + "".join(f"launched {case}\n" for case in cases) + f"========= {last}\n"


@pytest.mark.parametrize(
    ("tool", "text", "case", "kind", "lines"),
    [
        ("memcheck", SAMPLES["out_of_bounds"], "store_off_by_one", "out_of_bounds", (6,)),
        ("memcheck", SAMPLES["misaligned"], "misaligned_vector", "misaligned", (5,)),
        ("racecheck", RACE, "double_buffer", "race", (11, 13)),
        ("racecheck", AS_WARNING, "double_buffer", "race", (11, 13)),
        ("initcheck", SAMPLES["uninitialised"], "uninitialised_global", "uninitialised", (6,)),
        (
            "synccheck",
            SAMPLES["barrier_divergence"],
            "divergent_barrier",
            "barrier_divergence",
            (8,),
        ),
        (
            "synccheck",
            SAMPLES["invalid_mask"],
            "syncwarp_foreign_mask",
            "barrier_divergence",
            (11,),
        ),
        ("memcheck", SAMPLES["assert"], "assert_fails", "trap", (5,)),
        ("memcheck", SAMPLES["print_limit"], "index_overflow", "out_of_bounds", (8,)),
    ],
)
def test_documented_forms(
    tool: str, text: str, case: str, kind: str, lines: tuple[int, ...]
) -> None:
    output = parse(tool, text, 0, (case,))
    assert output.problem is None
    assert {f.kind for f in output.of(case)} == {kind}
    found = output.of(case)[0]
    assert found.lines == lines
    assert f"{case}.cu:{lines[0]}" in found.text
    assert "/" not in found.text
    assert "Host Frame" not in found.text


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("", 0, "no compute-sanitizer header"),
        ("launched double_buffer\n", 0, "no compute-sanitizer header"),
        (HEAD + "launched double_buffer\n", 0, "0 summaries"),
        (RACE, None, "stopped for time"),
        (RACE.replace("launched double_buffer\n", ""), 0, "never launched"),
        (
            RACE + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
            0,
            "2 sum",
        ),
        (RACE.replace("1 hazard displayed", "one hazard displayed"), 0, "0 summaries"),
        (clean("memcheck", "double_buffer"), 0, "0 summaries of racecheck, 1 of another form"),
        (RACE.replace("Race reported", "Trouble seen"), 0, "none of a form known"),
        (RACE.replace("1 hazard displayed (1 error", "0 hazards displayed (0 errors"), 0, "zero"),
        (
            HEAD + "========= Error: Device not supported. Please refer to the docs\n",
            1,
            "the tool says",
        ),
        (
            RACE + "========= Internal Sanitizer Error: The Sanitizer encountered an error\n",
            0,
            "tool says",
        ),
        (
            HEAD + "========= Target application terminated before first instrumented API call\n",
            1,
            "says",
        ),
    ],
)
def test_an_unclear_output_is_never_evidence(text: str, code: int | None, why: str) -> None:
    output = parse("racecheck", text, code, ("double_buffer",))
    assert output.problem is not None
    assert why in output.problem
    model = {"found": True, "kind": "race", "lines": [11, 13]}
    case = corpus.get("double_buffer")
    assert bug_row(case, output, model)["agreement"] is False
    twin = corpus.get("double_buffer_ok")
    nothing = {"found": False, "kind": None, "lines": []}
    assert twin_row(twin, output, True, nothing)["agreement"] is False


def models() -> dict[str, dict[str, Any]]:
    return {
        case.label: {"found": bool(case.fault), "kind": case.fault or None, "lines": case.lines()}
        for case in corpus.cases()
    }


def outputs() -> dict[tuple[str, str], Output]:
    """Outputs of a whole run in which every tool finds what it should."""
    texts: dict[tuple[str, str], str] = {}
    for case in corpus.cases():
        if case.fault and case.tool:
            at = f"\n=========     at k()+0x1 in {case.source.name}:{case.lines()[-1]}"
            report = {
                "race": f"Error: Race reported between Write access{at}",
                "out_of_bounds": f"Invalid __global__ write of size 4 bytes{at}",
                "misaligned": f"Invalid __global__ read of size 16 bytes{at} is misaligned",
                "uninitialised": f"Uninitialized __global__ memory read of size 4 bytes{at}",
                "barrier_divergence": f"Barrier error detected.{at}",
                "warp_divergence": f"Barrier error detected. Invalid arguments.{at}",
                "async_in_flight": f"Error: Race reported between Write access{at}",
                "trap": 'Program hit cudaErrorLaunchFailure (error 719) due to "x"',
            }[case.fault]
            end = "ERROR SUMMARY: 1 error"
            if case.tool == "racecheck":
                end = "RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
            launched = f"launched {case.label}\n"
            texts[case.tool, case.label] = f"{HEAD}========= {report}\n{launched}========= {end}\n"
    twins = tuple(case.label for case in corpus.cases() if not case.fault)
    texts |= {(tool, "twins"): clean(tool, *twins) for tool in TOOLS}
    return {
        key: parse(key[0], text, 0, twins if key[1] == "twins" else (key[1],))
        for key, text in texts.items()
    }


def test_a_whole_run_agrees() -> None:
    rows = sanitize_corpus.judge(outputs(), models(), shared=False)
    assert {row["agreement"] for row in rows if row["applies"]} == {True}
    for row in rows:
        if row["applies"]:
            assert not row["explanation"]
        else:
            assert row["agreement"] is None
            assert row["explanation"]
    bugs = sum(bool(case.fault) for case in corpus.cases())
    assert len(rows) == bugs + len(TOOLS) * (len(corpus.cases()) - bugs)


def test_a_bug_the_tool_misses_is_no_agreement() -> None:
    found = outputs()
    found["racecheck", "double_buffer"] = parse(
        "racecheck", clean("racecheck", "double_buffer"), 0, ("double_buffer",)
    )
    rows = sanitize_corpus.judge(found, models(), shared=False)
    assert [row["case"] for row in rows if row["agreement"] is False] == ["double_buffer"]


def test_a_bug_on_another_line_is_no_agreement() -> None:
    found = outputs()
    text = RACE.replace("double_buffer.cu:13", "double_buffer.cu:7")
    found["racecheck", "double_buffer"] = parse("racecheck", text, 0, ("double_buffer",))
    rows = sanitize_corpus.judge(found, models(), shared=False)
    assert [row["case"] for row in rows if row["agreement"] is False] == ["double_buffer"]


def test_a_report_on_a_twin_is_no_agreement() -> None:
    found = outputs()
    twins = tuple(case.label for case in corpus.cases() if not case.fault)
    text = "".join(f"launched {case}\n" for case in twins) + RACE.replace(
        "double_buffer.cu", "double_buffer_ok.cu"
    )
    found["racecheck", "twins"] = parse("racecheck", text, 0, twins)
    rows = sanitize_corpus.judge(found, models(), shared=False)
    assert [row["case"] for row in rows if row["agreement"] is False] == ["double_buffer_ok"]


def silent(found: dict[tuple[str, str], Output], tool: str, *names: str) -> None:
    """Make a tool find nothing in these kernels."""
    for name in names:
        found[tool, name] = parse(tool, clean(tool, name), 0, (name,))


def apart(rows: list[dict[str, Any]]) -> list[str]:
    return [row["case"] for row in rows if not row["agreement"] and not row["explanation"]]


def test_a_tool_that_finds_nothing_vouches_for_nothing() -> None:
    found = outputs()
    bugs = [c.label for c in corpus.cases() if c.tool == "racecheck" and c.fault]
    silent(found, "racecheck", *bugs)
    rows = sanitize_corpus.judge(found, models(), shared=False)
    twins = [row for row in rows if row["tool"] == "racecheck" and row["fault"] is None]
    assert twins
    assert {row["agreement"] for row in twins} == {None}
    assert all("none of its planted bugs" in row["explanation"] for row in twins)
    assert apart(rows) == bugs  # a control that is not seen explains nothing


@pytest.mark.parametrize("case", [c for c in corpus.cases() if c.control], ids=lambda c: c.label)
def test_a_control_that_is_seen_explains_a_bug_that_is_not(case: corpus.Case) -> None:
    found = outputs()
    silent(found, case.tool, case.label)
    rows = sanitize_corpus.judge(found, models(), shared=False)
    (row,) = (row for row in rows if row["case"] == case.label)
    assert (row["applies"], row["agreement"]) == (False, None)
    assert row["explanation"] == case.reason
    assert row["control"]["case"] == case.control
    assert row["control"]["lines"]
    assert apart(rows) == []
    blind = models()
    blind[case.label] = {"found": False, "kind": None, "lines": []}
    rows = sanitize_corpus.judge(found, blind, shared=False)
    assert apart(rows) == [case.label]
    silent(found, case.tool, case.control)
    rows = sanitize_corpus.judge(found, models(), shared=False)
    assert set(apart(rows)) == {case.label, case.control}


@pytest.mark.parametrize("case", [c for c in corpus.cases() if c.fault and c.tool])
def test_a_tool_that_does_not_end_is_explained_only_where_threads_wait(case: corpus.Case) -> None:
    found = outputs()
    found[case.tool, case.label] = parse(case.tool, HEAD, None, (case.label,))
    rows = sanitize_corpus.judge(found, models(), shared=False)
    (row,) = (row for row in rows if row["case"] == case.label)
    assert (row["found"], row["note"]) == (None, "stopped for time")
    if case.name == "barrier_in_loop":
        assert row["explanation"] == case.endless
        assert (row["applies"], row["agreement"]) == (False, None)
        blind = models() | {case.label: {"found": False, "kind": None, "lines": []}}
        assert apart(sanitize_corpus.judge(found, blind, shared=False)) == [case.label]
        found[case.tool, case.label] = parse(case.tool, "", 1, (case.label,))
        rows = sanitize_corpus.judge(found, models(), shared=False)
    assert apart(rows) == [case.label]


def test_rows_judged_anew_are_the_rows_judged_first() -> None:
    found = outputs()
    silent(found, "racecheck", "double_buffer", "histogram_read_early")
    silent(found, "synccheck", "divergent_barrier")
    late = "barrier_in_loop"
    found["synccheck", late] = parse("synccheck", HEAD, None, (late,))
    for said in (models(), models() | {late: {"found": False, "kind": None, "lines": []}}):
        rows = sanitize_corpus.judge(found, said, shared=False)
        stale = [row | {"agreement": 7, "explanation": "?", "applies": True} for row in rows]
        assert judge_anew([row | {"card": "c"} for row in stale], said) == [
            row | {"card": "c"} for row in rows
        ]


def test_every_committed_row_agrees_or_is_explained() -> None:
    rows = [json.loads(line) for line in sanitize_corpus.OUT.read_text().splitlines()]
    assert apart(rows) == []
    assert {(r["case"], r["tool"]) for r in rows if r["agreement"]}.isdisjoint(
        {("barrier_in_loop", "synccheck"), ("divergent_barrier", "synccheck")}
    )


def test_silence_about_what_a_twin_does_not_hold_is_no_agreement() -> None:
    rows = sanitize_corpus.judge(outputs(), models(), shared=False)
    by = {(row["case"], row["tool"]): row for row in rows}
    for case, tool, applies in (
        ("store_off_by_one_ok", "synccheck", False),
        ("store_off_by_one_ok", "racecheck", False),
        ("store_off_by_one_ok", "memcheck", True),
        ("divergent_barrier_ok", "synccheck", True),
        ("missing_syncwarp_ok", "synccheck", True),
        ("shuffle_order_ok", "racecheck", True),
        ("trap_on_negative_ok", "initcheck", True),
    ):
        assert by[case, tool]["applies"] == applies, (case, tool)


def test_an_emulated_device_that_misses_the_bug_is_no_agreement() -> None:
    blind = models()
    blind["double_buffer"] = {"found": False, "kind": None, "lines": []}
    rows = sanitize_corpus.judge(outputs(), blind, shared=False)
    assert [row["case"] for row in rows if row["agreement"] is False] == ["double_buffer"]


def test_without_a_card_it_says_so_and_exits_7(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts" / "sanitize_corpus.py"),
            "--out",
            str(tmp_path / "x"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == 7
    assert "compute-sanitizer" in done.stderr
    assert not (tmp_path / "x").exists()
