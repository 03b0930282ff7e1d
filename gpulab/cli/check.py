"""``gpulab check``."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpulab.cli.options import check_output, check_seed
from gpulab.errors import EXIT_PASS, UsageError

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
    5 timeout, 6 fault (of several, the highest).
    """
    from rich.console import Console

    from gpulab.check import folder, page, reports

    _check_limits(seconds, memory_gb, jobs, seed)
    outputs = (
        ("--junit", junit, reports.junit),
        ("--markdown", markdown, reports.markdown),
        ("--sarif", sarif, reports.sarif),
    )
    for option, output, _ in outputs:
        check_output(option, output)
    found = folder.collect(paths)
    options = _options(
        device, capability, seed, seconds, memory_gb, trust_python, replay, timed=not no_time
    )
    many = len(found) > 1 or any(p.is_dir() for p in paths)
    journal = _journal(results or (Path(JOURNAL) if many else None), options, resume=resume)
    records = _judge(
        found, options, jobs or _judges(options), journal,
        resume=resume, as_json=as_json, many=many, quiet=quiet,
    )  # fmt: skip
    if not as_json:
        console = Console(quiet=quiet, width=max(120, Console().width))
        if many:
            console.print(page.table(records))
        else:
            page.print_page(console, records[0])
    for _, output, make in outputs:
        if output is not None:
            output.write_text(make(records), encoding="utf-8", errors="backslashreplace")
    if not as_json and (many or quiet):
        click.echo(page.summary(records))
    return max((int(r["exit_code"]) for r in records), default=EXIT_PASS)


def _check_limits(seconds: float, memory_gb: float, jobs: int | None, seed: int | None) -> None:
    """Refuse numbers outside what each option takes.

    Raises:
        UsageError: names the option and the limit.
    """
    if not 0 < seconds <= 3600 or not math.isfinite(seconds):
        raise UsageError(
            f"--timeout {seconds}: more than 0, at most 3600 seconds",
            fix="for example --timeout 60",
        )
    if not 0.5 <= memory_gb <= 1024:
        raise UsageError(f"--memory {memory_gb}: 0.5 to 1024 GB", fix="for example --memory 8")
    if jobs is not None and not 1 <= jobs <= 256:
        raise UsageError(f"--jobs {jobs}: 1 .. 256", fix="leave it out for one a processor")
    if seed is not None:
        check_seed(seed)


def _journal(path: Path | None, options: Options, *, resume: bool) -> Journal | None:
    """Where results are kept, open until the command ends.

    Raises:
        UsageError: it cannot be written, or there is none to resume.
    """
    from gpulab.check.folder import Journal

    check_output("--results", path)
    journal = Journal(path, options) if path else None
    if journal is not None:
        click.get_current_context().call_on_close(journal.close)
    if resume and journal is None:
        raise UsageError("--resume is for a folder", fix="name a folder, or give --results FILE")
    return journal


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
) -> list[Record]:
    """The records in the order of the files; what is under way is told as it goes."""
    from rich.console import Console
    from rich.markup import escape

    from gpulab.check import folder
    from gpulab.check.evidence import printable

    records: list[Record] = []
    with Console(stderr=True, quiet=quiet or many).status("") as status:
        checked = folder.check_many(
            found, options, workers, journal, resume=resume,
            progress=lambda what: status.update(escape(f"{found[0].name}: {what}")),
        )  # fmt: skip
        for record in checked:
            records.append(record)
            if as_json:
                click.echo(json.dumps(record))
            elif many:
                place = f"{len(records)}/{len(found)} {record['verdict']} {record['file']}"
                click.echo(place, err=True)
    order = {printable(path): i for i, path in enumerate(found)}
    return sorted(records, key=lambda r: order.get(str(r["file"]), 0))


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
        if seed is not None or wanted is not None:
            raise UsageError("--replay names seed and capability", fix="leave those options out")
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
