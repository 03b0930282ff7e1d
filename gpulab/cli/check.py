"""``gpulab check``."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpulab.cli import interruption
from gpulab.cli.check_requests import check_limits, check_outputs
from gpulab.cli.options import check_output, page_width
from gpulab.errors import EXIT_INTERRUPTED, EXIT_PASS, UsageError

if TYPE_CHECKING:
    from gpulab.check.folder import Journal
    from gpulab.check.session import Options

Record = dict[str, Any]

JOURNAL = "gpulab-check.jsonl"
JUDGES_PER_CARD = 4
"""While one times, the others compile and compute references."""


@click.command("check", short_help="Judge submitted kernels: right or not, by how much, and why.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--replay", metavar="TOKEN", help="Judge exactly the case of this token.")
@click.option(
    "--jobs", type=int, help="Submissions at a time (default: one a processor, at most 4 a card)."
)
@click.option("--resume", is_flag=True, help="Take over finished results of an interrupted run.")
@click.option("--results", type=click.Path(path_type=Path), metavar="FILE",
              help=f"Where results of a folder are kept (default {JOURNAL}).")  # fmt: skip
@click.option("--timeout", "seconds", type=float, default=60.0, show_default=True,
              help="Seconds that one launch may take.")  # fmt: skip
@click.option("--memory", "memory_gb", type=float, default=4.0, show_default=True,
              help="Memory limit of a submission's process, in GB.")  # fmt: skip
@click.option("--trust-python", is_flag=True, help="Run .py files that cannot be confined.")
@click.option(
    "--no-time", is_flag=True, help="Do not time (card); leave out the timed size (emulated)."
)
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write Markdown.")
@click.option("--sarif", type=click.Path(path_type=Path), metavar="FILE", help="Write SARIF.")
@click.option("--device", type=click.Choice(["auto", "cuda", "emulated"]), default="auto",
              show_default=True, help="Where kernels run.")  # fmt: skip
@click.option("--capability", metavar="X.Y", help="Of the emulated device (default 8.9).")
@click.option("--seed", type=int, help="Seed of all inputs; without it nobody can know it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
@click.option("--quiet", is_flag=True, help="Only the verdict.")
def command(
    paths: tuple[Path, ...],
    replay: str | None,
    jobs: int | None,
    resume: bool,
    results: Path | None,
    seconds: float,
    memory_gb: float,
    trust_python: bool,
    no_time: bool,
    junit: Path | None,
    markdown: Path | None,
    sarif: Path | None,
    device: str,
    capability: str | None,
    seed: int | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Judge one submission, or every .cu and .py file of a folder.

    Each runs in a process of its own with limits of time and memory and no network. The exit code
    is 0 if all pass; else 1 wrong, 2 not a submission, 3 inconclusive, 4 does not compile,
    5 timeout, 6 fault (of several, the highest); 7 the wanted device is not there, 130 interrupted.
    """
    from gpulab.check import folder, page, reports

    check_limits(seconds, memory_gb, jobs, seed)
    outputs = (
        ("--junit", junit, reports.junit),
        ("--markdown", markdown, reports.markdown),
        ("--sarif", sarif, reports.sarif),
    )
    found = folder.collect(paths)
    check_outputs({option: path for option, path, _ in outputs} | {"--results": results}, found)
    options = _options(
        device, capability, seed, seconds, memory_gb, trust_python, replay, timed=not no_time
    )
    many = len(found) > 1 or any(p.is_dir() for p in paths)
    journal = _journal(results, options, many=many, resume=resume)
    records, stopped = _judge(
        found, options, jobs or _judges(options), journal,
        resume=resume, as_json=as_json, many=many, quiet=quiet,
    )  # fmt: skip
    if not as_json and records:
        _show(records, many=many, quiet=quiet)
    if stopped:
        _interrupted(records, len(found), as_json=as_json, resumable=journal is not None)
    for _, output, make in outputs:
        if output is not None:
            output.write_text(make(records), encoding="utf-8", errors="backslashreplace")
    if not as_json and (many or quiet):
        click.echo(page.summary(records))
    return max((int(r["exit_code"]) for r in records), default=EXIT_PASS)


