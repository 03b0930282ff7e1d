"""Lets a Numba submission call ``@cuda.jit(device=True)`` functions where there is no card.

Numba compiles a device function for the current card. Here it is told the capability instead: the
submission's functions are compiled for what the kernel is compiled for.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any


def compile_for(capability: tuple[int, int]) -> None:
    """Make ``capability`` the current card's, as far as the compilation of functions asks."""
    dispatcher: Any = importlib.import_module("numba.cuda.dispatcher")
    card = SimpleNamespace(compute_capability=capability)
    dispatcher.get_current_device = lambda: card
