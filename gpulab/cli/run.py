"""``gpulab run``: the whole lab, what ``make run`` runs."""

from __future__ import annotations

import json
from typing import Any

import click

from gpulab.cli.options import check_seed, device_options, output_options

LADDER = {"cuda": 2048, "emulated": 96}
"""Side of the square matmul that ``run`` judges."""
FULL_LADDER = {"cuda": (256, 1024, 2048, 4096), "emulated": (96, 256)}
GROWTH = {
    "cuda": ((256, 256), (1024, 1024), (2048, 2048)),
    "emulated": ((32, 256), (32, 1024), (32, 2048)),
}
"""(m = n, k) at which the error of the two fp16 accumulators is compared."""


@click.command("run", short_help="The whole lab: format report, matmul ladder, verdict.")
@click.option("--full", is_flag=True, help="Large sizes too (minutes on the emulated device).")
@device_options
@output_options
def command(
    full: bool,
    device: str,
    capability: str | None,
    sanitize: bool,
    counters: bool,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Report what the device's tensor cores execute, judge the matmul ladder against float64, and
    give one verdict.

    Exit code 0 means that every row passed both gates and every lesson failed as it must.
    """
    from gpulab.cli.session import evaluate_cases, open_session
    from gpulab.lab import growth, render, verdict
    from gpulab.report.capability import PROBED, capability_report
    from gpulab.report.probe import run_probes
    from gpulab.report.render import capability_table

    check_seed(seed)
    session = open_session(
        device, capability, sanitize=sanitize, counters=counters, as_json=as_json, quiet=quiet
    )
    opened = session.device
    session.say()
    lines = capability_report(opened.capability, run_probes(opened, PROBED))
    for line in lines:
        session.emit(line.to_json(opened.capability))
    if not as_json:
        session.console.print(
            capability_table(lines, opened.capability, f"{opened.name}, {opened.kind}")
        )
        session.say()
    unproven = [x.name for x in lines if x.supported and x.status in ("mismatch", "not run")]

    records: list[dict[str, Any]] = []
    for side in FULL_LADDER[opened.kind] if full else (LADDER[opened.kind],):
        dims = {"m": side, "n": side, "k": side}
        found = evaluate_cases(session, "matmul", dims, seed=seed)
        for record in found:
            session.emit(record)
        if not as_json:
            render.print_ladder(session.console, found, f"matmul {side} x {side} x {side}")
            session.say()
        records += found

    rows = growth.growth(opened, GROWTH[opened.kind], seed)
    for row in rows:
        session.emit(row)
    if not as_json:
        session.console.print(growth.table(rows))
        session.say()

    code = verdict.exit_code(records)
    sentence = verdict.summary(records)
    if unproven:
        code = code or 1
        sentence = f"FAIL: tensor cores not as modelled for {', '.join(unproven)}; {sentence}"
    if as_json:
        click.echo(json.dumps({"schema": 1, "summary": sentence, "exit_code": code}))
    else:
        click.echo(sentence)
    return code
