"""fp8 attention inputs: codes and the scales they were divided by.

A scale is max |x| of its rows over the format's largest number, so that the largest code is met.
``tensor-scaled``: one scale a head of Q, K or V. ``block-scaled``: one for every 64 rows along the
sequence, so that an outlier spoils its block only. Kernels read one scale a row.

Rotation: Q and K of a head are multiplied by the same orthogonal matrix, random signs followed by a
Hadamard matrix; their product does not change, but an outlier channel is spread over all. A head
dim that is no power of two is rotated in blocks of its largest power of two.

Source: Shah et al., "FlashAttention-3" (arXiv 2407.08608), block quantisation and incoherent
processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import UsageError
from gpulab.formats import encode, get
from gpulab.ops.attention_contract import FP8_BLOCK

Floats = NDArray[np.float64]


def quantise(
    fmt: str, name: str, original: Mapping[str, NDArray[Any]], rotation: int | None = None
) -> dict[str, NDArray[Any]]:
    """Codes ``q``, ``k``, ``v`` (batch, heads, seq, d) and scales ``q_scale`` ... (without d).

    Args:
        fmt: fp8 format of the codes.
        name: ``block-scaled`` or ``tensor-scaled``.
        original: q, k, v.
        rotation: seed of the signs with which Q and K are rotated first; None: not at all.

    Raises:
        UsageError: another name.
    """
    if name not in ("block-scaled", "tensor-scaled"):
        raise UsageError(f"attention has no scaling {name!r}")
    found: dict[str, NDArray[Any]] = {}
    for which in "qkv":
        values = original[which].astype(np.float64)
        if rotation is not None and which != "v":
            values = rotate(values, rotation)
        scale = _scales(values, FP8_BLOCK if name == "block-scaled" else values.shape[-2])
        scale = (scale / get(fmt).max_finite).astype(np.float32)
        scale[scale == 0] = 1.0
        scaled = values / scale[..., None].astype(np.float64)
        found[which] = encode(fmt, scaled, saturate=True)
        found[f"{which}_scale"] = scale
    return found


def _scales(values: Floats, rows: int) -> Floats:
    """Max |x| over each ``rows`` rows, at every row (..., seq)."""
    largest = np.abs(values).max(axis=-1)
    starts = np.arange(0, largest.shape[-1], rows)
    blocks = np.maximum.reduceat(largest, starts, axis=-1)
    whole: Floats = np.repeat(blocks, rows, axis=-1)[..., : largest.shape[-1]]
    return whole


def rotate(values: Floats, seed: int) -> Floats:
    """Signs and a Hadamard matrix over the last axis; orthogonal."""
    d = values.shape[-1]
    width = d & -d
    rng = np.random.Generator(np.random.PCG64(seed))
    signs = rng.integers(0, 2, d) * 2.0 - 1.0
    parts = (values * signs).reshape(*values.shape[:-1], d // width, width)
    rotated: Floats = (parts @ hadamard(width)).reshape(values.shape)
    return rotated


def hadamard(width: int) -> Floats:
    """The orthogonal Hadamard matrix of a power of two (Sylvester's)."""
    matrix = np.ones((1, 1))
    while len(matrix) < width:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    scaled: Floats = matrix / np.sqrt(width)
    return scaled
