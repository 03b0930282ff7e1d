"""An explanation as one screen for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpulab import arch
from gpulab.explain.cost import Cost
from gpulab.explain.report import Explanation
from gpulab.explain.risks import Risk
from gpulab.ops import formulas

_WORDS = {"step": "", "exact": "exact", "sum": "a running sum", "cast": "rounded to store"}


def show(console: Console, found: Explanation) -> None:
    """Print everything."""
    spec, v = found.case.spec, found.case.variant
    lesson = "LESSON, wrong on purpose: " if v.lesson else ""
    target = arch.dotted(found.capability)
    _say(console, f"[bold]{spec.op} {escape(found.case.label)}[/], compiled for {target}")
    _say(console, escape(f"{lesson}{'; '.join(x for x in (spec.idea, v.note) if x)}"))
    if spec.source:
        _say(console, escape(f"source: {spec.source}"))
    _formula(console, found)
    if found.analysis is not None:
        _risks(console, found)
        _claims(console, found)
        _unseen(console, found)
    _memory(console, found)
    _resources(console, found)
    _costs(console, found)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _formula(console: Console, found: Explanation) -> None:
    stored = [p for p in found.case.spec.params(found.case.variant) if p.role == "in"]
    arrays = ", ".join(f"{p.name} {p.format}" for p in stored)
    judged = ", by which the lesson is judged" if found.case.variant.lesson else ""
    _say(console, f"\n[bold]Formula[/]{judged}, of {arrays}")
    table = _table("", "", "result", "how")
    for line in found.lines:
        word = (
            "stored"
            if line.kind == "cast" and not formulas.narrow(line.format)
            else _WORDS[line.kind]
        )
        how = "; ".join(x for x in (word, line.note) if x)
        table.add_row(f"  {line.name}", escape(f"= {line.text}"), line.format, escape(how))
    console.print(table)
    sizes = formulas.sizes(found.case.spec.op).small
    shape = " ".join(f"{name}={size}" for name, size in sizes.items() if size)
    _say(console, escape(f"  may be off, at {shape}, by {found.bound}"))
    for step in found.case.spec.steps(found.case.variant, found.capability, sizes):
        _say(console, escape(f"  after a launch of its own: {step.name}"))


def _risks(console: Console, found: Explanation) -> None:
    assert found.analysis is not None
    _say(console, "\n[bold]Where the error comes from[/], read from the compiled instructions")
    table = _table("step", "in", "risk", "size", "what keeps it", "where")
    for risk in found.analysis.risks:
        table.add_row(
            escape(risk.step),
            risk.format,
            risk.risk,
            escape(risk.size),
            "[bold red]NOTHING[/]" if risk.taken else escape(risk.mitigation),
            _where(risk),
        )
    console.print(table)


def _unseen(console: Console, found: Explanation) -> None:
    """A lesson whose mistake is none of arithmetic."""
    if found.case.variant.lesson and not found.amiss:
        command = f"gpulab {found.case.spec.op} --kernel {found.case.spec.name}"
        _say(console, f"  its mistake is in which elements take part: '{command}' shows it")


def _where(risk: Risk) -> str:
    """Files, with their lines."""
    lines: dict[str, list[int]] = {}
    for place in risk.places:
        lines.setdefault(place.file, []).append(place.line)
    return escape("; ".join(f"{file}:{','.join(map(str, at))}" for file, at in lines.items()))


def _claims(console: Console, found: Explanation) -> None:
    assert found.analysis is not None
    agreed = [c for c in found.analysis.claims if c.agrees]
    text = "; ".join(f"{c.what} {c.compiled}" for c in agreed)
    _say(console, escape(f"  as declared: {text}"))
    for claim in found.analysis.claims:
        if not claim.agrees:
            _say(
                console,
                "  [bold red]NOT AS DECLARED[/]: "
                + escape(f"{claim.what}: declared {claim.declared}, compiled {claim.compiled}"),
            )


def _memory(console: Console, found: Explanation) -> None:
    traffic = found.traffic
    if traffic is None:
        _say(console, escape(f"\nPasses over memory: not counted: {found.uncounted}"))
        return
    shape = " ".join(f"{name}={size}" for name, size in traffic.small.items() if size)
    small, grown = traffic.over_least
    passes = ", ".join(
        f"{p.name} {p.times:.4g}" + ("" if p.constant else f" (then {p.grown:.4g})")
        for p in traffic.passes
    )
    _say(
        console,
        f"\n[bold]Passes over memory[/] at {shape}; 'then': {', '.join(traffic.doubled)} doubled",
    )
    _say(console, f"  {passes}: {small:.4g} of the least bytes, then {grown:.4g}")


def _resources(console: Console, found: Explanation) -> None:
    if not found.resources:
        return
    _say(console, "\n[bold]Of an SM[/], compiled for")
    table = _table("", "registers", "spilled", "shared", "threads", "blocks", "occupancy", "limit")
    for r in found.resources:
        name = f"  {arch.dotted(r.capability)}"
        if r.refusal:
            table.add_row(name, "-", "", "", "", "", "", escape(r.refusal))
            continue
        table.add_row(
            name,
            str(r.registers),
            str(r.spill_bytes),
            str(r.shared_bytes),
            str(r.threads),
            str(r.blocks),
            f"{r.occupancy:.0%}",
            ", ".join(r.limited_by),
        )
    console.print(table)


def _costs(console: Console, found: Explanation) -> None:
    if not found.costs:
        return
    _say(
        console,
        "\n[bold]What being right costs[/]: the twin's work over the lesson's, "
        f"{found.measured_on}",
    )
    quantities = list(found.costs[0].right)
    table = _table("  the mistake", *quantities, "lesson", "twin")
    for cost in found.costs:
        table.add_row(
            f"  {escape(cost.mistake)}",
            *_ratios(cost, quantities),
            cost.lesson.split()[0],
            cost.twin.split()[0],
        )
    console.print(table)


def _ratios(cost: Cost, quantities: list[str]) -> list[str]:
    return [f"{cost.ratio(q):.3f}x" for q in quantities]