def _interrupted(records: Sequence[Record], count: int, *, as_json: bool, resumable: bool) -> None:
    """The last line of an interrupted command, which is no verdict.

    Args:
        records: of the submissions that were judged.
        count: of all submissions.
        as_json: print it as an error object.
        resumable: results are kept.

    Raises:
        click.exceptions.Exit: always.
    """
    passed = sum(r["verdict"] == "PASS" for r in records)
    error = {
        "kind": "interrupted",
        "message": f"INTERRUPTED: {len(records)} of {count} submissions judged, {passed} pass",
        "fix": "the same command with --resume goes on" if resumable else None,
        "exit_code": EXIT_INTERRUPTED,
        "judged": len(records),
        "left": count - len(records),
    }
    if as_json:
        click.echo(json.dumps({"schema": 1, "error": error}))
    else:
        click.echo("; ".join(str(error[part]) for part in ("message", "fix") if error[part]))
    raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _journal(results: Path | None, options: Options, *, many: bool, resume: bool) -> Journal | None:
    """Where results are kept, open until the command ends: of folders, and where it was asked for.

    Raises:
        UsageError: there is none to resume, or a replay, which judges one case only, would be kept.
    """
    from gpulab.check.folder import Journal

    if options.only is not None:
        if results is not None or resume:
            raise UsageError(
                "--replay judges one case: no result is kept",
                fix="leave --results and --resume out",
            )
        return None
    path = results or (Path(JOURNAL) if many else None)
    if path is None:
        if resume:
            raise UsageError(
                "--resume is for a folder", fix="name a folder, or give --results FILE"
            )
        return None
    check_output("--results", path)
    journal = Journal(path, options)
    click.get_current_context().call_on_close(journal.close)
    return journal


def _show(records: Sequence[Record], *, many: bool, quiet: bool) -> None:
    """The page of one submission, or the table of several."""
    from rich.console import Console

    from gpulab.check import page

    console = Console(quiet=quiet, width=page_width())
    if not many:
        page.print_page(console, records[0])
        return
    page.print_table(console, records)
    if any(r["verdict"] != "PASS" for r in records):
        console.print("gpulab check FILE shows one of them, and what to do next")


def _judge(
    found: Sequence[Path],
    options: Options,
    workers: int,
    journal: Journal | None,
    *,
    resume: bool,
    as_json: bool,
    many: bool,
    quiet: bool,
) -> tuple[list[Record], bool]:
    """The records in the order of the files, and whether Ctrl-C left some without one.

    What is under way is told as it goes.
    """
    from rich.console import Console
    from rich.markup import escape

    from gpulab.check import folder
    from gpulab.check.evidence import printable

    records: list[Record] = []
    stopped = False
    with Console(stderr=True, quiet=quiet or many).status("") as status:
        try:
            with interruption.heard(ends_children=True):
                for record in folder.check_many(
                    found, options, workers, journal, resume=resume,
                    progress=lambda what: status.update(escape(f"{found[0].name}: {what}")),
                ):  # fmt: skip
                    records.append(record)
                    if as_json:
                        click.echo(json.dumps(record))
                    elif many and not quiet:
                        place = f"{len(records)}/{len(found)} {record['verdict']} {record['file']}"
                        click.echo(place, err=True)
        except KeyboardInterrupt:
            click.echo("\ninterrupted", err=True)  # a terminal shows ^C before it
            stopped = True
    order = {printable(path): i for i, path in enumerate(found)}
    return sorted(records, key=lambda r: order.get(str(r["file"]), 0)), stopped


def _judges(options: Options) -> int:
    """One a processor; on cards few enough that their contexts fit."""
    from gpulab.check import cards

    processors = len(os.sched_getaffinity(0))
    if options.device != "cuda":
        return processors
    return min(processors, JUDGES_PER_CARD * max(1, len(cards.usable())))


def _options(
    device: str,
    capability: str | None,
    seed: int | None,
    seconds: float,
    memory_gb: float,
    trusted: bool,
    replay: str | None,
    *,
    timed: bool,
) -> Options:
    from gpulab import arch
    from gpulab.check import token
    from gpulab.check.session import Options

    only = token.parse(replay) if replay is not None else None
    wanted = arch.parse(capability) if capability is not None else None
    if only is not None:
        if seed is not None or wanted is not None or device != "auto":
            raise UsageError(
                "--replay names device, capability and seed", fix="leave those options out"
            )
        device, seed, wanted = only.device, only.seed, only.capability
    else:
        device = _device(device, wanted)
    if device == "emulated" and wanted is not None:
        arch.check_emulated(wanted)
    return Options(
        device=device,
        capability=wanted or arch.DEFAULT_EMULATED,
        seed=seed,
        trusted=trusted,
        seconds=seconds,
        memory_bytes=int(memory_gb * (1 << 30)),
        only=only,
        timed=timed,
    )


def _device(device: str, capability: tuple[int, int] | None) -> str:
    """``auto`` as what it stands for; the card itself is opened by the workers alone."""
    if device == "cuda" and capability is not None:
        raise UsageError("--capability is the emulated device's", fix="--device emulated")
    if device != "auto":
        return device
    if capability is not None or importlib.util.find_spec("cupy") is None:
        return "emulated"
    from gpulab.runtime import driver

    present = driver.query()
    usable = present is not None and not present.problem and present.usable() is not None
    return "cuda" if usable else "emulated"
