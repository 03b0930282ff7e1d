"""``gpulab explain``."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console

_WIDTH = 150


@click.command("explain", short_help="Where the error of one kernel comes from, and what it costs.")
@click.argument("name", metavar="KERNEL")
@click.option("--op", metavar="NAME", help="The operation, where several have such a kernel.")
@click.option("--format", "format_", metavar="NAME", help="Storage format of the inputs.")
@click.option("--accumulator", metavar="NAME", help="Format of the running sum.")
@click.option("--output", metavar="NAME", help="Storage format of the result.")
@click.option("--contract", metavar="NAME", help="Its rounding contract.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "emulated"]),
    default="auto",
    show_default=True,
    help="Where costs are measured: timed on a card, counted on the emulated device.",
)
@click.option("--capability", metavar="X.Y", help="Compile for this capability (default 8.9).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    name: str,
    op: str | None,
    format_: str | None,
    accumulator: str | None,
    output: str | None,
    contract: str | None,
    device: str,
    capability: str | None,
    as_json: bool,
) -> int:
    """Explain KERNEL, named as 'gpulab list' does: raw/online, with --op and --format.

    The risk table is read from the compiled instructions, and the declaration is held against them.
    Exit code 1: the kernel is not what it declares, or takes a risk that it does nothing against; a
    lesson is meant to.
    """
    from gpulab import arch
    from gpulab.explain import names, render, report
    from gpulab.runtime.select import open_device

    case = names.find(name, names.Wanted(op, format_, accumulator, output, contract))
    wanted = arch.parse(capability) if capability is not None else None
    opened = open_device(device, capability=wanted)
    target = report.capability_for(case, opened, asked=wanted is not None)
    progress = Console(stderr=True, quiet=as_json)
    with progress.status("compiling for every capability, counting ..."):
        found = report.explain(case, opened, target)
    if as_json:
        click.echo(json.dumps(found.to_record()))
    else:
        console = Console(width=max(_WIDTH, Console().width))
        render.show(console, found)
    sys.stdout.flush()
    return 1 if found.amiss and not case.variant.lesson else 0
