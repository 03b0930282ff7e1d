"""Products of warpgroups (wgmma) that nobody has waited for, and what they read in shared memory.

A product is made when it is issued, a card takes its time: until the warpgroup waits, its operands
must not be overwritten. Tensor copies are held to that (they are what refills operands).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.emulator.values import Mask

Ints = NDArray[np.int64]
WARPGROUP = 128


@dataclass
class Product:
    """By warpgroups (groups, columns), each with the number of the commit it waits for; ``words``
    (n, w) of the shared memory of the own block are read."""

    groups: Ints
    columns: Ints
    numbers: Ints
    words: Ints


class Products:
    """Those of a chunk; a warpgroup commits and waits when its first thread does."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._closed = np.zeros((-(-shape[0] // WARPGROUP), shape[1]), np.int64)
        self._shape = shape
        self._open: list[Product] = []

    def add(self, groups: Ints, columns: Ints, words: Ints) -> None:
        """Issued; (n, ...) words."""
        numbers = self._closed[groups, columns]
        self._open.append(Product(groups, columns, numbers, words.reshape(len(groups), -1)))

    def _first(self, mask: Mask | None) -> NDArray[np.bool_]:
        chosen = np.broadcast_to(True if mask is None else mask, self._shape)
        return chosen[::WARPGROUP]

    def commit(self, mask: Mask | None) -> None:
        """Close the open groups of these warpgroups."""
        self._closed += self._first(mask)

    def wait(self, mask: Mask | None, newest: int) -> None:
        """Products of these warpgroups are done but for their ``newest`` newest groups."""
        chosen = self._first(mask)
        for one in self._open:
            here = one.groups, one.columns
            left = ~chosen[here] | (one.numbers >= self._closed[here] - newest)
            if not left.all():
                one.groups, one.columns = one.groups[left], one.columns[left]
                one.numbers, one.words = one.numbers[left], one.words[left]
        self._open = [one for one in self._open if len(one.groups)]

    def reads(self, words: Ints, columns: Ints) -> bool:
        """Whether one of them reads any of these words of the blocks in ``columns``."""
        low, high = int(words.min()), int(words.max())
        for one in self._open:
            near = (one.words.max(axis=1) >= low) & (one.words.min(axis=1) <= high)
            near &= np.isin(one.columns, columns)
            if near.any() and np.isin(one.words[near], words).any():
                return True
        return False


def products_of(state: Any) -> Products:
    """The chunk's, made when first needed."""
    if state.products is None:
        state.products = Products(state.shape)
    found: Products = state.products
    return found
