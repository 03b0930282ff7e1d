"""``gpulab bench rmsnorm``, ``layernorm``, ``softmax``, ``logsoftmax``, ``crossentropy``,
``attention``: how near each kernel comes to what binds it, with its error beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpulab.cli.options import (
    case_options,
    check_dim,
    check_output,
    check_runs,
    check_seed,
    output_options,
    parse_sizes,
)
from gpulab.cli.rows import restricted

if TYPE_CHECKING:
    from rich.table import Table

    from gpulab.cli.session import Session
    from gpulab.registry import Case

Record = dict[str, Any]

ROW_SIZES = "8192x4096,4096x8192,1024x32768,256x131072,128x262144"
"""64 MB of bf16 each."""
SEQUENCES = "4096,16384"
TOKENS = 16384
"""Keys of a whole batch, unless ``--batch`` says otherwise."""


def timing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--runs``, ``--warmup``, ``--save``."""
    for option in (
        click.option(
            "--save",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Append the records, with their environment, to this JSON lines file.",
        ),
        click.option("--warmup", type=int, default=3, show_default=True, help="Warm-up runs."),
        click.option("--runs", type=int, default=10, show_default=True, help="Timed runs of each."),
    ):
        command = option(command)
    return command


def report_size(
    session: Session,
    records: Sequence[Record],
    title: str,
    against: Table,
    *,
    save: Path | None,
    ladder: Table | None = None,
) -> None:
    """Give out and save the records of one size, and print them and what they are held against.

    Args:
        session: where to.
        records: of all rows.
        title: says what was computed.
        against: the table of what they are held against.
        save: file that they are appended to, with their environment.
        ladder: a table in the place of the one that every command prints.
    """
    from gpulab.bench.records import append
    from gpulab.lab import render
    from gpulab.lab.environment import environment

    if not records:  # it was interrupted before the first
        return
    for record in records:
        session.emit(record)
    if save is not None:
        append(save, records, environment(session.device))
    if ladder is None:
        render.print_ladder(session.console, records, title)
    else:
        session.console.print(ladder)
    session.console.print(against)
    session.say()


def _honest(
    op: str,
    wanted: Callable[[Case], bool],
    kernel: str | None,
    backend: str | None,
    format_: str | None,
) -> list[Case]:
    """The rows that are asked for, without lessons: how fast a wrong result comes says nothing."""
    from gpulab import registry

    found = registry.cases(op, kernel=kernel, backend=backend, format=format_)
    return [case for case in found if not case.variant.lesson and wanted(case)]


def bench(
    op: str,
    shapes: Sequence[dict[str, int]],
    *,
    save: Path | None,
    runs: int,
    warmup: int,
    seed: int,
    as_json: bool,
    quiet: bool,
    contract: str | None = None,
    residual: bool = False,
    kernel: str | None = None,
    backend: str | None = None,
    format_: str | None = None,
) -> int:
    """Judge and time the honest rows of an op at each shape; the exit code.

    Raises:
        DeviceMissingError: there is no card.
        UsageError: bad numbers.
    """
    from gpulab import ops
    from gpulab.bench import bandwidth, roofline
    from gpulab.cli.session import evaluate_cases, open_session
    from gpulab.lab.compiling import Ahead
    from gpulab.numerics.cache import Cache

    check_seed(seed)
    check_runs(runs, warmup)
    check_output("--save", save)
    for dims in shapes:
        ops.get(op).check_dims(dims)
    session = open_session("cuda", None, as_json=as_json, quiet=quiet)
    by_memory = ops.get(op).speed == "gb_per_s"
    limits = roofline.Roofline(session.device)
    cases = _honest(op, restricted(residual, contract), kernel, backend, format_)
    ahead = Ahead(session.device)
    click.get_current_context().call_on_close(ahead.close)
    for dims in shapes:
        ahead.submit(cases, dims)
    every: list[Record] = []
    # Inputs of attention are the same with and without causality; rows share nothing between sizes.
    cache = None if by_memory else Cache()
    for number, dims in enumerate(shapes, start=1):
        records = evaluate_cases(
            session, op, dims, seed=seed, runs=runs, warmup=warmup,
            chosen=cases, ahead=ahead, cache=cache,
            yardstick=bandwidth.yardstick(bandwidth.traffic(op)) if by_memory else None,
        )  # fmt: skip
        records = records if by_memory else limits.over(records)
        against = (bandwidth if by_memory else roofline).table(records)
        shape = " ".join(f"{name}={value}" for name, value in dims.items() if value)
        report_size(session, records, f"{op} {shape}, seed {seed}", against, save=save)
        every += records
        if session.stopped is not None:
            session.conclude(every, sizes=len(shapes) - number)
    return session.conclude(every)


