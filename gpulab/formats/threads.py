"""Work on parts of large arrays on all cores: NumPy computes outside the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_LEAST = 1 << 19
"""Elements below which handing out work costs more than it saves."""
_inside = threading.local()


def spread(work: Callable[[slice], Any], count: int, elements: int, grain: int = 1) -> list[Any]:
    """``work`` on consecutive slices of ``range(count)`` that together are all of it.

    In one slice where there is little to do, or where this is already a part of such work.

    Args:
        work: called with a slice; parts run at the same time and must not share what they write.
        count: rows, or elements.
        elements: numbers in all of it.
        grain: slices start at multiples of it.

    Returns:
        What the calls gave, in order.
    """
    if elements < _LEAST or count <= grain or getattr(_inside, "yes", False):
        return [work(slice(0, count))]
    cores = os.cpu_count() or 1
    if cores == 1:
        return [work(slice(0, count))]
    step = -(-count // cores)
    step = -(-step // grain) * grain

    def one(first: int) -> Any:
        _inside.yes = True
        return work(slice(first, min(count, first + step)))

    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(one, range(0, count, step)))


def together(elements: int, *makers: Callable[[], Any]) -> list[Any]:
    """The results of several calls, in order; made at the same time where there is much to do.

    Args:
        elements: numbers in all of it.
        makers: calls that share nothing they write.
    """
    if elements < _LEAST:
        return [make() for make in makers]
    with ThreadPoolExecutor(len(makers)) as pool:
        return [made.result() for made in [pool.submit(make) for make in makers]]
