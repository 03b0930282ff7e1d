"""``gpulab formats``: the table, what formats store of a value, what a capability multiplies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, RenderableType

from gpulab.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, DeviceMissingError, UsageError

if TYPE_CHECKING:
    from gpulab.formats import Rounding
    from gpulab.report.capability import Line
    from gpulab.runtime.device import Device

_WIDTH_OF_A_FILE = 120  # columns where stdout is no terminal


@click.command(
    "formats",
    short_help="Number formats: the table, a value, a capability.",
    context_settings={"ignore_unknown_options": True},  # so that -3.5 is a value
)
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option("--capability", metavar="X.Y", help="Which formats this capability multiplies.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "emulated"]),
    default="auto",
    show_default=True,
    help="Prove the report: cuda executes a product of every format on the card, emulated on the "
    "emulated device; auto does so on a card if there is one, and never with --capability.",
)
@click.option(
    "--rounding",
    type=click.Choice(["nearest", "toward-zero"]),
    default="nearest",
    show_default=True,
    help="How values are rounded (nearest: ties to even).",
)
@click.option("--saturate", is_flag=True, help="Values beyond the largest become the largest.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
def command(
    values: tuple[str, ...],
    capability: str | None,
    device: str,
    rounding: str,
    saturate: bool,
    as_json: bool,
) -> int:
    """Show the number formats.

    Without VALUE: the table, and which formats the tensor cores of the card multiply. With values:
    what every format stores of each one. With --capability or --device: the report alone.
    """
    from gpulab import arch
    from gpulab.report import formats as data
    from gpulab.report import render
    from gpulab.report.capability import capability_report

    wanted = arch.parse(capability) if capability is not None else None
    if values:
        if capability is not None or device != "auto":
            raise UsageError(
                "a value does not depend on a device", fix="leave out --capability and --device"
            )
        how: Rounding = "nearest" if rounding == "nearest" else "toward_zero"
        tables = [data.value_records(_value(text), how, saturate) for text in values]
        _show(as_json, (r for t in tables for r in t), *(render.value_table(t) for t in tables))
        return EXIT_PASS
    if saturate or rounding != "nearest":
        raise UsageError("--saturate and --rounding need a VALUE", fix="gpulab formats 1.0007")
    if device != "auto":
        from gpulab.runtime.select import open_device

        return _prove(open_device(device, capability=wanted), as_json)
    if wanted is not None:
        lines = capability_report(wanted)
        _show(as_json, (x.to_json(wanted) for x in lines), render.capability_table(lines, wanted))
        return EXIT_PASS
    records = data.format_records()
    _show(as_json, records, render.format_tables(records))
    if not as_json:
        click.echo()
    return _prove_on_card(as_json)


formats = command


def _value(text: str) -> str:
    """Refuse what is meant as an option: unknown ones reach the values (see ``command``)."""
    if text.startswith("--"):
        raise UsageError(f"no such option: {text}", fix="see 'gpulab formats --help'")
    return text


def _prove_on_card(as_json: bool) -> int:
    """The report of the card that is there; a hint where there is none."""
    from gpulab.runtime.select import open_device

    try:
        card = open_device("cuda")
    except DeviceMissingError as error:
        hint = "--capability X.Y reports without a card, --device emulated multiplies without one."
        click.echo(f"No card to report on: {error.message}\n{hint}", err=True)
        return EXIT_PASS
    return _prove(card, as_json)


def _prove(device: Device, as_json: bool) -> int:
    """Multiply every format on the device and report what was seen."""
    from gpulab.report.capability import PROBED, capability_report
    from gpulab.report.probe import run_probes
    from gpulab.report.render import capability_table

    where = device.capability
    lines = capability_report(where, run_probes(device, PROBED))
    name = device.name if device.kind in device.name else f"{device.name}, {device.kind}"
    _show(as_json, (x.to_json(where) for x in lines), capability_table(lines, where, name))
    return _exit_code(lines)


def _exit_code(lines: list[Line]) -> int:
    """1 if a product was wrong, 3 if a yes could not be proven, else 0."""
    states = [line.status for line in lines if line.supported]
    if "mismatch" in states:
        return EXIT_FAIL
    return EXIT_PASS if set(states) <= {"executed", "emulated"} else EXIT_INCONCLUSIVE


def _show(
    as_json: bool, records: Iterable[Mapping[str, Any]], *renderables: RenderableType
) -> None:
    if as_json:
        for record in records:
            click.echo(json.dumps(record, allow_nan=False))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_OF_A_FILE)
    for number, renderable in enumerate(renderables):
        if number:
            console.print()
        console.print(renderable)
