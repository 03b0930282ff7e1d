"""What scales along the sequence and a rotation gain in fp8 attention, on inputs with outliers.

The kernels are the same; only the quantisation of Q, K and V to fp8 differs. Errors are taken
against float64 over the original inputs, so that storage is part of them, and relative to each
query's own result, so that a query next to an outlier counts as much as one that contains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from gpulab import registry
from gpulab.lab.render import number
from gpulab.lab.runner import KernelRunner
from gpulab.numerics.cache import Cache
from gpulab.numerics.errors import rms
from gpulab.ops.attention import ATTENTION
from gpulab.ops.attention_contract import FP8_BLOCK
from gpulab.ops.attention_data import Data
from gpulab.ops.attention_families import get_family
from gpulab.ops.attention_measure import of_piece
from gpulab.ops.attention_scaling import quantise
from gpulab.registry import Case, Dims
from gpulab.runtime.device import Device

FAMILIES = ("normal", "outlier", "outlier_row")


def scaling(
    device: Device, dims: Dims, seed: int, families: Sequence[str] = FAMILIES
) -> list[dict[str, Any]]:
    """One record for each fp8 row and family, with and without rotation of Q and K.

    Returns:
        Records with ``rms_relative``: the rms over all queries of (rms error of the query / rms of
        its result). Rows that the device cannot run have no record.
    """
    rows = []
    for case in registry.cases("attention", kernel="fp8"):
        if case.refusal(device.target, device.kind, dims) is not None:
            continue
        for rotation in (None, seed):
            for family in families:
                rows.append(_row(case, device, dims, family, seed, rotation))
    return rows


def _row(
    case: Case, device: Device, dims: Dims, family: str, seed: int, rotation: int | None
) -> dict[str, Any]:
    v = case.variant
    contract = ATTENTION.contract(v, device.capability)
    data = Data(contract, {k: int(n) for k, n in dims.items()}, seed, Cache())
    inputs = data.family(get_family(family))
    assert inputs.original is not None  # families are drawn
    codes = quantise(v.format, v.contract, inputs.original, rotation)
    outputs = KernelRunner(case, device, dims)({**inputs.stored, **codes}).outputs
    relative, largest = [], 0.0
    for piece in data.pieces(inputs):
        error = of_piece(data, piece, outputs)[0] - piece.r0
        largest = max(largest, float(np.abs(error).max()))
        size = np.sqrt((piece.r0**2).mean(axis=1))
        relative.append(np.sqrt((error**2).mean(axis=1))[size > 0] / size[size > 0])
    return {
        "schema": 1,
        "kind": "scaling",
        "op": "attention",
        "kernel": case.spec.name,
        "format": v.format,
        "output": v.output,
        "contract": v.contract,
        "rotated": rotation is not None,
        "dims": dict(dims),
        "inputs": {"family": family, "seed": seed},
        "max_abs_err": largest,
        "rms_relative": rms(np.concatenate(relative)),
    }


TITLE = "fp8 attention: rms over queries of rms error / rms value, against float64"


def notes() -> list[str]:
    """What the rows and columns of the table are."""
    families = "; ".join(f"{name}: {get_family(name).about}" for name in FAMILIES)
    return [
        f"block-scaled: a scale for every {FP8_BLOCK} rows of Q, K and V along the sequence; "
        f"tensor-scaled: one for all rows of a head, the same where there are at most {FP8_BLOCK}",
        f"rotated: Q and K times a random Hadamard matrix before they are stored; {families}",
    ]


def table(rows: list[dict[str, Any]]) -> Table:
    """Scaling by family: the relative rms error."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("scales")
    shown.add_column("Q and K")
    for family in FAMILIES:
        shown.add_column(family, justify="right")
    for contract, rotated in dict.fromkeys((r["contract"], r["rotated"]) for r in rows):
        mine = {
            r["inputs"]["family"]: r["rms_relative"]
            for r in rows
            if (r["contract"], r["rotated"]) == (contract, rotated)
        }
        cells = (number(mine.get(family)) for family in FAMILIES)
        shown.add_row(contract, "rotated" if rotated else "as they are", *cells)
    return shown
