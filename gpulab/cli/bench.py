"""``gpulab bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from gpulab.cli import bench_ceilings, bench_ops, bench_plot
from gpulab.cli.bench_plot import check_plot
from gpulab.cli.options import (
    Group,
    case_options,
    check_output,
    check_runs,
    check_seed,
    output_options,
    parse_sizes,
)
from gpulab.errors import UsageError


@click.group(
    "bench",
    cls=Group,
    short_help="Time kernels on a card, against a library, a copy or a ceiling.",
)
def command() -> None:
    """Time kernels in turns with what they are held against, in one run, with their errors."""


command.add_command(bench_ceilings.command)
command.add_command(bench_plot.command)
for _each in bench_ops.COMMANDS:
    command.add_command(_each)


def _families(text: str | None) -> tuple[str, ...] | None:
    from gpulab.numerics.inputs import get_family

    if text is None:
        return None
    return tuple(get_family(name).name for name in text.split(","))


def _title(dims: Mapping[str, int], seed: int) -> str:
    m, n, k = dims.values()
    return f"matmul {m if m == n == k else f'{m} x {n} x {k}'}, seed {seed}"


@command.command("matmul")
@click.option("--sizes", default="1024,2048,4096", show_default=True, help="Sizes, or MxNxK.")
@click.option("--families", help="Judge on these input families only, such as normal,uniform.")
@click.option("--ladder", is_flag=True, help="The steps from mma.sync to wgmma, in bf16.")
@click.option("--runs", type=int, default=10, show_default=True, help="Timed runs of each row.")
@click.option("--warmup", type=int, default=3, show_default=True, help="Warm-up runs.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the records, with their environment, to this JSON lines file.",
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path),
    metavar="NAME",
    help="Draw speed against the library and the error by size: NAME.png and NAME.svg.",
)
@case_options
@output_options
def matmul(
    sizes: str,
    families: str | None,
    ladder: bool,
    runs: int,
    warmup: int,
    save: Path | None,
    picture: Path | None,
    kernel: str | None,
    backend: str | None,
    format_: str | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Matmul at several sizes; every timed output is verified."""
    from gpulab.bench import ladder as rungs
    from gpulab.bench import plot, roofline
    from gpulab.cli.session import evaluate_cases, open_session

    check_seed(seed)
    check_runs(runs, warmup)
    wanted = parse_sizes(sizes, "mnk", "1024,8192x8192x1024")
    drawn = _families(families)
    check_output("--save", save)
    if picture is not None:
        plot.require()
        check_plot("--plot", picture)
    if ladder and (kernel, backend, format_) != (None, None, None):
        raise UsageError("--ladder names its rows itself", fix="leave --kernel and the like out")
    session = open_session("cuda", None, as_json=as_json, quiet=quiet)
    limits = roofline.Roofline(session.device)
    every = []
    for number, dims in enumerate(wanted, start=1):
        records = evaluate_cases(
            session, "matmul", dims, seed=seed, kernel=kernel, backend=backend, format_=format_,
            chosen=rungs.rungs() if ladder else None, families=drawn, runs=runs, warmup=warmup,
        )  # fmt: skip
        if ladder:
            records = rungs.with_gains(records)
        records = limits.over(records)
        title = _title(dims, seed)
        bench_ops.report_size(
            session, records, title, roofline.table(records), save=save,
            ladder=rungs.table(records, title) if ladder else None,
        )  # fmt: skip
        every += records
        if session.stopped is not None:
            session.conclude(every, sizes=len(wanted) - number)
    if picture is not None:
        session.say(f"plot: {', '.join(map(str, plot.draw(every, picture)))}")
    return session.conclude(every)


@command.command("tune", short_help="Measure what the tiles of the wgmma kernel cost.")
@click.option("--runs", type=int, default=7, show_default=True, help="Timed runs of each size.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the table here (the one in use lies beside gpulab/kernels/matmul/wgmma_tiles.py).",
)
@output_options
def tune(runs: int, save: Path | None, seed: int, as_json: bool, quiet: bool) -> int:
    """Measure what each tile of the wgmma kernel costs: the table by which tiles are chosen."""
    from gpulab.bench.tune import tune as measure
    from gpulab.cli.session import open_session
    from gpulab.kernels.matmul import wgmma
    from gpulab.lab.environment import environment
    from gpulab.runtime.cuda_clock import clock_of

    if not 1 <= runs <= 1000:
        raise UsageError(f"--runs {runs} is outside 1 .. 1000", fix="leave it out for the default")
    check_output("--save", save)
    session = open_session("cuda", None, as_json=as_json, quiet=quiet)
    device = session.device
    if device.capability != wgmma.HOPPER or device.multiprocessors is None:
        raise UsageError(
            f"{device.name} runs no wgmma: there is nothing to tune", fix="tune on an sm_90 card"
        )
    table = measure(device, clock_of(device), device.multiprocessors, runs=runs)
    for kind, rows in table.items():
        for row in rows:
            session.emit({"schema": 1, "kind": kind, **row})
            session.say(
                f"{kind:9s} {row['tile']:38s} {row['start_us']:6.2f} us a launch, "
                f"{row['slab_us'] * 1e3:6.1f} ns a slab"
            )
    if save is not None:
        around = environment(device) | {"multiprocessors": device.multiprocessors}
        save.write_text(json.dumps({"environment": around, **table}, indent=1) + "\n")
    return 0
