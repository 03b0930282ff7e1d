"""``gpulab list``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpulab.cli.options import case_options

if TYPE_CHECKING:
    from gpulab.registry import Case

COLUMNS = ("op", "backend", "kernel", "input", "accumulator", "output", "from", "what it is")


def _record(case: Case) -> dict[str, Any]:
    """A row as ``--json`` gives it."""
    from gpulab import arch

    spec, v = case.spec, case.variant
    return {
        "schema": 1,
        "op": spec.op,
        "kernel": spec.name,
        "backend": spec.backend,
        "format": v.format,
        "accumulator": v.accumulator,
        "output": v.output,
        "min_capability": arch.dotted(v.min_capability),
        "instructions": {arch.dotted(c): i for c, i in v.instructions},
        "lesson": v.lesson,
        "idea": spec.idea,
        "note": v.note,
        "source": spec.source,
    }


def _cells(case: Case, refusal: str | None) -> list[str]:
    """A row as the table shows it, a cell for each of ``COLUMNS``."""
    from gpulab import arch

    spec, v = case.spec, case.variant
    first = v is spec.variants[0]
    what = "; ".join(x for x in (spec.idea if first else "", v.note) if x)
    if v.lesson:
        what = f"LESSON: {what}"
    lowest = arch.sm(v.min_capability)
    told = escape(f"{what} [{refusal}]" if refusal else what)
    return [spec.op, spec.backend, spec.name, v.format, v.accumulator, v.output, lowest, told]


@click.command("list", short_help="Every kernel of the lab and where it runs.")
@click.option("--op", metavar="NAME", help="Only this operation.")
@click.option("--capability", metavar="X.Y", help="Say what this capability refuses, and why.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
@case_options
def command(
    op: str | None,
    capability: str | None,
    as_json: bool,
    kernel: str | None,
    backend: str | None,
    format_: str | None,
) -> int:
    """List kernels: one row a number format, in ladder order."""
    from gpulab import arch, registry
    from gpulab.errors import UsageError

    ops = sorted({s.op for s in registry.specs()})
    if op is not None and op not in ops:
        raise UsageError(f"no operation {op!r}", fix=f"choose one of: {', '.join(ops)}")
    wanted = arch.parse(capability) if capability else None
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold" if column == COLUMNS[-1] else "ignore")
    found = list(registry.cases(op, kernel=kernel, backend=backend, format=format_))
    if not found:
        raise UsageError("no kernel has all of that", fix="give fewer options")
    for case in found:
        refusal = case.refusal(wanted, "cuda") if wanted else None
        if as_json:
            click.echo(json.dumps(_record(case) | ({"refusal": refusal} if wanted else {})))
        else:
            table.add_row(*_cells(case, refusal), style="dim" if refusal else None)
    if not as_json:
        console = Console()
        (console if console.is_terminal else Console(width=140)).print(table)
    return 0
