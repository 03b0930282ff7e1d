"""Inputs, answers and simulations of the row operations, each computed once.

Rows do not depend on each other, so a large array repeats a prime number of distinct rows: every
element of the result is checked, against answers computed for the distinct rows only, and a kernel
that reads a wrong row meets another one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode
from gpulab.numerics.cache import Cache
from gpulab.numerics.errors import ErrorSummary, elementwise
from gpulab.numerics.inputs import rounding_share
from gpulab.numerics.repeat import repeated
from gpulab.numerics.simulate import Spread
from gpulab.ops.rows_arith import PLAIN
from gpulab.ops.rows_contract import Answer, Floats, RowContract, Sums, Values
from gpulab.ops.rows_families import RowFamily, get_family
from gpulab.ops.rows_formula import RowFormula, store
from gpulab.ops.rows_probes import RowProbe

T = TypeVar("T")

DISTINCT_ELEMENTS = 1 << 19
"""Elements up to which all rows are distinct; beyond, about so many are."""
FEWEST_ROWS = 13
"""A prime that hardly a count of multiprocessors has (7 divides 28, 56, 70 and 84, 11 divides 132):
a block that goes on to a row one grid further meets another one, so that a stale row shows."""
_SIMULATED_ROWS = 64
_SIMULATED_ELEMENTS = 1 << 19
_BLOCK_ROWS = 16
_BLOCK_ELEMENTS = 1 << 17
_ENOUGH_EVENTS = 16
"""Rows that err from which the largest simulated error is taken as typical."""
_EVENT = 1e-3
"""Share of a rounding of the output from which a row errs at all."""


def distinct_rows(rows: int, cols: int) -> int:
    """All rows, or a prime number of them."""
    if rows * cols <= DISTINCT_ELEMENTS:
        return rows
    wanted = max(FEWEST_ROWS, DISTINCT_ELEMENTS // cols)
    if wanted >= rows:
        return rows
    while any(wanted % p == 0 for p in range(2, int(wanted**0.5) + 1)):
        wanted -= 1
    return wanted


@dataclass(frozen=True)
class RowInputs:
    """The distinct rows of one family or probe.

    Args:
        stored: inputs as stored, by parameter name.
        values: the same as float64.
        answers: what every output must be.
        r0: every output over the original inputs, in exact arithmetic.
        share: of the elements of x (and the residual) that storage changes.
        storage: errors of R1 against R0, of the first output.
    """

    stored: dict[str, NDArray[Any]]
    values: dict[str, Floats]
    answers: tuple[Answer, ...]
    r0: dict[str, Floats]
    share: float
    storage: ErrorSummary


@dataclass(frozen=True)
class RowData:
    """The values of one case, through a cache.

    Args:
        op: operation.
        contract: of the kernel.
        dims: rows and cols.
        seed: of everything drawn.
        cache: shared by the cases of a run.
    """

    op: RowFormula
    contract: RowContract
    dims: dict[str, int]
    seed: int
    cache: Cache

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols) of the whole array."""
        return self.dims["rows"], self.dims["cols"]

    @property
    def distinct(self) -> int:
        """Distinct rows."""
        return distinct_rows(*self.shape)

    @property
    def coverage_text(self) -> str:
        """How the result is covered."""
        rows = self.shape[0]
        if self.distinct == rows:
            return "every element is checked"
        return f"every element is checked; the {rows} rows repeat {self.distinct} distinct ones"

    def cached(self, what: str, *key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on the contract, the dims, the seed and ``key``."""
        return self.cache.get((what, self.contract, self.shape, self.seed, *key), make)

    def spread_out(self, stored: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The whole arrays of some distinct rows."""
        rows = self.shape[0]
        kinds = {i.name: i.kind for i in self.op.inputs(self.contract)}
        return {
            name: array if kinds[name] == "parameter" else repeated(array, rows)
            for name, array in stored.items()
        }

    def original(self, family: RowFamily, rows: int | None = None) -> dict[str, NDArray[Any]]:
        """Float32 inputs of the distinct rows."""
        dims = {"rows": rows or self.distinct, "cols": self.shape[1]}
        drawn = self.op.make_inputs(dims, family, self.contract.format, self.seed)
        return {i.name: drawn[i.name] for i in self.op.inputs(self.contract)}

    def store(self, original: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """As the contract stores them."""
        formats = {i.name: i.format for i in self.op.inputs(self.contract)}
        return {name: store(formats[name], values) for name, values in original.items()}

    def values(self, stored: dict[str, NDArray[Any]]) -> dict[str, Floats]:
        """Stored inputs as float64."""
        formats = {i.name: i.format for i in self.op.inputs(self.contract)}
        return {
            name: array.astype(np.float64)
            if formats[name] == "int32"
            else decode(formats[name], array)
            for name, array in stored.items()
        }

    def family(self, family: RowFamily) -> RowInputs:
        """Inputs and answers of a family."""

        def make() -> RowInputs:
            original = self.original(family)
            return self._inputs(original, self.store(original), family.sums(self.contract.format))

        return self.cached("family", family, make=make)

    def probe(self, probe: RowProbe) -> RowInputs:
        """Inputs and answers of a probe."""

        def make() -> RowInputs:
            drawn = self.original(get_family("normal"))
            values = {name: array.astype(np.float64) for name, array in drawn.items()}
            rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, 5])))
            probe.change(values, rng, self.contract)
            return self._inputs(values, self.store(values), probe.sums)

        return self.cached("probe", probe.name, make=make)

    def _inputs(
        self, original: dict[str, NDArray[Any]], stored: dict[str, NDArray[Any]], sums: Sums
    ) -> RowInputs:
        values = self.values(stored)
        answers = self.op.answers(self.contract, values, sums)
        exactly = {name: np.asarray(array, np.float64) for name, array in original.items()}
        with np.errstate(all="ignore"):
            r0 = self.op.ideal(self.contract, exactly, original=True)
        kinds = {i.name: i.kind for i in self.op.inputs(self.contract)}
        share = min(
            rounding_share(self.contract.format, np.asarray(array, np.float32))
            for name, array in original.items()
            if kinds[name] == "rows"
        )
        main = answers[0]
        return RowInputs(stored, values, answers, r0, share, elementwise(main.r1, r0[main.name]))

    def block(self, inputs: RowInputs) -> dict[str, Floats]:
        """A few rows, the first and the last among them, on which mutants are computed."""
        rows, cols = inputs.values["x"].shape
        count = min(rows, max(2, min(_BLOCK_ROWS, _BLOCK_ELEMENTS // cols)))
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, 6])))
        picked = rng.permutation(rows)[:count]
        picked[0], picked[-1] = 0, rows - 1
        chosen = np.unique(picked)
        kinds = {i.name: i.kind for i in self.op.inputs(self.contract)}
        return {
            name: array if kinds[name] == "parameter" else array[chosen]
            for name, array in inputs.values.items()
        }

    def spreads(self, family: RowFamily) -> dict[str, Spread | None]:
        """Moments of the simulated contract's error by output, a row being one event.

        The errors of a row's elements have causes in common (its sum, its scale), so that a row
        and not an element is what repeats independently. Where the columns have an order, sums from
        the last to the first are simulated too, and the larger error counts. None where nothing may
        err. Nothing of families that do not round, or whose roundings may all err the same way: a
        row in which they do is rare in a sample and larger than all others.
        """
        if not family.rounds or family.sums(self.contract.format) == "alike":
            return {}

        def make() -> dict[str, Spread | None]:
            cols = self.shape[1]
            wanted = max(4, min(_SIMULATED_ROWS, _SIMULATED_ELEMENTS // cols))
            stored = self.store(self.original(family, wanted))
            values = self.values(stored)
            found = self._simulated(values)
            if family.ordered:
                kinds = {i.name: i.kind for i in self.op.inputs(self.contract)}
                turned = {n: v[:, ::-1] if kinds[n] == "rows" else v for n, v in values.items()}
                other = self._simulated(turned)
                found = {name: _larger(one, other[name]) for name, one in found.items()}
            return found

        return self.cached("spread", family, make=make)

    def _simulated(self, values: Values) -> dict[str, Spread | None]:
        answers = self.op.answers(self.contract, values)
        simulated = self.op.stored_values(PLAIN, self.contract, values)
        return {a.name: _spread(a, simulated[a.name]) for a in answers}


def row_squares(answer: Answer, got: Floats) -> Floats:
    """Mean square of the scaled errors of each row; NaN where an element is not a number."""
    with np.errstate(invalid="ignore", over="ignore"):
        z = (got - answer.r1) / answer.scale
        z[(got == answer.r1) | ~np.isfinite(answer.r1)] = 0.0  # judged by kind and sign instead
        z[np.isinf(z) & (got == answer.ideal())] = 0.0  # overflow that is right
        squares: Floats = np.square(z).reshape(len(z), -1).mean(axis=1)
    return squares


def _larger(one: Spread | None, other: Spread | None) -> Spread | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda spread: spread.mean_square)


def _spread(answer: Answer, simulated: Floats) -> Spread | None:
    if not (answer.d > 0).any():
        return None
    q = row_squares(answer, simulated)
    largest, u = float(np.sqrt(q.max())), answer.row.unit_roundoff
    if np.count_nonzero(q > (_EVENT * u) ** 2) < min(_ENOUGH_EVENTS, len(q)):
        largest = max(largest, u)
    return Spread(float(q.mean()), float(np.square(q).mean()), largest, len(q))
