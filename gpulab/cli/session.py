"""What every measuring command does around the lab: open a device, show progress, print records.

With ``--json`` stdout carries one object a line and nothing else; everything for people goes to
stderr then.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpulab import arch, ops, registry
from gpulab.cli import interruption
from gpulab.errors import EXIT_INTERRUPTED, UsageError
from gpulab.lab import evaluate, render, verdict
from gpulab.lab.compiling import Ahead
from gpulab.lab.evaluate import Interrupted
from gpulab.lab.measure import MakeYardstick
from gpulab.numerics.cache import Cache
from gpulab.ops.base import Op
from gpulab.registry import Dims
from gpulab.runtime.device import Device
from gpulab.runtime.emulated import EmulatedDevice
from gpulab.runtime.select import open_device

_LEAST_WIDTH = 150
"""Columns the ladder needs; a narrower terminal wraps lines, but nothing is cut off."""


@dataclass
class Session:
    """An open device and where to print.

    Attributes:
        stopped: the interruption, once there was one.
    """

    device: Device
    as_json: bool
    quiet: bool
    counters: bool
    stopped: Interrupted | None = None

    @property
    def console(self) -> Console:
        """For people: stdout, or stderr under ``--json``."""
        width = max(_LEAST_WIDTH, Console().width)
        return Console(stderr=self.as_json, quiet=self.quiet, width=width)

    def say(self, text: str = "") -> None:
        """A line for people; silent under ``--quiet`` and ``--json``."""
        if not self.as_json:
            self.console.print(escape(text), highlight=False, soft_wrap=True)

    def emit(self, record: dict[str, Any]) -> None:
        """A record on stdout under ``--json``."""
        if self.as_json:
            click.echo(json.dumps(record))

    @contextlib.contextmanager
    def stoppable(self, doing: str) -> Iterator[None]:
        """Ctrl-C ends what is done inside and is kept in ``stopped``.

        Args:
            doing: what it is, unless the interruption knows better.
        """
        try:
            yield
        except KeyboardInterrupt as stop:
            click.echo("\ninterrupted", err=True)  # a terminal shows ^C before it
            self.stopped = stop if isinstance(stop, Interrupted) else Interrupted(doing)

    def interruption(
        self,
        stopped: Interrupted,
        records: Sequence[dict[str, Any]],
        left: int | None,
        sizes: int = 0,
    ) -> dict[str, Any]:
        """The error object of an interrupted run; its ``message`` is what people read.

        Args:
            stopped: the interruption.
            records: of all rows that were judged or refused.
            left: rows that were not judged; None: not known.
            sizes: further sizes that were not begun.
        """
        return {
            "kind": "interrupted",
            "message": verdict.interrupted(stopped.doing, records, left, sizes),
            "fix": None,
            "exit_code": EXIT_INTERRUPTED,
            "doing": stopped.doing,
            "judged": sum(r.get("verdict") is not None for r in records),
            "left": left,
            "sizes_left": sizes,
        }

    def conclude(self, records: Sequence[dict[str, Any]], sizes: int = 0) -> int:
        """Print the verdict on rows at one or several sizes; the exit code.

        Args:
            records: of the rows.
            sizes: further sizes that were not begun.

        Raises:
            click.exceptions.Exit: it was interrupted: there is no verdict, and nothing goes on.
        """
        if self.stopped is not None:
            told = self.interruption(self.stopped, records, self.stopped.left, sizes)
            self.emit({"schema": 1, "error": told})
            if not self.as_json:
                click.echo(told["message"])
            raise click.exceptions.Exit(EXIT_INTERRUPTED)
        if not self.as_json:
            click.echo(verdict.summary(records))
        return verdict.exit_code(records)

    def progress(self) -> Progress:
        """A bar on stderr, shown on terminals only."""
        err = Console(stderr=True)
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=err,
            transient=True,
            disable=not err.is_terminal or self.quiet,
        )


def open_session(
    device: str,
    capability: str | None,
    *,
    sanitize: bool = False,
    counters: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> Session:
    """Open the device that was asked for, and say which one it is and why; Ctrl-C is heard then.

    Raises:
        UsageError: a bad capability or a combination that does not go together.
        DeviceMissingError: the device is not there.
    """
    if (context := click.get_current_context(silent=True)) is not None:
        context.with_resource(interruption.heard())
    wanted = arch.parse(capability) if capability is not None else None
    opened = open_device(device, capability=wanted, sanitize=sanitize, counters=counters)
    if isinstance(opened, EmulatedDevice) and counters:
        # The gates' many runs need no counts: each row is counted once, on a device of its own.
        opened = EmulatedDevice(opened.capability, sanitize=sanitize, reason=opened.reason)
    session = Session(opened, as_json, quiet, counters)
    session.say(f"device: {describe(opened)}")
    return session


def describe(device: Device) -> str:
    """``NVIDIA H200 (cuda, sm_90)`` or ``emulated sm_89: <why>``."""
    target = arch.sm(device.capability)
    why = f": {device.reason}" if device.reason else ""
    return f"{device.name} ({device.kind}, {target}){why}"


def check_memory(dims: Dims, needed_bytes: int) -> None:
    """Refuse sizes whose host arrays do not fit, before anything is computed.

    Raises:
        UsageError: says how much is needed and how much there is.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:  # counts memory that caches give back, too
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    if needed_bytes > available:
        shape = " ".join(f"{name}={value}" for name, value in dims.items())
        raise UsageError(
            f"{shape} needs about {needed_bytes / 1e9:.3g} GB of host memory, "
            f"{available / 1e9:.3g} GB are available",
            fix="choose a smaller size",
        )


