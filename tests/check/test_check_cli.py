"""``gpulab check`` and ``gpulab exercise``: outputs, exit codes, replay, a killed folder run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

SUBMISSIONS = Path(__file__).resolve().parents[1] / "submissions"
GOOD = SUBMISSIONS / "correct" / "fp16-matmul" / "naive.cu"
BAD = SUBMISSIONS / "wrong" / "fp16-matmul"
ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def gpulab(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "gpulab", *map(str, arguments)],
        capture_output=True, text=True, timeout=180, check=False, cwd=cwd, env=ENV,
    )  # fmt: skip


@pytest.fixture
def here(capsys):
    """The command in this process: its exit code and what it printed."""
    from gpulab.cli import main

    def run(*arguments):
        capsys.readouterr()
        try:
            main([*map(str, arguments)], prog_name="gpulab")
            code = 0
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=printed.out, stderr=printed.err)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four submissions and the run of all of them, with every report."""
    root = tmp_path_factory.mktemp("class")
    there = root / "submissions"
    there.mkdir()
    sources = {
        "ann.cu": GOOD.read_text(),
        "bob.cu": (BAD / "scaled" / "twice.cu").read_text(),
        "cem.cu": "int main() { return 0 }\n" + GOOD.read_text(),
        "dan.cu": "not a kernel <&>",
    }
    for name, text in sources.items():
        (there / name).write_text(text)
    reports = ("--junit", "j.xml", "--markdown", "m.md", "--sarif", "s.json")
    done = gpulab(
        "check",
        "submissions",
        "--no-time",
        "--jobs",
        "2",
        "--json",
        "--seed",
        "5",
        *reports,
        cwd=root,
    )
    return root, done


def test_a_folder_gives_one_object_a_line_and_the_highest_code(folder):
    root, done = folder
    records = {Path(r["file"]).name: r for r in map(json.loads, done.stdout.splitlines())}
    assert {n: r["verdict"] for n, r in records.items()} == {
        "ann.cu": "PASS", "bob.cu": "FAIL", "cem.cu": "FAIL", "dan.cu": "FAIL",
    }  # fmt: skip
    assert {n: r["exit_code"] for n, r in records.items()} == {
        "ann.cu": 0, "bob.cu": 1, "cem.cu": 4, "dan.cu": 2,
    }  # fmt: skip
    assert done.returncode == 4
    assert all(r["schema"] == 1 and r["kind"] == "check" for r in records.values())
    assert len((root / "gpulab-check.jsonl").read_text().splitlines()) == 4


def test_a_fault_is_told_with_the_files_own_name(judged):
    for isolated in (False, True):
        result = judged(BAD / "out-of-bounds" / "no_guard.cu", isolated=isolated)
        assert "at no_guard.cu:" in result.diagnosis.text
        assert "/no_guard.cu" not in json.dumps(result.to_json()).replace(str(BAD), "").replace(
            "/out-of-bounds/no_guard.cu", ""
        )


def test_junit_says_the_same(folder):
    suite = ElementTree.parse(folder[0] / "j.xml").getroot()
    assert suite.attrib["tests"] == "4"
    assert suite.attrib["failures"] == "1"
    assert suite.attrib["errors"] == "2"
    cases = {Path(c.attrib["name"]).name: [child.tag for child in c] for c in suite}
    assert cases == {"ann.cu": [], "bob.cu": ["failure"], "cem.cu": ["error"], "dan.cu": ["error"]}


def test_sarif_points_at_the_line(folder):
    report = json.loads((folder[0] / "s.json").read_text())
    (run,) = report["runs"]
    assert report["version"] == "2.1.0"
    found = {
        Path(r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]).name: r
        for r in run["results"]
    }
    assert set(found) == {"bob.cu", "cem.cu", "dan.cu"}
    assert found["cem.cu"]["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    assert {r["ruleId"] for r in found.values()} <= {
        rule["id"] for rule in run["tool"]["driver"]["rules"]
    }


def test_markdown_has_a_row_each(folder):
    text = (folder[0] / "m.md").read_text()
    for name, word in (("ann.cu", "PASS"), ("bob.cu", "scaled"), ("cem.cu", "does-not-compile")):
        (row,) = [line for line in text.splitlines() if name in line and line.startswith("|")]
        assert word in row


def test_resume_takes_over_what_has_not_changed(folder):
    root, _ = folder
    (root / "submissions" / "bob.cu").write_text(GOOD.read_text())
    before = (root / "gpulab-check.jsonl").read_text().splitlines()
    done = gpulab("check", "submissions", "--no-time", "--json", "--resume", cwd=root)
    records = {Path(r["file"]).name: r for r in map(json.loads, done.stdout.splitlines())}
    assert records["bob.cu"]["verdict"] == "PASS"
    assert records["bob.cu"]["seed"] == records["ann.cu"]["seed"] == 5
    after = (root / "gpulab-check.jsonl").read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1


