"""``gpulab bench plot``."""

from __future__ import annotations

from pathlib import Path

import click

from gpulab.cli.options import check_output


def check_plot(option: str, name: Path) -> None:
    """Refuse, before anything is measured, a plot that cannot be written.

    Raises:
        UsageError: says why not.
    """
    from gpulab.bench import plot

    for path in plot.files(name):
        check_output(option, path)


@click.command("plot", short_help="Draw saved records: speed against the library, error beside.")
@click.argument("records", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Write NAME.png and NAME.svg.",
    metavar="NAME",
)
def command(records: Path, out: Path) -> int:
    """Draw the records of RECORDS (JSON lines, as 'gpulab bench matmul --save' writes them)."""
    from gpulab.bench import plot
    from gpulab.bench.records import read

    plot.require()
    check_plot("--out", out)
    for path in plot.draw(read(records), out):
        click.echo(path)
    return 0
