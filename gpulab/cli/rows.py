"""What the commands of the row operations share: ``--rows``, ``--cols`` and how they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpulab.cli.options import (
    case_options,
    check_dim,
    check_runs,
    check_seed,
    device_options,
    output_options,
)

if TYPE_CHECKING:
    from gpulab.ops.base import Op
    from gpulab.registry import Case

DEFAULTS = {"cuda": {"rows": 8192, "cols": 4096}, "emulated": {"rows": 16, "cols": 1000}}
"""64 MB of bf16 on a card; odd enough to have tails where it is emulated."""


def restricted(residual: bool, contract: str | None) -> Callable[[Case], bool]:
    """Which rows ``--residual`` and ``--contract`` leave."""
    return lambda case: (
        (case.variant.contract != "" or not residual) and contract in (None, case.variant.contract)
    )


def row_command(
    op: str,
    about: str,
    text: str,
    *more: Callable[[Any], Any],
    configured: Callable[..., Op] | None = None,
) -> click.Command:
    """The command of a row operation.

    Args:
        op: operation, and the command's name.
        about: one line for the list of commands.
        text: its help.
        more: further options; ``--residual`` and ``--contract`` restrict the rows.
        configured: the operation with the values of all other further options.
    """

    def run(
        rows: int | None,
        cols: int | None,
        runs: int,
        warmup: int,
        no_time: bool,
        kernel: str | None,
        backend: str | None,
        format_: str | None,
        device: str,
        capability: str | None,
        sanitize: bool,
        counters: bool,
        seed: int,
        as_json: bool,
        quiet: bool,
        residual: bool = False,
        contract: str | None = None,
        **settings: Any,
    ) -> int:
        from gpulab.cli.session import open_session, run_cases

        check_seed(seed)
        check_runs(runs, warmup)
        for name, value in (("--rows", rows), ("--cols", cols)):
            if value is not None:
                check_dim(name, value)
        operation = configured(**settings) if configured is not None else None
        session = open_session(
            device, capability, sanitize=sanitize, counters=counters, as_json=as_json, quiet=quiet
        )
        default = DEFAULTS[session.device.kind]
        return run_cases(
            session,
            op,
            {"rows": rows or default["rows"], "cols": cols or default["cols"]},
            seed=seed,
            kernel=kernel,
            backend=backend,
            format_=format_,
            measure=not no_time,
            runs=runs,
            warmup=warmup,
            wanted=restricted(residual, contract),
            operation=operation,
        )

    run.__doc__ = text
    options = (
        click.option("--rows", type=int, help="Rows (default 8192 on a card, 16 emulated)."),
        click.option("--cols", type=int, help="Columns (default 4096 on a card, 1000 emulated)."),
        *more,
        click.option("--runs", type=int, default=10, show_default=True, help="Timed runs (card)."),
        click.option(
            "--warmup", type=int, default=3, show_default=True, help="Warm-up runs (card)."
        ),
        click.option("--no-time", is_flag=True, help="Judge only; do not time or count."),
        case_options,
        device_options,
        output_options,
    )
    for option in reversed(options):
        run = option(run)
    return click.command(op, short_help=about)(run)
