"""``gpulab run``: the whole lab, what ``make run`` runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.markup import escape

from gpulab.cli.options import check_seed, device_options, output_options
from gpulab.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS

LADDER = {"cuda": 2048, "emulated": 96}
"""Side of the square matmul that ``run`` judges."""
FULL_LADDER = {"cuda": (256, 1024, 2048, 4096), "emulated": (96, 256)}
GROWTH = {
    "cuda": ((256, 256), (1024, 1024), (2048, 2048)),
    "emulated": ((32, 64), (32, 256), (32, 1024)),
}
"""(m = n, k) at which the error of the two fp16 accumulators is compared."""


def concluded(code: int, sentence: str, failed: Sequence[str]) -> tuple[int, str]:
    """Exit code and summary of the rows, and of what ``failed`` beside them: which outweighs
    missing evidence, as a wrong row does."""
    if not failed:
        return code, sentence
    code = EXIT_FAIL if code in (EXIT_PASS, EXIT_INCONCLUSIVE) else code
    return code, f"FAIL: {'; '.join(failed)}; {sentence}"


@click.command("run", short_help="The whole lab: formats, every kernel, what the gates catch.")
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
    """Report what the device's tensor cores execute, judge the matmul ladder, the row operations
    and attention against float64, show what the gates catch, and give one verdict.

    Exit code 0 means that every row passed both gates, every lesson failed as it must, and the
    error of a half accumulator grew where that of a float one stayed.
    """
    from gpulab import registry
    from gpulab.cli.session import Session, evaluate_cases, open_session, print_counters
    from gpulab.lab import growth, lessons, render, suite, verdict
    from gpulab.lab.compiling import Ahead
    from gpulab.report.capability import PROBED, capability_report
    from gpulab.report.probe import run_probes
    from gpulab.report.render import capability_table

    def show(session: Session, *parts: Any) -> None:
        """Tables and lines for people."""
        if not session.as_json:
            for part in parts:
                session.console.print(
                    escape(part) if isinstance(part, str) else part, highlight=False
                )
            session.say()

    check_seed(seed)
    session = open_session(
        device, capability, sanitize=sanitize, counters=counters, as_json=as_json, quiet=quiet
    )
    opened = session.device
    sections = suite.sections(opened.kind, full)
    ahead = Ahead(opened)  # compiles beside what is interpreted and judged
    click.get_current_context().call_on_close(ahead.close)
    sides = FULL_LADDER[opened.kind] if full else (LADDER[opened.kind],)
    for side in sides:
        ahead.submit(list(registry.cases("matmul")), {"m": side, "n": side, "k": side})
    for section in sections:
        ahead.submit(list(registry.cases(section.op, format=section.formats)), section.dims)
    session.say()
    lines = capability_report(opened.capability, run_probes(opened, PROBED))
    for line in lines:
        session.emit(line.to_json(opened.capability))
    show(session, capability_table(lines, opened.capability, f"{opened.name}, {opened.kind}"))

    records: list[dict[str, Any]] = []
    for side in sides:
        dims = {"m": side, "n": side, "k": side}
        found = evaluate_cases(session, "matmul", dims, seed=seed, ahead=ahead)
        for record in found:
            session.emit(record)
        if not as_json:
            render.print_ladder(session.console, found, f"matmul {side} x {side} x {side}")
            session.say()
            print_counters(session, found)
        records += found

    grown = growth.growth(opened, GROWTH[opened.kind], seed)
    for row in grown:
        session.emit(row)
    show(session, growth.table(grown), growth.sentence(grown))

    judged = []
    for section in sections:
        found = evaluate_cases(
            session, section.op, section.dims, seed=seed, format_=section.formats, measure=False,
            ahead=ahead,
        )  # fmt: skip
        for record in found:
            session.emit(record)
        judged.append((section, found))
        records += found
    problems = render.problems([r for _, found in judged for r in found])
    show(session, suite.table(judged), *problems)

    taught = lessons.caught(records)
    for row in taught:
        session.emit(row)
    show(
        session,
        lessons.table(taught, lessons.refused(records)),
        lessons.LEGEND,
        lessons.sentence(taught),
    )

    wrong = [x.name for x in lines if x.supported and x.status in ("mismatch", "not run")]
    failed = [f"tensor cores not as modelled for {', '.join(wrong)}"] if wrong else []
    failed += growth.lost(grown)
    failed += [f"no gate catches {name}" for name in lessons.lost(taught)]
    code, sentence = concluded(verdict.exit_code(records), verdict.summary(records), failed)
    if as_json:
        click.echo(json.dumps({"schema": 1, "summary": sentence, "exit_code": code}))
    else:
        click.echo(sentence)
    return code
