"""``gpulab doctor``."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.markup import escape


@click.command("doctor", short_help="What is there, what is missing, how to fix it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
def command(as_json: bool) -> int:
    """Say what is there, what is missing, and the one command that fixes each.

    Exit code 0 when the lab can run (on a card or emulated), 7 when it cannot run at all.
    """
    from gpulab.errors import DeviceMissingError
    from gpulab.runtime import doctor

    findings = doctor.examine()
    if as_json:
        for finding in findings:
            click.echo(json.dumps({"schema": 1, "finding": dataclasses.asdict(finding)}))
    else:
        console = Console(soft_wrap=True, highlight=False)  # a command is copied in one piece
        for finding in findings:
            mark, style = {
                "ok": ("ok", "green"),
                "warning": ("note", "yellow"),
                "missing": ("missing", "red"),
            }[finding.status]
            console.print(f"[{style}]{mark:<8}[/] {finding.name:<15}  {escape(finding.detail)}")
            if finding.fix:
                console.print(f"{'':24}  [bold]fix:[/] {escape(finding.fix)}")
    return 0 if doctor.usable(findings) else DeviceMissingError.exit_code
