"""``gpulab attention``."""

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

DEFAULTS = {
    "cuda": {"batch": 2, "heads": 16, "seq": 2048, "head_dim": 128},
    "emulated": {"batch": 1, "heads": 2, "seq": 77, "head_dim": 64},
}


@click.command("attention", short_help="softmax(Q K^T / sqrt(d)) V: kernels, lessons, times.")
@click.option("--batch", type=int, help="Batch entries (default 2 on a card, 1 emulated).")
@click.option("--heads", type=int, help="Query heads (default 16 on a card, 2 emulated).")
@click.option("--kv-heads", type=int, help="Key and value heads; divides --heads (default: all).")
@click.option("--seq-q", type=int, help="Queries (default 2048 on a card, 77 emulated).")
@click.option("--seq-k", type=int, help="Keys (default: as many as queries).")
@click.option("--head-dim", type=int, help="Columns, 1 .. 256 (default 128 on a card, else 64).")
@click.option("--causal", is_flag=True, help="No key behind the query, aligned at the last ones.")
@click.option("--window", type=int, help="Only keys nearer than this many positions.")
@click.option("--bias", is_flag=True, help="An additive bias for every head.")
@click.option("--mask", is_flag=True, help="A boolean mask; some queries see no key at all.")
@click.option("--runs", type=int, default=10, show_default=True, help="Timed runs (card).")
@click.option("--warmup", type=int, default=3, show_default=True, help="Warm-up runs (card).")
@click.option("--no-time", is_flag=True, help="Judge only; do not time or count.")
@case_options
@device_options
@output_options
def command(
    batch: int | None,
    heads: int | None,
    kv_heads: int | None,
    seq_q: int | None,
    seq_k: int | None,
    head_dim: int | None,
    causal: bool,
    window: int | None,
    bias: bool,
    mask: bool,
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
    """Run every attention kernel on seeded inputs and judge its result and its log-sum-exp.

    Each row passes only if both gates hold; lessons are wrong on purpose and must fail.
    """
    from gpulab.cli.session import open_session, run_cases
    from gpulab.lab import scaling
    from gpulab.ops.attention import ATTENTION, MAX_HEAD_DIM

    check_seed(seed)
    check_runs(runs, warmup)
    for name, value in (
        ("--batch", batch),
        ("--heads", heads),
        ("--kv-heads", kv_heads),
        ("--seq-q", seq_q),
        ("--seq-k", seq_k),
        ("--window", window),
    ):
        if value is not None:
            check_dim(name, value)
    if head_dim is not None and not 1 <= head_dim <= MAX_HEAD_DIM:
        raise UsageError(
            f"--head-dim {head_dim} is outside 1 .. {MAX_HEAD_DIM}", fix="for example --head-dim 64"
        )
    if kv_heads is not None and heads is not None and heads % kv_heads:
        raise UsageError(
            f"--kv-heads {kv_heads} does not divide --heads {heads}",
            fix="every key head serves the same number of query heads",
        )
    session = open_session(
        device, capability, sanitize=sanitize, counters=counters, as_json=as_json, quiet=quiet
    )
    default = DEFAULTS[session.device.kind]
    queries = seq_q or default["seq"]
    of = heads or max(default["heads"], kv_heads or 1)
    dims = {
        "batch": batch or default["batch"],
        "heads": of,
        "kv_heads": kv_heads or of,
        "seq_q": queries,
        "seq_k": seq_k or queries,
        "head_dim": head_dim or default["head_dim"],
        "causal": int(causal),
        "window": window or 0,
        "bias_planes": of if bias else 0,
        "mask_planes": int(mask),
    }
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
        rows = scaling.scaling(session.device, dims, seed)
        for row in rows:
            session.emit(row)
        if rows and not as_json:
            session.say()
            session.console.print(scaling.table(rows))
    return code
