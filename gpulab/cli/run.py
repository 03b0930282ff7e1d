"""``gpulab run``: the whole lab, what ``make run`` runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from gpulab.cli.options import check_seed, device_options, output_options
from gpulab.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_PASS

if TYPE_CHECKING:
    from gpulab.cli.session import Session
    from gpulab.lab.compiling import Ahead
    from gpulab.lab.suite import Section

Record = dict[str, Any]

LADDER = {"cuda": 2048, "emulated": 96}
"""Side of the square matmul that ``run`` judges."""
FULL_LADDER = {"cuda": (256, 1024, 2048, 4096), "emulated": (96, 256)}
GROWTH = {
    "cuda": ((256, 256), (1024, 1024), (2048, 2048)),
    "emulated": ((32, 64), (32, 256), (32, 1024)),
}
"""(m = n, k) at which the error of the two fp16 accumulators is compared."""


@dataclass
class Lab:
    """One run of the lab: its parts in order, and what is known by now.

    Args:
        session: device, and where to print.
        ahead: compiles beside what is interpreted and judged.
        seed: of all inputs.
        sides: of the square matmuls to judge.
        sections: row operations and attention to judge.

    Attributes:
        records: of the rows that were judged or refused.
        judged: those of ``sections``, as far as they were come to.
        failed: what was wrong besides rows, a sentence each.
    """

    session: Session
    ahead: Ahead
    seed: int
    sides: Sequence[int]
    sections: Sequence[Section]
    records: list[Record] = field(default_factory=list)
    judged: list[tuple[Section, list[Record]]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def rows(self) -> list[tuple[str, str | None, Mapping[str, int]]]:
        """Operation, formats and dims of everything that is judged."""
        squares = [("matmul", None, {"m": side, "n": side, "k": side}) for side in self.sides]
        return [*squares, *((s.op, s.formats, s.dims) for s in self.sections)]

    def compile(self) -> None:
        """Start to compile every row."""
        from gpulab import registry

        for op, formats, dims in self.rows():
            self.ahead.submit(list(registry.cases(op, format=formats)), dims)

    def probe(self) -> None:
        """What the tensor cores of the device execute."""
        from gpulab.report.capability import PROBED, capability_report
        from gpulab.report.probe import run_probes
        from gpulab.report.render import capability_table

        device = self.session.device
        lines = capability_report(device.capability, run_probes(device, PROBED))
        for line in lines:
            self.session.emit(line.to_json(device.capability))
        shown = f"{device.name}, {device.kind}"
        self._show(capability_table(lines, device.capability, shown))
        wrong = [x.name for x in lines if x.supported and x.status in ("mismatch", "not run")]
        if wrong:
            self.failed.append(f"tensor cores not as modelled for {', '.join(wrong)}")

    def ladder(self) -> None:
        """Matmul, at every size."""
        from gpulab.cli.session import print_counters
        from gpulab.lab import render

        for side in self.sides:
            found = self._judge("matmul", None, {"m": side, "n": side, "k": side})
            if found and not self.session.as_json:
                title = f"matmul {side} x {side} x {side}"
                render.print_ladder(self.session.console, found, title)
                self.session.say()
                print_counters(self.session, found)
            if self.session.stopped is not None:
                break

    def growth(self) -> None:
        """How errors grow with K, by accumulator."""
        from gpulab.lab import growth

        device = self.session.device
        grown = growth.growth(device, GROWTH[device.kind], self.seed)
        for row in grown:
            self.session.emit(row)
        self._show(growth.table(grown), growth.sentence(grown))
        self.failed += growth.lost(grown)

    def suite(self) -> None:
        """Row operations and attention."""
        for section in self.sections:
            found = self._judge(section.op, section.formats, section.dims, measure=False)
            self.judged.append((section, found))
            if self.session.stopped is not None:
                break

    def lessons(self) -> None:
        """Show what was judged of row operations and attention, and what the gates caught."""
        from gpulab.lab import lessons, render, suite

        if any(found for _, found in self.judged):
            problems = render.problems([r for _, found in self.judged for r in found])
            self._show(suite.table(self.judged), *problems)
        taught = lessons.caught(self.records)
        for row in taught:
            self.session.emit(row)
        if taught or self.session.stopped is None:
            self._show(
                lessons.table(taught, lessons.refused(self.records)),
                lessons.LEGEND,
                lessons.sentence(taught),
            )
        self.failed += [f"no gate catches {name}" for name in lessons.lost(taught)]

    def conclude(self) -> int:
        """Print the one verdict; the exit code."""
        from gpulab.lab import verdict

        stopped, told = self.session.stopped, {}
        if stopped is None:
            code, sentence = verdict.exit_code(self.records), verdict.summary(self.records)
        else:
            told = {"error": self.session.interruption(stopped, self.records, self._left())}
            code, sentence = told["error"]["exit_code"], told["error"]["message"]
        code, sentence = concluded(code, sentence, self.failed)
        if self.session.as_json:
            click.echo(json.dumps({"schema": 1, "summary": sentence, "exit_code": code, **told}))
        else:
            click.echo(sentence)
        return code

    def _judge(
        self, op: str, formats: str | None, dims: Mapping[str, int], measure: bool = True
    ) -> list[Record]:
        """Judge rows, which are in ``records`` then."""
        from gpulab.cli.session import evaluate_cases

        found = evaluate_cases(
            self.session, op, dims, seed=self.seed, format_=formats, measure=measure,
            ahead=self.ahead,
        )  # fmt: skip
        self.records += found
        for record in found:
            self.session.emit(record)
        return found

    def _left(self) -> int:
        """Rows that were not judged, but could be."""
        from gpulab import registry
        from gpulab.lab.evaluate import judgeable

        device = self.session.device
        every = sum(
            judgeable(list(registry.cases(op, format=formats)), device, dims)
            for op, formats, dims in self.rows()
        )
        return every - sum(r["verdict"] is not None for r in self.records)

    def _show(self, *parts: Any) -> None:
        """Tables and lines for people."""
        if not self.session.as_json:
            for part in parts:
                text = escape(part) if isinstance(part, str) else part
                self.session.console.print(text, highlight=False)
            self.session.say()


def concluded(code: int, sentence: str, failed: Sequence[str]) -> tuple[int, str]:
    """Exit code and summary of the rows, and of what ``failed`` beside them: which outweighs
    missing evidence, as a wrong row does. An interruption stays what it is."""
    if not failed:
        return code, sentence
    if code == EXIT_INTERRUPTED:
        return code, f"{sentence}; {'; '.join(failed)}"
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
    from gpulab.cli.session import open_session
    from gpulab.lab import suite
    from gpulab.lab.compiling import Ahead

    check_seed(seed)
    session = open_session(
        device, capability, sanitize=sanitize, counters=counters, as_json=as_json, quiet=quiet
    )
    session.say()
    kind = session.device.kind
    sides = FULL_LADDER[kind] if full else (LADDER[kind],)
    with Ahead(session.device) as ahead:
        lab = Lab(session, ahead, seed, sides, suite.sections(kind, full))
        for doing, part in (
            ("compiling the rows", lab.compile),
            ("probing the tensor cores", lab.probe),
            ("judging matmul", lab.ladder),
            ("measuring how errors grow with K", lab.growth),
            ("judging row operations and attention", lab.suite),
        ):
            with session.stoppable(doing):
                part()
            if session.stopped is not None:
                break
    lab.lessons()
    return lab.conclude()
