"""Scores of attention that its gates do not use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulab.check.subject import Beyond
from gpulab.formats import Format
from gpulab.ops.attention_data import Data
from gpulab.ops.attention_families import AttentionFamily, Shape, levels

LOWEST = -45000.0


def _far_below(rng: np.random.Generator, q: Shape, k: Shape, fmt: Format) -> Any:
    return levels(q, k, rng.uniform(LOWEST, 0.8 * LOWEST, k[:-1]), rng)


FAR_BELOW = AttentionFamily("far_below", "scores -45000 to -36000", _far_below)


def cases(data: Data) -> Iterator[Beyond]:
    """All of them."""
    yield Beyond(
        "scores far below zero",
        data.family(FAR_BELOW).stored,
        "the maximum starts at a number that these scores never reach",
        "start the maximum at -INFINITY or -FLT_MAX, which no score is below",
        "no-max",
    )
