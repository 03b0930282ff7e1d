"""Float64 references of a product: R1 (stored inputs), R0 (original inputs) and S = |A| |B|.

All three are computed in blocks of rows and columns; only the results are kept, 16 bytes an
element (R1 in float64, S and the small difference R0 - R1 in float32, whose rounding is far below
any bound that uses them). Integer inputs are exact: their products and sums stay below 2^53.

Beyond ``FULL_PRODUCTS`` multiplications the result is not computed whole but on patches: seeded
rows over all columns and seeded columns over all rows, in full K. One row lies in each of equally
wide strips (and the first and last are always in), so a wrong tile is seen wherever it lies; a
single wrong element outside of the patches is not. ``coverage`` and ``text`` say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode
from gpulab.numerics import panels

Stored = NDArray[Any]
Floats = NDArray[np.float64]

FULL_PRODUCTS = 1 << 34
"""Products m n k up to which every element is checked: 2580^3."""
_FEWEST_LINES = 64
"""Rows (and columns) sampled at least."""


@dataclass(frozen=True)
class Patch:
    """A checked part of the result: the outer product of ``rows`` and ``cols``.

    Args:
        rows: row indices (ascending).
        cols: column indices (ascending).
        r1: float64 over the stored inputs.
        s: |A| |B| over the stored inputs.
        r0_shift: R0 - R1, or None where the original inputs equal the stored ones.
    """

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    r1: Floats
    s: NDArray[np.float32]
    r0_shift: NDArray[np.float32] | None

    def of(self, full: Stored) -> Stored:
        """The same part of a full (m, n) array; a view where the patch is everything."""
        if full.shape == self.r1.shape:
            return full
        return full[np.ix_(self.rows, self.cols)]

    def rows_of(self, full: Stored, part: slice) -> Stored:
        """Some rows of ``of(full)``."""
        return full[np.ix_(self.rows[part], self.cols)]

    def index(self, i: int, j: int) -> tuple[int, int]:
        """Place in the full array of element (i, j) of the patch."""
        return int(self.rows[i]), int(self.cols[j])

    @property
    def r0(self) -> Floats:
        """Float64 over the original inputs."""
        return self.r1 if self.r0_shift is None else self.r1 + self.r0_shift


@dataclass(frozen=True)
class Reference:
    """References on all patches of an (m, n) result.

    Args:
        shape: (m, n).
        patches: one that is everything, or rows and columns.
        coverage: share of the elements that lie in a patch.
        text: the same in words.
    """

    shape: tuple[int, int]
    patches: tuple[Patch, ...]
    coverage: float
    text: str


def lines(count: int, wanted: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Ascending indices: the first, the last, and a seeded one in each of ``wanted`` strips."""
    if wanted >= count:
        return np.arange(count, dtype=np.int64)
    edges = np.linspace(0, count, wanted + 1).astype(np.int64)
    inside = rng.integers(edges[:-1], edges[1:])
    return np.unique(np.concatenate([inside, [0, count - 1]]))


