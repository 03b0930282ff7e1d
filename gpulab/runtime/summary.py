"""Figures of a set of timed runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Milliseconds: the middle, the best, the run that nine in ten do not exceed, and the count.

    ``median`` of an even count is the mean of the two middle runs; ``p90`` is a run that was
    measured (nearest rank), never an interpolation beyond what was seen.
    """

    median: float
    min: float
    p90: float
    runs: int


def summarize(samples_ms: Sequence[float]) -> Summary:
    """Summarise samples in milliseconds.

    Raises:
        ValueError: no samples, or one that is no positive finite number: an event pair that
            measured nothing must not become a speed.
    """
    if not samples_ms:
        raise ValueError("no timed runs")
    bad = [s for s in samples_ms if not (math.isfinite(s) and s > 0)]
    if bad:
        raise ValueError(f"a timed run took {bad[0]} ms")
    ordered = sorted(samples_ms)
    rank = math.ceil(0.9 * len(ordered))
    return Summary(
        median=statistics.median(ordered),
        min=ordered[0],
        p90=ordered[rank - 1],
        runs=len(ordered),
    )