def run_cases(
    session: Session,
    op: str,
    dims: Dims,
    *,
    seed: int,
    kernel: str | None = None,
    backend: str | None = None,
    format_: str | None = None,
    measure: bool = True,
    runs: int = 10,
    warmup: int = 3,
    title: str | None = None,
    wanted: Callable[[registry.Case], bool] = lambda case: True,
    operation: Op | None = None,
) -> int:
    """Evaluate the rows of an op, print table or records and the verdict; the exit code.

    Raises:
        click.exceptions.Exit: it was interrupted.
    """
    records = evaluate_cases(
        session, op, dims, seed=seed, kernel=kernel, backend=backend, format_=format_,
        measure=measure, runs=runs, warmup=warmup, wanted=wanted, operation=operation,
    )  # fmt: skip
    for record in records:
        session.emit(record)
    if records and not session.as_json:
        shape = " ".join(f"{name}={value}" for name, value in dims.items())
        render.print_ladder(session.console, records, title or f"{op} {shape}, seed {seed}")
        print_counters(session, records)
    return session.conclude(records)


def print_counters(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """The table of counted work, where ``--counters`` asked for it."""
    if session.counters:
        render.print_whole(session.console, render.counter_table(records))
        session.say()


def evaluate_cases(
    session: Session,
    op: str,
    dims: Dims,
    *,
    seed: int,
    kernel: str | None = None,
    backend: str | None = None,
    format_: str | None = None,
    chosen: Sequence[registry.Case] | None = None,
    families: Sequence[str] | None = None,
    measure: bool = True,
    runs: int = 10,
    warmup: int = 3,
    wanted: Callable[[registry.Case], bool] = lambda case: True,
    operation: Op | None = None,
    yardstick: MakeYardstick | None = None,
    ahead: Ahead | None = None,
    cache: Cache | None = None,
) -> list[dict[str, Any]]:
    """Records of the rows, refused ones included, in ladder order; see ``Session.stopped``.

    ``operation`` is the op where it is not as registered (another eps, given labels); ``ahead``
    are compilations under way for further sizes, ``cache`` holds what sizes share.

    Raises:
        UsageError: no row is left.
    """
    records: list[dict[str, Any]] = []
    with session.stoppable(f"preparing the rows of {op}"), session.progress() as bar:
        found = registry.cases(op, kernel=kernel, backend=backend, format=format_)
        cases = [case for case in (found if chosen is None else chosen) if wanted(case)]
        if not cases:
            raise UsageError(
                f"{op} has no row with these options together", fix=f"see 'gpulab list --op {op}'"
            )
        check_memory(dims, evaluate.host_bytes(operation or ops.get(op), dims))
        task = bar.add_task("", total=len(cases))
        records = evaluate.evaluate_all(
            cases,
            session.device,
            dims,
            op=operation,
            seed=seed,
            families=families,
            measured=measure,
            runs=runs,
            warmup=warmup,
            yardstick=yardstick,
            ahead=ahead,
            cache=cache,
            on_case=lambda case: bar.update(task, advance=1, description=case.label),
        )
    return session.stopped.records if session.stopped is not None else records
