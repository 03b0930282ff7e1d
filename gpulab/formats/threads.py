"""Work on parts of large arrays on several cores: NumPy computes outside the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gpulab.formats import blas

T = TypeVar("T")
R = TypeVar("R")

LEAST = 1 << 19
"""Elements below which handing out work costs more than it saves."""
MOST = 8
"""Threads at most: more of them wait for the interpreter lock rather than compute."""
_inside = threading.local()


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def workers() -> int:
    """Threads that NumPy's work is spread over: the cores this process may use, up to ``MOST``."""
    return min(MOST, cores())


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
    if elements < LEAST or count <= grain or getattr(_inside, "yes", False):
        return [work(slice(0, count))]
    cores = workers()
    if cores == 1:
        return [work(slice(0, count))]
    step = -(-count // cores)
    step = -(-step // grain) * grain

    parts = [slice(first, min(count, first + step)) for first in range(0, count, step)]
    return list(each(work, parts))


def each(
    work: Callable[[T], R], items: Sequence[T], elements: int = LEAST, most: int = MOST
) -> Iterator[R]:
    """The results of ``work`` on every item, in order; what it spreads itself stays in its thread.

    Args:
        work: called from several threads at the same time.
        items: the parts; a single one is done here, and all where this is a part already.
        elements: numbers in all of it; where they are few, all is done here.
        most: threads at most, where a part is long in products and draws.
    """
    if len(items) == 1 or elements < LEAST or getattr(_inside, "yes", False):
        yield from map(work, items)
        return
    with blas.one_thread(), ThreadPoolExecutor(min(most, cores()), initializer=_enter) as pool:
        yield from pool.map(work, items)


def _enter() -> None:
    _inside.yes = True


def together(elements: int, *makers: Callable[[], Any]) -> list[Any]:
    """The results of several calls, in order; made at the same time where there is much to do.

    Args:
        elements: numbers in all of it.
        makers: calls that share nothing they write.
    """
    if elements < LEAST:
        return [make() for make in makers]
    with ThreadPoolExecutor(len(makers)) as pool:
        return [made.result() for made in [pool.submit(make) for make in makers]]
