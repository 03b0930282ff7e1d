"""The exercises: one module each, found by importing this package's modules."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from gpulab.errors import UsageError
from gpulab.exercises.base import Exercise


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Exercise]:
    """Every exercise by name, in the order in which they are meant to be done."""
    found: list[Exercise] = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        exercise = getattr(importlib.import_module(module.name), "EXERCISE", None)
        if isinstance(exercise, Exercise):
            found.append(exercise)
    return {e.name: e for e in sorted(found, key=lambda e: (e.order, e.name))}


def get(name: str) -> Exercise:
    """The exercise of a name.

    Raises:
        UsageError: unknown; lists the known ones.
    """
    known = catalogue()
    if name not in known:
        raise UsageError(f"no exercise {name!r}", fix=f"choose one of: {', '.join(known)}")
    return known[name]
