"""Weights in int4 with a half scale for each group of rows: quantised, packed, and read again.

``w`` (ceil(k / 2), n) bytes: byte [p, j] holds W[2 p, j] in its low half and W[2 p + 1, j] in its
high half, each two's complement, -8 .. 7; where k is odd the last high half is nobody's, and holds
7 so that whoever takes it is seen. ``scales`` (ceil(k / group), n) fp16: the weight at row t is
W[t, j] scales[t // group, j].

A scale is max |w| of its group over 7.5, so that both -8 and 7 are met; a group of zeros has the
scale 1. A weight has 4 + 11 significand bits: float32 holds it exactly.

Source: Frantar et al., "GPTQ" (arXiv 2210.17323), for groups of rows with a scale each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode, encode
from gpulab.formats.packing import pack, unpack

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]

BITS = 4
NOBODYS = 7.0
STEPS = 7.5
"""Steps from 0 to the largest weight of a group: the ends of -8 .. 7 share the error."""


def quantise(values: NDArray[Any], group: int) -> dict[str, NDArray[Any]]:
    """``w`` and ``scales`` of float weights (k, n)."""
    wide = np.asarray(values, np.float64)
    starts = np.arange(0, wide.shape[0], group)
    largest = np.maximum.reduceat(np.abs(wide), starts, axis=0)
    scales = encode("fp16", np.where(largest > 0, largest, STEPS) / STEPS, saturate=True)
    scales = np.where(decode("fp16", scales) > 0, scales, encode("fp16", 1.0))
    steps = np.rint(wide / per_row(decode("fp16", scales), wide.shape[0], group))
    return store(np.clip(steps, -(1 << BITS - 1), (1 << BITS - 1) - 1), scales)


def store(integers: Floats, scales: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """``w`` and ``scales`` of integers (k, n) and stored scales."""
    missing = np.full((len(integers) % 2, integers.shape[1]), NOBODYS)
    packed = pack("int4", encode("int4", np.concatenate([integers, missing])).T)
    return {"w": np.ascontiguousarray(packed.T), "scales": np.ascontiguousarray(scales)}


def per_row(scales: Floats, k: int, group: int) -> Floats:
    """Scales (groups, n) at every row (k, n)."""
    return np.repeat(scales, group, axis=0)[:k]


def integers(packed: NDArray[Any], k: int) -> Floats:
    """W (k, n) of the stored bytes."""
    found: Floats = decode("int4", unpack("int4", packed.T, k)).T
    return found


def weights(stored: Mapping[str, NDArray[Any]], k: int, group: int) -> Floats:
    """What the stored weights are worth (k, n)."""
    with np.errstate(invalid="ignore"):
        return integers(stored["w"], k) * per_row(decode("fp16", stored["scales"]), k, group)
