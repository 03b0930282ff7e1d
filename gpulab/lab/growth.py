"""How the error of a float and of a half accumulator grows with K: the lab's first lesson.

Errors are measured in units of what storing the inputs in fp16 costs by itself, rms(R1 - R0), which
grows as sqrt(K), as the result does. In this unit the error of a float accumulator stays at 1 for
every K, because its roundings of 2^-24 are negligible next to the 2^-11 of storage. The roundings
of a half accumulator are as coarse as storage and happen at every term: their sum grows as K, which
is sqrt(K) in this unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from gpulab import registry
from gpulab.formats import decode, encode
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.errors import rms
from gpulab.ops.matmul import MATMUL
from gpulab.runtime.device import Device

Record = dict[str, Any]

FORMAT = "fp16"
FLAT = 0.01
"""Relative difference from the storage error within which a float accumulator's error is flat."""


def growth(device: Device, sizes: Sequence[tuple[int, int]], seed: int) -> list[Record]:
    """Errors of every fp16-storage kernel with a half accumulator and of its twin with a float one.

    Args:
        device: where they run.
        sizes: (m = n, k), k ascending.
        seed: of the inputs, N(0, 1).

    Returns:
        One record for each size, kernel and accumulator: ``max_abs_err`` and ``rms_err`` against
        R1, ``storage_rms`` = rms(R1 - R0), ``error_vs_storage`` = rms(got - R0) / storage_rms, and
        ``holds``: whether that ratio is flat at 1 (float accumulator), or above 1 and above the
        ratio of every smaller K (half accumulator).
    """
    pairs = [
        c
        for c in registry.cases("matmul", format=FORMAT)
        if c.spec.backend == "raw" and c.refusal(device.target, device.kind) is None
    ]
    taught = {c.spec.name for c in pairs if c.variant.lesson}
    rows: list[Record] = []
    for side, k in sizes:
        dims = {"m": side, "n": side, "k": k}
        drawn = MATMUL.make_inputs(dims, "normal", FORMAT, seed)
        stored = {name: encode(FORMAT, values) for name, values in drawn.items()}
        r0 = drawn["a"].astype(float) @ drawn["b"].astype(float)
        r1 = decode(FORMAT, stored["a"]) @ decode(FORMAT, stored["b"])
        storage = rms(r1 - r0)
        for case in pairs:
            if case.spec.name not in taught:
                continue
            got = decode(case.variant.output, KernelRunner(case, device, dims)(stored).outputs["c"])
            rows.append(
                {
                    "schema": 1,
                    "kind": "growth",
                    "op": "matmul",
                    "kernel": case.spec.name,
                    "backend": case.spec.backend,
                    "format": FORMAT,
                    "accumulator": case.variant.accumulator,
                    "lesson": case.variant.lesson,
                    "dims": dims,
                    "inputs": {"family": "normal", "seed": seed},
                    "max_abs_err": float(abs(got - r1).max()),
                    "rms_err": rms(got - r1),
                    "storage_rms": storage,
                    "error_vs_storage": rms(got - r0) / storage,
                }
            )
    return [row | {"holds": _holds(row, rows)} for row in rows]


def _of(rows: Sequence[Record], kernel: str, accumulator: str) -> list[Record]:
    return [r for r in rows if (r["kernel"], r["accumulator"]) == (kernel, accumulator)]


def _holds(row: Record, rows: Sequence[Record]) -> bool:
    """Whether a ratio is what the lesson claims for its accumulator."""
    ratio = row["error_vs_storage"]
    if not row["lesson"]:
        return bool(abs(ratio - 1.0) <= FLAT)
    smaller = [
        r["error_vs_storage"]
        for r in _of(rows, row["kernel"], row["accumulator"])
        if r["dims"]["k"] < row["dims"]["k"]
    ]
    return bool(ratio > max([1.0 + FLAT, *smaller]))


def lost(rows: Sequence[Record]) -> list[str]:
    """One sentence for each number that refutes the lesson, or one that says nothing can be
    compared."""
    if {r["lesson"] for r in rows} != {True, False}:
        return ["no pair of a float and a half accumulator runs here"]
    return [
        f"{r['kernel']} with {r['accumulator']} accumulator at K = {r['dims']['k']}: "
        f"{r['error_vs_storage']:.4g} times the storage error "
        + ("does not grow" if r["lesson"] else "is not flat at 1")
        for r in rows
        if not r["holds"]
    ]


def sentence(rows: Sequence[Record]) -> str:
    """The lesson in one line with its numbers, or what refutes it."""
    refuted = lost(rows)
    if refuted:
        return f"FAIL: {'; '.join(refuted)}"
    off = max(abs(r["error_vs_storage"] - 1.0) for r in rows if not r["lesson"])
    ks = sorted({r["dims"]["k"] for r in rows})
    grown = []
    for kernel, accumulator in dict.fromkeys(
        (r["kernel"], r["accumulator"]) for r in rows if r["lesson"]
    ):
        mine = _of(rows, kernel, accumulator)
        first, last = (mine[i]["error_vs_storage"] for i in (0, -1))
        grown.append(f"{kernel} from {first:.3g} to {last:.3g}")
    return (
        f"K = {ks[0]} to {ks[-1]}: with a float accumulator it stays at 1 (within {off:.1g}), the "
        f"format errs and not the kernel; with a half one it grows, {', '.join(grown)}"
    )


def table(rows: Sequence[Record]) -> Table:
    """One line for each kernel and accumulator, one column for each K."""
    sizes = list(dict.fromkeys((r["dims"]["m"], r["dims"]["k"]) for r in rows))
    shown = Table(
        title="fp16 products: rms(got - R0) / rms(R1 - R0), storage alone being 1",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    shown.add_column("kernel", no_wrap=True)
    shown.add_column("accumulator", no_wrap=True)
    for side, k in sizes:
        shown.add_column(f"{side} x {side} x {k}", justify="right", no_wrap=True)
    shown.add_column("as K grows", no_wrap=True)
    for kernel, accumulator in dict.fromkeys((r["kernel"], r["accumulator"]) for r in rows):
        mine = _of(rows, kernel, accumulator)
        said = "grows" if mine[0]["lesson"] else "flat"
        shown.add_row(
            kernel,
            accumulator,
            *(f"{r['error_vs_storage']:.4f}" for r in mine),
            said if all(r["holds"] for r in mine) else f"[bold red]not {said}[/]",
        )
    return shown
