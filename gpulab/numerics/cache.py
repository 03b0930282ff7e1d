"""A small least-recently-used store with a limit in bytes, owned by whoever makes it."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

DEFAULT_LIMIT_BYTES = 16 << 30
_PHYSICAL_SHARE = 4
"""At most one quarter of the machine's memory."""


def default_limit() -> int:
    """16 GiB, or a quarter of the physical memory where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(DEFAULT_LIMIT_BYTES, physical // _PHYSICAL_SHARE)


class Cache:
    """References, inputs and simulations shared by the cases of one run; threads may ask for
    different values at the same time.

    Args:
        limit_bytes: what may be kept; a value larger than the limit is returned, not kept.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = default_limit() if limit_bytes is None else limit_bytes
        self.used_bytes = 0
        self.misses = 0
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made (and kept) where it is not there."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                kept: T = self._items[key][0]
                return kept
            self.misses += 1
        value = make()
        size = size_of(value)
        with self._lock:
            if size <= self.limit_bytes and key not in self._items:
                self._items[key] = (value, size)
                self.used_bytes += size
                while self.used_bytes > self.limit_bytes:
                    _, (_, freed) = self._items.popitem(last=False)
                    self.used_bytes -= freed
        return value

    def __contains__(self, key: Hashable) -> bool:
        return key in self._items


def size_of(value: object) -> int:
    """Bytes of the arrays reachable through fields, mappings and sequences."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(size_of(v) for v in value.values())
    if isinstance(value, tuple | list):
        return sum(size_of(v) for v in value)
    fields = getattr(value, "__dict__", None)
    return sum(size_of(v) for v in fields.values()) if isinstance(fields, dict) else 0
