"""The comparison with ncu, fed with tables of ncu's raw page."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import ncu_counters
from counter_works import Work, launch, works
from ncu_counters import known_metrics, read_csv
from ncu_rows import ALONGSIDE, BANKS, LOST_TURNS, NEEDED, SECTORS, compare

from gpulab.errors import DeviceMissingError, UsageError
from gpulab.runtime.emulated import EmulatedDevice

EXPECTED = [
    work for work in works((8, 9)) if work.label in ("probe/load_step 2", "probe/shared_step 32")
]
METRICS = [*NEEDED, ALONGSIDE[-1]]


def table(values: dict[str, dict[str, str]], names: list[str] | None = None) -> str:
    """ncu's raw page: its own lines, a header, a row of units, a row a launch."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["ID", "Process ID", "Kernel Name", *METRICS])
    writer.writerow(["", "", "", *("sector" for _ in METRICS)])
    for i, work in enumerate(EXPECTED):
        name = names[i] if names else f"{work.symbol}"
        row = values.get(work.label, {})
        writer.writerow([str(i), "77", name, *(row.get(metric, "0") for metric in METRICS)])
    return f"==PROF== Connected to process 77\n{out.getvalue()}==PROF== Disconnected\n"


def test_the_table_is_read_in_order_with_separators() -> None:
    found = read_csv(table({EXPECTED[0].label: {NEEDED[2]: "1,048"}}), EXPECTED, METRICS)
    assert [row[NEEDED[2]] for row in found] == [1048, 0]


@pytest.mark.parametrize("cell", ["n/a", "", "nan", "-1", "0x10"])
def test_a_metric_that_is_no_count_is_refused(cell: str) -> None:
    with pytest.raises(DeviceMissingError, match="load_step"):
        read_csv(table({EXPECTED[0].label: {NEEDED[0]: cell}}), EXPECTED, METRICS)


def test_a_missing_optional_metric_is_left_out() -> None:
    found = read_csv(table({EXPECTED[0].label: {METRICS[-1]: "n/a"}}), EXPECTED, METRICS)
    assert METRICS[-1] not in found[0]
    assert METRICS[-1] in found[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no table"),
        ("==ERROR== ERR_NVGPUCTRPERM\n", "no table"),
        (table({}).replace('"0","77"', '"","77"'), "1 launches, not 2"),
        (table({}, ["other", "shared_step"]), "where probe/load_step 2 should be"),
        (table({}, ["shared_step", "load_step"]), "where probe/load_step 2 should be"),
    ],
)
def test_a_table_of_other_launches_is_refused(text: str, why: str) -> None:
    with pytest.raises(DeviceMissingError, match=why):
        read_csv(text, EXPECTED, METRICS)


def test_equal_and_unequal_numbers() -> None:
    device = EmulatedDevice((8, 9), counters=True)
    counters = [launch(device, work) for work in EXPECTED]
    # Two blocks of three warps, stride 2: 8 sectors a warp; one warp down a column: 31 conflicts.
    right = {
        EXPECTED[0].label: dict(zip(NEEDED, ("6", "6", "48", "24", "0", "0"), strict=True)),
        EXPECTED[1].label: dict(zip(NEEDED, ("1", "1", "4", "4", "31", "31"), strict=True)),
    }
    measured = read_csv(table(right), EXPECTED, METRICS)
    for work, ours, theirs in zip(EXPECTED, counters, measured, strict=True):
        rows = compare(work, ours or {}, theirs)
        assert all(row["equal"] for row in rows if row["metric"] in NEEDED)
        assert {row["metric"] for row in rows if row["compared"]} == {*SECTORS, *NEEDED[4:]}
        theirs[NEEDED[2]] += 1
        rows = compare(work, ours or {}, theirs)
        assert [row["metric"] for row in rows if row["compared"] and not row["equal"]] == [
            NEEDED[2]
        ]


def test_conflicts_are_compared_by_instruction_where_the_card_tells_them() -> None:
    """The hardware's counter also counts turns lost to other traffic."""
    (sass, counter), ours = BANKS[0], {BANKS[0][1]: 31}
    held = {
        row["metric"]: row["equal"]
        for row in compare(EXPECTED[1], ours, {sass: 31.0, counter: 40.0, SECTORS[0]: 4.0})
        if row["compared"]
    }
    assert held == {sass: True, SECTORS[0]: False}
    rows = compare(EXPECTED[1], ours, {counter: 40.0})
    assert [(row["metric"], row["compared"], row["equal"]) for row in rows] == [
        (counter, True, False)
    ]