def row_bench(op: str, *more: Callable[[Any], Any]) -> click.Command:
    """``gpulab bench`` of a row operation; ``more`` are options that restrict its rows."""

    def run(sizes: str, kernel: str | None, backend: str | None, format_: str | None,
            **options: Any) -> int:  # fmt: skip
        shapes = parse_sizes(sizes, ("rows", "cols"), "8192x4096,128x262144")
        return bench(op, shapes, kernel=kernel, backend=backend, format_=format_, **options)

    traffic = "a read" if op == "crossentropy" else "a copy"
    run.__doc__ = (
        f"Time every {op} kernel in turns with {traffic} of as many bytes; every timed output is "
        "verified."
    )
    size = click.option(
        "--sizes", default=ROW_SIZES, show_default=ROW_SIZES.replace(",", ", "),
        metavar="ROWSxCOLS[,...]", help="Arrays; a single number is both.",
    )  # fmt: skip
    for option in reversed((size, *more, timing_options, case_options, output_options)):
        run = option(run)
    about = f"{op}: GB/s against {traffic} of as many bytes."
    return click.command(op, short_help=about)(run)


def attention_shapes(
    sizes: str,
    causal: bool | None,
    batch: int | None,
    heads: int,
    kv_heads: int | None,
    head_dim: int,
    window: int | None,
) -> Iterator[dict[str, int]]:
    """The dims of every measurement: each size in full and causal, unless one is asked for."""
    for name, value in (
        ("--batch", batch), ("--heads", heads), ("--kv-heads", kv_heads), ("--window", window),
    ):  # fmt: skip
        if value is not None:
            check_dim(name, value)
    for lengths in parse_sizes(sizes, ("seq_q", "seq_k"), "4096,1x16384"):
        for hidden in (False, True) if causal is None else (causal,):
            yield {
                "batch": batch or max(1, TOKENS // lengths["seq_k"]),
                "heads": heads,
                "kv_heads": kv_heads or heads,
                **lengths,
                "head_dim": head_dim,
                "causal": int(hidden),
                "window": window or 0,
                "bias_planes": 0,
                "mask_planes": 0,
            }


@click.command("attention", short_help="attention: TFLOP/s against the tensor cores' ceiling.")
@click.option("--sizes", default=SEQUENCES, show_default=True, metavar="SEQ[xKEYS][,...]",
              help="Queries and keys; a single number is both.")  # fmt: skip
@click.option("--causal/--full", default=None, help="Only with, or without, causality.")
@click.option("--batch", type=int, help=f"Batch entries (default: {TOKENS} keys in all).")
@click.option("--heads", type=int, default=16, show_default=True, help="Query heads.")
@click.option("--kv-heads", type=int, help="Key and value heads (default: as many).")
@click.option("--head-dim", type=int, default=128, show_default=True, help="Columns, 1 .. 256.")
@click.option("--window", type=int, help="Only keys nearer than this many positions.")
@timing_options
@case_options
@output_options
def attention(
    sizes: str,
    causal: bool | None,
    batch: int | None,
    heads: int,
    kv_heads: int | None,
    head_dim: int,
    window: int | None,
    **options: Any,
) -> int:
    """Time every attention kernel; flops are 4 head_dim a pair of query and key that is seen."""
    shapes = attention_shapes(sizes, causal, batch, heads, kv_heads, head_dim, window)
    return bench("attention", list(shapes), **options)


COMMANDS = (
    row_bench(
        "rmsnorm",
        click.option("--residual", is_flag=True, help="Only kernels that add a residual."),
        click.option("--contract", type=click.Choice(["fp32-sum", "rounded-sum"]),
                     help="Only kernels that declare this contract."),
    ),
    row_bench(
        "layernorm",
        click.option("--contract", type=click.Choice(["two-pass", "welford"]),
                     help="Only kernels that declare this way to the variance."),
    ),
    row_bench("softmax"),
    row_bench("logsoftmax"),
    row_bench("crossentropy"),
    attention,
)  # fmt: skip
