"""Mistakes of a matrix product: indices mixed up, terms left out, arithmetic too narrow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import EXPLAINED, Evidence, Suspect, narrow_results
from gpulab.formats import Format, decode, get
from gpulab.numerics.rounding import next_lower, to_significand
from gpulab.numerics.simulate import sequential

Floats = NDArray[np.float64]


def operands(e: Evidence) -> tuple[Floats, Floats]:
    """A (m, k) and B (k, n) as float64."""
    fmt = e.setting.variant.format
    return decode(fmt, e.inputs["a"]), decode(fmt, e.inputs["b"])


def _suspects(e: Evidence) -> Iterator[Suspect]:
    """Mistakes in indexing."""
    a, b = operands(e)
    (m, k), n = a.shape, b.shape[1]
    flat_a, flat_b = a.ravel(), b.ravel()
    i, j, t = np.arange(m)[:, None], np.arange(n)[None, :], np.arange(k)

    def wrapped(flat: Floats, index: NDArray[np.int64]) -> Floats:
        """Elements by flat index, wrapped where that lies outside."""
        return flat[index % flat.size]

    yield Suspect(
        "a-times-bt", "this is A times the transpose of B: B is read along its rows",
        "read b[t * n + column]: t is the row of B",
        lambda: a @ flat_b.reshape(n, k).T,
    )  # fmt: skip
    yield Suspect(
        "at-times-b", "A is read along its columns",
        "read a[row * k + t]: t is the column of A",
        lambda: flat_a.reshape(k, m).T @ b,
    )  # fmt: skip
    yield Suspect(
        "swapped-dims", "rows of A are taken n apart instead of k",
        "the row length of A is k: a[row * k + t]",
        lambda: wrapped(flat_a, i * n + t) @ b,
    )  # fmt: skip
    yield Suspect(
        "swapped-dims", "rows of B are taken k apart instead of n",
        "the row length of B is n: b[t * n + column]",
        lambda: a @ wrapped(flat_b, t[:, None] * k + j),
    )  # fmt: skip
    yield Suspect(
        "swapped-dims", "rows of C are stored m apart instead of n",
        "the row length of C is n: c[row * n + column]",
        lambda: _restrided(e.right, m, n, m),
    )  # fmt: skip


def _restrided(right: Floats, m: int, n: int, stride: int) -> Floats:
    """What is found at [i, j] after storing row r at r * stride."""
    memory = np.full(max(m * n, (m - 1) * stride + n), np.nan)
    for row in range(m):
        memory[row * stride : row * stride + n] = right[row]
    return memory[: m * n].reshape(m, n)


def misread(e: Evidence) -> Diagnosis | None:
    """An index or a row length in the place of another."""
    return next((d for d in (s.explains(e) for s in _suspects(e)) if d is not None), None)


def partial_sum(e: Evidence) -> Diagnosis | None:
    """Only the first (or last) t terms are summed."""
    a, b = operands(e)
    k = a.shape[1]
    rows, cols = np.nonzero(e.bad)
    if k < 2:
        return None
    pick = np.linspace(0, len(rows) - 1, min(64, len(rows))).astype(int)
    i, j = rows[pick], cols[pick]
    terms = a[i] * b[:, j].T  # (picked, k)
    got = e.got[i, j][:, None]
    room = e.room(e.got)[i, j][:, None]
    for sums, name in (
        (np.cumsum(terms, axis=1), "first"),
        (np.cumsum(terms[:, ::-1], axis=1), "last"),
    ):
        with np.errstate(invalid="ignore"):
            share = (np.abs(sums - got) <= room).mean(axis=0)
        best = int(share[:-1].argmax())
        if share[best] >= EXPLAINED and share[best] > share[-1]:
            kept = best + 1
            return Diagnosis(
                "dropped-terms",
                f"only the {name} {kept} of {k} terms are summed; {k - kept} are missing",
                "check where the loop over k ends: its last, incomplete step counts too",
            )
    return None


def rounded_inputs(e: Evidence) -> Diagnosis | None:
    """The operands are taken in the next lower format."""
    row = get(e.setting.variant.format)
    if row.is_integer or row.mantissa_bits < 3:
        return None
    lower = next_lower(row)
    bits = lower.mantissa_bits + 1
    a, b = operands(e)
    for truncate in (False, True):
        candidate = to_significand(a, bits, truncate) @ to_significand(b, bits, truncate)
        if e.near(candidate) >= EXPLAINED:
            return Diagnosis(
                "rounded-inputs",
                f"the inputs are rounded to {bits} significand bits ({lower.name}) before they "
                "are multiplied",
                f"multiply the {row.name} values as they are",
            )
    return None


def flushed(e: Evidence) -> Diagnosis | None:
    """Subnormal operands count as zero."""
    row = get(e.setting.variant.format)
    a, b = (np.where(np.abs(x) < row.min_normal, 0.0, x) for x in operands(e))
    if e.near(a @ b) < EXPLAINED:
        return None
    return Diagnosis(
        "flushed-subnormals",
        f"elements below {row.min_normal:.4g}, the smallest normal {row.name}, count as zero",
        "an exponent field of 0 is subnormal: mantissa times the smallest step, no leading 1",
    )


def narrow(e: Evidence) -> Diagnosis | None:
    """A narrow accumulator."""

    def simulate(e: Evidence, row: Format) -> Floats:
        return sequential(*operands(e), row)

    return narrow_results(e, simulate)