STAND_IN = """#!{python}
import csv, json, sys
told = json.loads(open({numbers!r}).read())
if "--query-metrics" in sys.argv:
    print("Device NVIDIA H200 (GH100)")
    print("\\n".join(name.rpartition(".")[0] + "  Counter  x" for name in told["listed"]))
elif "--version" in sys.argv:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 1)")
else:
    options = dict(zip(sys.argv, sys.argv[1:]))
    metrics = options["--metrics"].split(",")
    with open(options["--log-file"], "w") as log:
        log.write(told["prefix"])
        table = csv.writer(log, quoting=csv.QUOTE_ALL)
        table.writerow(["ID", "Process ID", "Kernel Name", *metrics])
        table.writerow(["", "", "", *("x" for _ in metrics)])
        for i, (label, symbol, numbers) in enumerate(told["launches"]):
            print("launched " + label)
            table.writerow([i, 7, symbol, *(numbers.get(m, 0) for m in metrics)])
    sys.exit(told["code"])
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The whole script with six probes for kernels of the lab and a program for ncu."""
    expected = [replace(work, lab=True) for work in works((9, 0)) if not work.lab][:30:5]
    device = EmulatedDevice((9, 0), counters=True)
    counted = [launch(device, work) or {} for work in expected]

    def run(wrong: str = "", code: int = 0, prefix: str = "", options: tuple[str, ...] = ()) -> int:
        launches = [
            (w.label, w.symbol, {k: v + (k == wrong) for k, v in c.items() if k in NEEDED})
            for w, c in zip(expected, counted, strict=True)
        ]
        numbers = tmp_path / "numbers.json"
        told = {"listed": NEEDED, "launches": launches, "code": code, "prefix": prefix}
        numbers.write_text(json.dumps(told))
        text = STAND_IN.format(python=sys.executable, numbers=str(numbers))
        smi = "#!/bin/sh\necho 'NVIDIA H200, 580.159.04, 9.0'\n"
        for name, body in (("ncu", text), ("nvidia-smi", smi)):
            (tmp_path / name).write_text(body)
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(ncu_counters, "works", lambda capability: expected)
        monkeypatch.setattr(sys, "argv", ["ncu", "--out", str(tmp_path / "out.jsonl"), *options])
        return ncu_counters.main()

    return run


def test_a_whole_run(stand_in: Callable[..., int], tmp_path: Path) -> None:
    assert stand_in() == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len({row["kernel"] for row in rows}) == 6
    assert {row["metric"] for row in rows if row["compared"]} == {
        *SECTORS,
        BANKS[0][1],
        BANKS[1][1],
    }
    assert all(row["equal"] and row["emulated"] == row["ncu"] for row in rows)
    assert {(row["card"], row["ncu_version"]) for row in rows} == {("NVIDIA H200", "2025.3.1.0")}


def test_a_whole_run_with_other_numbers(
    stand_in: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stand_in(wrong=SECTORS[1]) == 1
    assert "apart: probe/" in capsys.readouterr().out
    assert stand_in(wrong=NEEDED[0]) == 0  # requests are told and do not decide
    assert "beside: probe/" in capsys.readouterr().out


def test_a_recording_is_judged_anew_without_a_card(
    stand_in: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stand_in() == 0
    told = tmp_path / "told.jsonl"
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    stale = [row | {"emulated": -1, "equal": False, "date": "2020-01-01"} for row in rows]
    again = ("--recompare", str(told))
    told.write_text("".join(json.dumps(row) + "\n" for row in stale))
    assert stand_in(code=1, options=again) == 0  # ncu, which would fail, is not asked
    anew = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert anew == [row | {"date": "2020-01-01"} for row in rows]
    first = next(i for i, row in enumerate(rows) if row["metric"] == SECTORS[1])
    stale[first]["ncu"] += 1
    told.write_text("".join(json.dumps(row) + "\n" for row in stale))
    assert stand_in(options=again) == 1
    assert "apart: probe/" in capsys.readouterr().out
    for change, why in (({"kernel": "raw/gone"}, "any more"), ({"dims": {"m": 3}}, "other sizes")):
        told.write_text("".join(json.dumps(row | change) + "\n" for row in rows))
        with pytest.raises(UsageError, match=why):
            stand_in(options=again)


def test_only_turns_that_copies_could_have_taken_are_explained() -> None:
    emulated = {BANKS[0][1]: 5, BANKS[1][1]: 5, "async_copy_wavefronts": 16}
    for metric in (BANKS[0][1], BANKS[1][1]):
        for value in (4, 6, 21, 22):
            (row,) = compare(EXPECTED[0], emulated, {metric: float(value)})
            wanted = LOST_TURNS if metric == BANKS[0][1] and 5 < value <= 21 else ""
            assert (row["equal"], row["explanation"]) == (False, wanted)


def test_the_committed_table_claims_what_its_numbers_say() -> None:
    rows = [json.loads(line) for line in ncu_counters.OUT.read_text().splitlines()]
    lab, unequal = {row["kernel"] for row in rows if row["lab"]}, set()
    for row in rows:
        assert row["equal"] == (row["emulated"] == row["ncu"])
        if row["compared"] and not row["equal"]:
            assert row["explanation"]
            unequal.add(row["kernel"])
        elif row["equal"]:
            assert not row["explanation"]
    assert len(lab - unequal) >= 6


def test_counters_that_nobody_may_read(stand_in: Callable[..., int]) -> None:
    with pytest.raises(DeviceMissingError, match="ncu ended with 1") as caught:
        stand_in(code=1, prefix="==ERROR== ERR_NVGPUCTRPERM - no permission\n")
    assert "ERR_NVGPUCTRPERM" in (caught.value.fix or "")


def test_metrics_the_card_lacks_are_not_asked_for() -> None:
    listing = (
        "Device NVIDIA H200 (GH100)\n---\nMetric Name    Metric Type\n---\n"
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld      Counter   requests  # of requests\n"
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld_lookup_hit  Counter  x\n"
    )
    assert known_metrics(listing, NEEDED) == ["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
    assert known_metrics("", NEEDED) == []


def test_every_kernel_of_the_list_has_its_counters() -> None:
    lab = [work for work in works((9, 0)) if work.lab]
    assert len({work.label for work in lab}) >= 6
    symbols: dict[str, list[Work]] = {}
    for work in works((9, 0)):
        symbols.setdefault(work.symbol, []).append(work)
    assert all(symbol and " " not in symbol for symbol in symbols)


def test_without_a_card_it_says_so_and_exits_7(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ncu_counters.__file__, "--out", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == 7
    assert "needs ncu" in done.stderr
    assert not (tmp_path / "x").exists()
