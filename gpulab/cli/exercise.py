"""``gpulab exercise``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpulab.cli.options import Group, check_output, check_seed
from gpulab.errors import EXIT_INCONCLUSIVE, EXIT_PASS, UsageError

if TYPE_CHECKING:
    from gpulab.exercises.base import Exercise


@click.group("exercise", cls=Group, short_help="Kernels to write: list, show, start.")
def command() -> None:
    """Exercises: kernels to write, judged by 'gpulab check'."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
def list_(as_json: bool) -> int:
    """List the exercises in the order of the course."""
    from gpulab import arch, exercises

    table = Table(box=None, pad_edge=False)
    for name in ("exercise", "from", "what it is"):
        table.add_column(name, overflow="fold")
    for e in exercises.catalogue().values():
        lowest = arch.dotted(e.min_capability)
        if as_json:
            fields = {"schema": 1, "exercise": e.name, "title": e.title, "op": e.op}
            click.echo(json.dumps({**fields, "min_capability": lowest, "signature": e.signature}))
        table.add_row(e.name, arch.sm(e.min_capability), e.title)
    if not as_json:
        Console(width=max(100, Console().width)).print(table)
        click.echo("\ngpulab exercise show NAME, then gpulab exercise start NAME")
    return EXIT_PASS


@command.command("show")
@click.argument("name")
@click.option("--hints", type=int, default=0, show_default=True, help="Show this many hints.")
@click.option("--certificate", is_flag=True, help="Which mistakes its gates catch, and where.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the certificate.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
def show(name: str, hints: int, certificate: bool, seed: int, as_json: bool) -> int:
    """Show an exercise: what to do, the signature, hints one at a time."""
    from gpulab import exercises

    exercise = exercises.get(name)
    check_seed(seed)
    if certificate:
        return _certificate(exercise, seed, as_json)
    if not 0 <= hints <= len(exercise.hints):
        most = len(exercise.hints)
        raise UsageError(
            f"--hints {hints}: {name} has 0 .. {most}", fix=f"--hints {most} shows them all"
        )
    if as_json:
        click.echo(
            json.dumps(
                {
                    "schema": 1,
                    "exercise": exercise.name,
                    "title": exercise.title,
                    "statement": exercise.statement,
                    "signature": exercise.signature,
                    "python_signature": exercise.python_signature,
                    "submit": exercise.submit,
                    "hints": list(exercise.hints[:hints]),
                    "shapes": [{"dims": dict(s.dims), "why": s.why} for s in exercise.shapes],
                }
            )
        )
        return EXIT_PASS
    console = Console(width=max(100, Console().width))
    console.print(f"[bold]{exercise.name}[/]: {escape(exercise.title)}\n", highlight=False)
    console.print(escape(exercise.statement), highlight=False)
    console.print(f"\n{escape(exercise.signature)}\n", highlight=False, soft_wrap=True)
    console.print(escape(exercise.python_signature), highlight=False)
    console.print("\nJudged at:", highlight=False)
    for shape in exercise.shapes:
        dims = " ".join(f"{name}={shape.dims[name]}" for name in exercise.dims)
        console.print(f"  {dims}: {shape.why}", highlight=False)
    console.print(f"\n{escape(exercise.submit)}", highlight=False)
    for number, hint in enumerate(exercise.hints[:hints], 1):
        console.print(f"\nhint {number}: {escape(hint)}", highlight=False)
    if hints < len(exercise.hints):
        click.echo(f"\n{len(exercise.hints)} hints: --hints {hints + 1}")
    click.echo(f"begin: gpulab exercise start {exercise.name}")
    return EXIT_PASS


def _certificate(exercise: Exercise, seed: int, as_json: bool) -> int:
    from gpulab.check.certificate import certificate

    lines = certificate(exercise, seed)
    table = Table(
        title=f"power certificate of {exercise.name}, seed {seed}", title_justify="left", box=None,
        pad_edge=False,
    )  # fmt: skip
    for title in ("mistake", "status", "caught by, at"):
        table.add_column(title, overflow="fold")
    for line in lines:
        if as_json:
            click.echo(json.dumps({"schema": 1, "exercise": exercise.name, **line.to_json()}))
        table.add_row(line.mutant, line.status, escape(line.text))
    holds = all(line.status != "passes" for line in lines)
    if not as_json:
        Console(width=max(100, Console().width)).print(table)
        word = "holds" if holds else "does NOT hold: every verdict would be INCONCLUSIVE"
        click.echo(f"the certificate {word}")
    return EXIT_PASS if holds else EXIT_INCONCLUSIVE


@command.command("start")
@click.argument("name")
@click.option("--language", default="cu", show_default=True, help="cu or numba.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="File to write.")
def start(name: str, language: str, output: Path | None) -> int:
    """Write a starter file, which compiles and fails honestly."""
    from gpulab import exercises
    from gpulab.exercises.base import language as language_of

    exercise, chosen = exercises.get(name), language_of(language)
    path = output or Path(f"{name.replace('-', '_')}.{chosen}")
    if path.suffix != f".{chosen}":
        meant = "--language numba" if path.suffix == ".py" else f"--output {path.stem}.{chosen}"
        raise UsageError(f"{path}: a starter in {language} ends in .{chosen}", fix=meant)
    text = exercise.file("starter", chosen).read_text(encoding="utf-8")
    check_output("--output", path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is already there", fix=f"--output another.{chosen}") from None
    click.echo(f"wrote {path}; judge it with: gpulab check {path}")
    return EXIT_PASS
