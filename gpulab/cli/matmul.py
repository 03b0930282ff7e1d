"""``gpulab matmul``."""

from __future__ import annotations

import click

from gpulab.cli.options import (
    case_options,
    check_dim,
    check_runs,
    check_seed,
    device_options,
    output_options,
)
from gpulab.errors import UsageError

DEFAULT_SIZE = {"cuda": 2048, "emulated": 128}


@click.command("matmul", short_help="C = A B: every kernel against float64, with gates and times.")
@click.option("--size", type=int, help="m = n = k (default 2048 on a card, 128 emulated).")
@click.option("--m", type=int, help="Rows of A and C.")
@click.option("--n", type=int, help="Columns of B and C.")
@click.option("--k", type=int, help="Columns of A, rows of B: the terms of a sum.")
@click.option("--runs", type=int, default=10, show_default=True, help="Timed runs (card).")
@click.option("--warmup", type=int, default=3, show_default=True, help="Warm-up runs (card).")
@click.option("--no-time", is_flag=True, help="Judge only; do not time or count.")
@case_options
@device_options
@output_options
def command(
    size: int | None,
    m: int | None,
    n: int | None,
    k: int | None,
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
) -> int:
    """Run every matmul kernel on seeded inputs and judge each against float64 on the CPU.

    Each row passes only if both gates hold; half-accumulator rows are lessons, which must fail.
    """
    from gpulab.cli.session import open_session, run_cases

    check_seed(seed)
    check_runs(runs, warmup)
    if size is not None and (m, n, k) != (None, None, None):
        raise UsageError("--size excludes --m, --n and --k", fix="give --size, or all three")
    if size is None and (m, n, k) != (None, None, None) and None in (m, n, k):
        raise UsageError("--m, --n and --k go together", fix="give all three, or --size")
    for name, value in (("--size", size), ("--m", m), ("--n", n), ("--k", k)):
        if value is not None:
            check_dim(name, value)
    session = open_session(
        device, capability, sanitize=sanitize, counters=counters, as_json=as_json, quiet=quiet
    )
    side = size if size is not None else DEFAULT_SIZE[session.device.kind]
    dims = {"m": m or side, "n": n or side, "k": k or side}
    return run_cases(
        session,
        "matmul",
        dims,
        seed=seed,
        kernel=kernel,
        backend=backend,
        format_=format_,
        measure=not no_time,
        runs=runs,
        warmup=warmup,
    )
