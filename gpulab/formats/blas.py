"""BLAS in one thread while its callers are spread over several.

Products that are computed side by side keep the cores busy already. Threads of BLAS's own under
each of them wait for one another, and a wait costs more than the product.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_",
          "openblas_{}_num_threads")  # fmt: skip
"""What builds of OpenBLAS call it; NumPy's own wheels have the first."""
_lock = threading.Lock()
_inside = 0
_before = 1


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What tells and what sets its number of threads; None where NumPy has another BLAS."""
    maps = Path("/proc/self/maps")
    for path in mapped(maps.read_text()) if maps.exists() else []:
        library = ctypes.CDLL(path)
        for name in _NAMES:
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


def mapped(maps: str) -> list[str]:
    """Libraries of OpenBLAS in a text like /proc/self/maps, whose sixth field is a path, which may
    have spaces."""
    fields = (line.split(maxsplit=5) for line in maps.splitlines())
    paths = {Path(line[5]) for line in fields if len(line) == 6}
    return sorted(str(path) for path in paths if "openblas" in path.name and path.is_file())


@contextmanager
def one_thread() -> Iterator[None]:
    """Products inside, of every thread of the process, are computed by the thread that asks.

    May be nested and entered by several threads: the last one out gives BLAS its threads back.
    """
    global _inside, _before
    found = _openblas()
    if found is None:
        yield
        return
    tell, change = found
    with _lock:
        if _inside == 0:
            _before = tell()
            change(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                change(_before)
