"""How the error of a float and of a half accumulator grows with K: the lab's first lesson."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from gpulab import registry
from gpulab.formats import decode, encode
from gpulab.lab.render import number
from gpulab.lab.runner import KernelRunner
from gpulab.ops.matmul import MATMUL
from gpulab.runtime.device import Device


def growth(device: Device, sizes: Sequence[tuple[int, int]], seed: int) -> list[dict[str, Any]]:
    """Max and rms error against R1 of every fp16-storage kernel with a half accumulator, and of
    its twin with a float one, at each (m = n, k).

    Returns:
        One record a kernel, accumulator and size: ``max_abs_err`` and ``rms_err``.
    """
    rows: list[dict[str, Any]] = []
    pairs = [
        c
        for c in registry.cases("matmul", format="fp16")
        if c.spec.backend == "raw" and c.refusal(device.target, device.kind) is None
    ]
    lessons = {c.spec.name for c in pairs if c.variant.lesson}
    for side, k in sizes:
        dims = {"m": side, "n": side, "k": k}
        drawn = MATMUL.make_inputs(dims, "normal", "fp16", seed)
        stored = {name: encode("fp16", values) for name, values in drawn.items()}
        exact = decode("fp16", stored["a"]) @ decode("fp16", stored["b"])
        for case in pairs:
            if case.spec.name not in lessons:
                continue
            got = decode(case.variant.output, KernelRunner(case, device, dims)(stored).outputs["c"])
            error = np.abs(got - exact)
            rows.append(
                {
                    "schema": 1,
                    "kind": "growth",
                    "op": "matmul",
                    "kernel": case.spec.name,
                    "backend": case.spec.backend,
                    "format": "fp16",
                    "accumulator": case.variant.accumulator,
                    "dims": dims,
                    "max_abs_err": float(error.max()),
                    "rms_err": float(np.sqrt(np.mean(error**2))),
                }
            )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Kernel by accumulator, one column a K."""
    sizes = list(dict.fromkeys((r["dims"]["m"], r["dims"]["k"]) for r in rows))
    shown = Table(
        title="max abs error of fp16 storage against float64 over the stored inputs, as K grows",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    shown.add_column("kernel")
    shown.add_column("accumulator")
    for side, k in sizes:
        shown.add_column(f"{side} x {side}, K = {k}", justify="right")
    for kernel, accumulator in dict.fromkeys((r["kernel"], r["accumulator"]) for r in rows):
        mine = {
            (r["dims"]["m"], r["dims"]["k"]): r["max_abs_err"]
            for r in rows
            if (r["kernel"], r["accumulator"]) == (kernel, accumulator)
        }
        shown.add_row(kernel, accumulator, *(number(mine.get(size)) for size in sizes))
    return shown