def _chosen(
    m: int, n: int, k: int, seed: int, full_products: int | None
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows and columns of each patch: everything, or sampled rows and sampled columns."""
    limit = FULL_PRODUCTS if full_products is None else full_products
    whole_rows, whole_cols = np.arange(m, dtype=np.int64), np.arange(n, dtype=np.int64)
    if m * n * k <= limit:
        return [(whole_rows, whole_cols)]
    rng = np.random.Generator(np.random.PCG64(seed))
    rows = lines(m, max(_FEWEST_LINES, limit // (2 * n * k)), rng)
    cols = lines(n, max(_FEWEST_LINES, limit // (2 * m * k)), rng)
    return [(rows, whole_cols), (whole_rows, cols)]


def originals(
    a0: NDArray[np.float32],
    b0: NDArray[np.float32],
    *,
    seed: int = 0,
    full_products: int | None = None,
) -> tuple[Floats, ...]:
    """R0 on every patch of ``reference``: the same for all formats that store these values.

    Args:
        a0: original values (m, k).
        b0: original values (k, n).
        seed: of the sampled rows and columns.
        full_products: see ``reference``.
    """
    found = []
    (m, k), n = a0.shape, b0.shape[1]
    for rows, cols in _chosen(m, n, k, seed, full_products):
        r0 = np.empty((len(rows), len(cols)))
        for left in panels.split(k, len(cols)):
            right = panels.gather(panels.wide, b0, cols[left], 1)
            for top in panels.split(k, len(rows)):
                r0[top, left] = panels.product(panels.gather(panels.wide, a0, rows[top], 0), right)
        found.append(r0)
    return tuple(found)


def reference(
    fmt: str,
    a: Stored,
    b: Stored,
    r0: Sequence[Floats] | None = None,
    *,
    seed: int = 0,
    magnitudes: bool = True,
    full_products: int | None = None,
) -> Reference:
    """R1, S and, with the originals' product, R0 of ``a @ b``.

    Args:
        fmt: storage format of ``a`` (m, k) and ``b`` (k, n).
        a: stored codes, row-major.
        b: stored codes, row-major.
        r0: ``originals`` of the values before storage, or None where R0 is not needed.
        seed: of the sampled rows and columns.
        magnitudes: False leaves S zero, for exact probes that have no bound.
        full_products: limit above which rows and columns are sampled; None: FULL_PRODUCTS.
    """
    (m, k), n = a.shape, b.shape[1]
    chosen = _chosen(m, n, k, seed, full_products)
    shifted = r0 if r0 is not None and fmt != "fp32" else [None] * len(chosen)
    patches = tuple(
        _patch(fmt, a, b, original, rows, cols, magnitudes)
        for original, (rows, cols) in zip(shifted, chosen, strict=True)
    )
    if len(patches) == 1:
        return Reference((m, n), patches, 1.0, f"all {m} x {n} elements")
    rows, cols = patches[0].rows, patches[1].cols
    seen = len(rows) * n + m * len(cols) - len(rows) * len(cols)
    coverage = seen / (m * n)
    text = (
        f"{len(rows)} of {m} rows and {len(cols)} of {n} columns, seeded, over the full K: "
        f"{coverage:.2%} of the elements"
    )
    return Reference((m, n), patches, coverage, text)


def _patch(
    fmt: str,
    a: Stored,
    b: Stored,
    r0: Floats | None,
    rows: NDArray[np.int64],
    cols: NDArray[np.int64],
    magnitudes: bool,
) -> Patch:
    shape = (len(rows), len(cols))
    r1, s = np.empty(shape), np.zeros(shape if magnitudes else (1, 1), np.float32)
    shift = None if r0 is None else np.empty(shape, np.float32)
    values = partial(decode, fmt)
    for left in panels.split(a.shape[1], len(cols)):
        right = panels.gather(values, b, cols[left], 1)
        positive = bool(right.min() >= 0)
        right_abs = right if positive or not magnitudes else panels.absolute(right)
        for top in panels.split(a.shape[1], len(rows)):
            part = (top, left)
            stored = panels.gather(values, a, rows[top], 0)
            with np.errstate(invalid="ignore"):  # infinities and NaN are inputs of one probe
                r1[part] = panels.product(stored, right)
                if r0 is not None and shift is not None:
                    shift[part] = r0[part] - r1[part]
                if magnitudes and positive and stored.min() >= 0:
                    s[part] = np.abs(r1[part])  # the very same product
                elif magnitudes:
                    s[part] = panels.product(panels.absolute(stored), right_abs)
    return Patch(rows, cols, r1, np.broadcast_to(s, shape), shift)


@dataclass(frozen=True)
class Block:
    """A seeded block of rows and columns in full K, on which contracts and mutants are simulated.

    Args:
        shape: (m, n) of the whole result.
        rows: row indices; the first and the last row are among them.
        cols: column indices, likewise.
        a_codes: stored (r, k).
        b_codes: stored (k, c).
        a: the values of ``a_codes``.
        b: the values of ``b_codes``.
        element: gives exact values of C at (row, column) pairs anywhere in the result.
    """

    shape: tuple[int, int]
    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    a_codes: Stored
    b_codes: Stored
    a: Floats
    b: Floats
    element: Callable[[NDArray[np.int64], NDArray[np.int64]], Floats]

    @property
    def k(self) -> int:
        """Terms of one sum."""
        return int(self.a.shape[1])

    @cached_property
    def r1(self) -> Floats:
        """Float64 over the stored inputs; read-only."""
        with np.errstate(invalid="ignore"):
            product: Floats = self.a @ self.b
        product.flags.writeable = False
        return product

    @cached_property
    def s(self) -> Floats:
        """|A| |B|; read-only."""
        product: Floats = np.abs(self.a) @ np.abs(self.b)
        product.flags.writeable = False
        return product


_BLOCK_SIDE = 32
_BLOCK_VALUES = 1 << 21
"""Float64 values of one operand of a block: 16 MiB."""


def block(fmt: str, a: Stored, b: Stored, *, seed: int, side: int = _BLOCK_SIDE) -> Block:
    """A block of about ``side`` x ``side`` elements; thinner where K is very large.

    A result with fewer rows than ``side`` gives more columns, and the reverse.
    """
    (m, k), n = a.shape, b.shape[1]
    most = max(2, _BLOCK_VALUES // k)
    r = min(m, side, most)
    c = min(n, max(side, side * side // r), most)
    r = min(m, max(r, side * side // c), most)
    rng = np.random.Generator(np.random.PCG64(seed))
    rows = lines(m, m if r == m else max(1, r - 2), rng)
    cols = lines(n, n if c == n else max(1, c - 2), rng)
    a_codes, b_codes = np.take(a, rows, axis=0), np.take(b, cols, axis=1)

    def element(i: NDArray[np.int64], j: NDArray[np.int64]) -> Floats:
        out = np.empty(i.shape)
        chunk = max(1, _BLOCK_VALUES // k)
        for start in range(0, i.size, chunk):
            part = slice(start, start + chunk)
            left = decode(fmt, a[i.ravel()[part]])
            right = decode(fmt, np.ascontiguousarray(b[:, j.ravel()[part]].T))
            out.ravel()[part] = np.einsum("ek,ek->e", left, right)
        return out

    return Block(
        (m, n), rows, cols, a_codes, b_codes, decode(fmt, a_codes), decode(fmt, b_codes), element
    )
