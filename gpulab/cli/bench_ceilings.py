"""``gpulab bench ceilings``."""

from __future__ import annotations

from pathlib import Path

import click

from gpulab.cli.options import check_output
from gpulab.errors import UsageError


@click.command("ceilings", short_help="What this card can do at most, measured.")
@click.option("--runs", type=int, default=7, show_default=True, help="Timed runs of each.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the records, with their environment, to this JSON lines file.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
@click.option("--quiet", is_flag=True, help="Only the verdict.")
def command(runs: int, save: Path | None, as_json: bool, quiet: bool) -> int:
    """Measure matrix instructions, multiply-adds and memory of this card; results are checked."""
    from gpulab.bench import ceilings, records
    from gpulab.bench.ceiling_kernels import Ceiling, of_capability
    from gpulab.cli.session import open_session
    from gpulab.lab import verdict
    from gpulab.lab.environment import environment
    from gpulab.runtime.cuda_clock import clock_of

    if not 1 <= runs <= 1000:
        raise UsageError(f"--runs {runs} is outside 1 .. 1000", fix="leave it out for the default")
    check_output("--save", save)
    session = open_session("cuda", None, as_json=as_json, quiet=quiet)
    device = session.device
    with session.progress() as bar:
        task = bar.add_task("", total=len(of_capability(device.capability)))

        def shown(ceiling: Ceiling) -> None:
            bar.update(task, advance=1, description=ceiling.label)

        found = ceilings.measure(device, clock_of(device), runs=runs, on_ceiling=shown)
    for record in found:
        session.emit(record)
    session.console.print(ceilings.table(found))
    session.say()
    if save is not None:
        records.append(save, found, environment(device))
    if not as_json:
        click.echo(verdict.summary(found))
    return verdict.exit_code(found)