def test_a_killed_run_is_resumed_and_leaves_no_process(tmp_path):
    there = tmp_path / "submissions"
    there.mkdir()
    for number in range(3):
        (there / f"s{number}.cu").write_text(GOOD.read_text())
    command = [sys.executable, "-m", "gpulab", "check", "submissions", "--no-time", "--jobs", "2"]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    journal = tmp_path / "gpulab-check.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and (not journal.exists() or not journal.read_text().strip()):
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    time.sleep(0.5)
    assert below(running.pid, tmp_path) == []
    kept = [json.loads(line)["record"]["file"] for line in journal.read_text().splitlines()]
    assert 1 <= len(kept) < 3
    with journal.open("a") as file:
        file.write('{"how": "cut o')
    again = ("--resume", "--no-time", "--json", "--jobs", "2")
    done = gpulab("check", "submissions", *again, cwd=tmp_path)
    assert done.returncode == 0
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(r["file"] for r in records) == [f"submissions/s{n}.cu" for n in range(3)]
    assert {r["file"] for r in records[: len(kept)]} == set(kept), "what was kept comes first"


def below(pid, folder):
    """Processes that still name the killed one, or run in its folder."""
    left = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            if os.readlink(entry / "cwd") == str(folder) or f", {pid})" in line:
                left.append(line)
        except OSError:
            continue
    return left


def test_a_replay_is_the_same_case(here):
    path = BAD / "scaled" / "a_thousandth.cu"
    first = here("check", path, "--json")
    record = json.loads(first.stdout)
    again = here("check", path, "--json", "--replay", record["replay"])
    assert again.returncode == 1
    replayed = json.loads(again.stdout)
    for field in ("first_bad_index", "got", "wanted", "bound", "diagnosis", "seed"):
        assert replayed[field] == record[field]
    assert record["got"] != record["wanted"]
    other = SUBMISSIONS / "wrong" / "bf16-matmul" / "zeros" / "never_stored.cu"
    done = here("check", other, "--replay", record["replay"])
    assert done.returncode == 2
    assert "the token is of fp16-matmul" in done.stdout
    assert "next: name the file whose check printed the token" in done.stdout
    family, seed, _, device = record["replay"].split(":")
    done = here("check", path, "--replay", f"{family}:{seed}:m7777,n1,k1:{device}")
    assert done.returncode == 2
    assert "names a case that fp16-matmul does not have" in " ".join(done.stdout.split())
    assert "next: copy the token whole" in done.stdout


def test_two_runs_draw_two_seeds(here):
    seeds = {
        json.loads(here("check", BAD / "zeros" / "never_summed.cu", "--json").stdout)["seed"]
        for _ in "ab"
    }
    assert len(seeds) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.cu"], "no such file"),
        ([GOOD, "--tol", "nan"], "No such option"),
        ([GOOD, "--timeout", "nan"], "--timeout"),
        ([GOOD, "--timeout", "0"], "--timeout"),
        ([GOOD, "--memory", "inf"], "--memory"),
        ([GOOD, "--jobs", "0"], "--jobs"),
        ([GOOD, "--seed", "-1"], "--seed"),
        ([GOOD, "--replay", "nonsense"], "no replay token"),
        ([GOOD, "--capability", "7.7"], "no capability 7.7"),
        ([GOOD, "--device", "cuda", "--capability", "9.0"], "emulated"),
        ([GOOD, "--resume"], "for a folder"),
    ],
)
def test_bad_requests(arguments, text, here):
    done = here("check", *arguments)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_card_is_said(here):
    from gpulab.runtime import driver

    if driver.query() is not None:
        pytest.skip("there is a driver here")
    done = here("check", GOOD, "--device", "cuda")
    assert done.returncode == 7
    assert "driver" in done.stderr


def test_exercises_are_listed_shown_and_started(tmp_path, here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [
        json.loads(x)["exercise"] for x in here("exercise", "list", "--json").stdout.splitlines()
    ]
    assert names[:2] == ["tiled-matmul", "fp16-matmul"]
    shown = here("exercise", "show", "fp16-matmul", "--hints", "1").stdout
    assert "const __half* a" in shown
    assert "hint 1" in shown
    assert "hint 2" not in shown
    for language, name in (("cu", "fp16_matmul.cu"), ("numba", "fp16_matmul.py")):
        started = here("exercise", "start", "fp16-matmul", "--language", language)
        assert started.returncode == 0
        assert (tmp_path / name).exists()
    again = here("exercise", "start", "fp16-matmul")
    assert again.returncode == 2
    assert "already there" in again.stderr
    assert here("exercise", "show", "nothing").returncode == 2


def test_the_certificate_is_printed(here):
    done = here("exercise", "show", "tiled-matmul", "--certificate")
    assert done.returncode == 0
    assert "the certificate holds" in done.stdout
    assert "fp16_accumulator" in done.stdout


REPLAYED = [
    BAD / "race" / "no_second_barrier.cu",
    BAD.parent / "online-softmax" / "too-many-passes" / "three_passes.cu",
    BAD.parent / "fp16-mma" / "no-tensor-cores" / "on_cuda_cores.cu",
    SUBMISSIONS.parent / "exploits" / "files" / "small_weights_are_zero.cu",
    SUBMISSIONS.parent / "exploits" / "files" / "right_for_ten_launches.cu",
]


@pytest.mark.parametrize("path", REPLAYED, ids=lambda path: path.stem)
def test_what_no_gate_sees_is_seen_again_in_a_replay(path, judged):
    from gpulab.check import token

    first = judged(path, timed=False)
    assert first.verdict == "FAIL"
    if SUBMISSIONS in path.parents:
        assert first.diagnosis.slug == path.parent.name
    again = judged(path, only=token.parse(first.facts["replay"]), timed=False)
    assert (again.verdict, again.exit_code) == (first.verdict, first.exit_code)
    assert again.diagnosis == first.diagnosis
