"""``gpulab attention``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict, Unpack

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

if TYPE_CHECKING:
    from gpulab.cli.session import Session

DEFAULTS = {
    "cuda": {"batch": 2, "heads": 16, "seq": 2048, "head_dim": 128},
    "emulated": {"batch": 1, "heads": 2, "seq": 77, "head_dim": 64},
}


class Shape(TypedDict):
    """The options that say what is computed; None: the device's default."""

    batch: int | None
    heads: int | None
    kv_heads: int | None
    seq_q: int | None
    seq_k: int | None
    head_dim: int | None
    causal: bool
    window: int | None
    bias: bool
    mask: bool


def _check(shape: Shape) -> None:
    """Refuse what no device computes.

    Raises:
        UsageError: outside its limits, or heads that do not go together.
    """
    from gpulab.ops.attention import MAX_HEAD_DIM

    for name, value in (
        ("--batch", shape["batch"]),
        ("--heads", shape["heads"]),
        ("--kv-heads", shape["kv_heads"]),
        ("--seq-q", shape["seq_q"]),
        ("--seq-k", shape["seq_k"]),
        ("--window", shape["window"]),
    ):
        if value is not None:
            check_dim(name, value)
    heads, kv_heads, head_dim = shape["heads"], shape["kv_heads"], shape["head_dim"]
    if head_dim is not None and not 1 <= head_dim <= MAX_HEAD_DIM:
        raise UsageError(
            f"--head-dim {head_dim} is outside 1 .. {MAX_HEAD_DIM}", fix="for example --head-dim 64"
        )
    if kv_heads is not None and heads is not None and heads % kv_heads:
        raise UsageError(
            f"--kv-heads {kv_heads} does not divide --heads {heads}",
            fix="every key head serves the same number of query heads",
        )


def _dims(shape: Shape, default: Mapping[str, int]) -> dict[str, int]:
    """The dims of the operation, with a device's defaults."""
    queries = shape["seq_q"] or default["seq"]
    heads = shape["heads"] or max(default["heads"], shape["kv_heads"] or 1)
    return {
        "batch": shape["batch"] or default["batch"],
        "heads": heads,
        "kv_heads": shape["kv_heads"] or heads,
        "seq_q": queries,
        "seq_k": shape["seq_k"] or queries,
        "head_dim": shape["head_dim"] or default["head_dim"],
        "causal": int(shape["causal"]),
        "window": shape["window"] or 0,
        "bias_planes": heads if shape["bias"] else 0,
        "mask_planes": int(shape["mask"]),
    }


def _show_scaling(session: Session, dims: Mapping[str, int], seed: int) -> None:
    """What scales along the sequence and a rotation gain, where an fp8 kernel runs."""
    from gpulab.lab import scaling

    rows = scaling.scaling(session.device, dims, seed)
    for row in rows:
        session.emit(row)
    if rows and not session.as_json:
        session.say()
        session.say(scaling.TITLE)
        session.console.print(scaling.table(rows))
        for note in scaling.notes():
            session.say(note)


@click.command("attention", short_help="softmax(Q K^T / sqrt(d)) V: kernels, lessons, times.")
@click.option("--batch", type=int, help="Batch entries (default 2 on a card, 1 emulated).")
@click.option(
    "--heads", type=int, help="Query heads (default 16 on a card, 2 emulated, or --kv-heads)."
)
@click.option("--kv-heads", type=int, help="Key and value heads; divides --heads (default: all).")
@click.option("--seq-q", type=int, help="Queries (default 2048 on a card, 77 emulated).")
@click.option("--seq-k", type=int, help="Keys (default: as many as queries).")
@click.option("--head-dim", type=int, help="Columns, 1 .. 256 (default 128 on a card, else 64).")
@click.option(
    "--causal", is_flag=True, help="No later key; the last query is at the place of the last key."
)
@click.option(
    "--window", type=int, help="Only keys nearer than this many positions, before or after."
)
@click.option("--bias", is_flag=True, help="An additive bias for every head.")
@click.option("--mask", is_flag=True, help="A boolean mask; some queries see no key at all.")
@click.option("--runs", type=int, default=10, show_default=True, help="Timed runs (card).")
@click.option("--warmup", type=int, default=3, show_default=True, help="Warm-up runs (card).")
@click.option("--no-time", is_flag=True, help="Judge only; do not time or count.")
@case_options
@device_options
@output_options
def command(
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
    **shape: Unpack[Shape],
) -> int:
    """Run every attention kernel on seeded inputs and judge its result and its log-sum-exp.

    Each row passes only if both gates hold; lessons are wrong on purpose and must fail.
    """
    from gpulab.cli.session import open_session, run_cases
    from gpulab.ops.attention import ATTENTION

    check_seed(seed)
    check_runs(runs, warmup)
    _check(shape)
    session = open_session(
        device, capability, sanitize=sanitize, counters=counters, as_json=as_json, quiet=quiet
    )
    dims = _dims(shape, DEFAULTS[session.device.kind])
    ATTENTION.check_dims(dims)
    code = run_cases(
        session,
        "attention",
        dims,
        seed=seed,
        kernel=kernel,
        backend=backend,
        format_=format_,
        measure=not no_time,
        runs=runs,
        warmup=warmup,
    )
    if kernel in (None, "fp8") and format_ in (None, "e4m3") and backend in (None, "raw"):
        _show_scaling(session, dims, seed)
    return code
