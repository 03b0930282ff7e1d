"""What the row operations have in common as the checker knows them.

Mistakes are formulas over the inputs of some rows, in the form of the mutants of the operation
(``gpulab.ops.rows_mutants``), most of which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.check.hypotheses import (
    EXPLAINED,
    Evidence,
    Hypothesis,
    constant,
    misplaced,
    scaled,
    swapped,
    zeros,
)
from gpulab.check.subject import Arrays, Beyond, Expected, Inputs, Setting, Subject
from gpulab.check.subjects import rows_arithmetic, rows_beyond
from gpulab.numerics.cache import Cache
from gpulab.ops.rows import RowOp
from gpulab.ops.rows_arith import EXACT
from gpulab.ops.rows_contract import Answer, RowContract, Values
from gpulab.ops.rows_data import RowData
from gpulab.ops.rows_families import FAMILIES, get_family
from gpulab.ops.rows_formula import RowFormula
from gpulab.ops.rows_mutants import Compute

Floats = NDArray[np.float64]
_TILES = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2)
_WARP = 32
_ROLLS = 89


@dataclass(frozen=True)
class Mistake:
    """A mistake of a row operation.

    Args:
        slug: of the diagnosis.
        text: what it looks like.
        fix: what to do.
        compute: what it stores; outputs it leaves out are right.
        bits: it is wrong in its rounding only, so that the stored numbers are compared for
            equality.
    """

    slug: str
    text: str
    fix: str
    compute: Compute
    bits: bool = False

    @property
    def diagnosis(self) -> Diagnosis:
        """What it is called."""
        return Diagnosis(self.slug, self.text, self.fix)


Partial = Callable[[RowOp, RowContract, Values, Any], Sequence[dict[str, Floats]]]
"""(operation, contract, inputs, index of the columns that sums see) -> what kernels of different
styles then give, not yet rounded."""


def _seen(
    op: RowOp, contract: RowContract, values: Values, over: Any
) -> Sequence[dict[str, Floats]]:
    return (op.compute(EXACT, contract, values, over=over),)


def mutant(name: str) -> Compute:
    """The operation's own mutant of a name, where the contract has it."""

    def compute(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
        one = next((m for m in op.mutants(contract) if m.name == name), None)
        return {} if one is None else one.compute(op, contract, values)

    return compute


class Rows(Subject):
    """A row operation.

    Args:
        op: the operation.
        known: its mistakes, the likeliest first.
        view: how a wrong sum shows in its results (``rows_arithmetic``).
        store: the statement that stores a result.
        special: hypotheses of its own about a result that is not finite where it is wrong.
        partial: outputs before their last roundings where sums see some columns only.
    """

    guard = "row < rows && column < cols: threads beyond the row must not touch it"
    along = ("rows",)

    def __init__(
        self,
        op: RowOp,
        known: Sequence[Mistake],
        view: rows_arithmetic.View,
        store: str,
        partial: Partial | None = None,
        special: Sequence[Hypothesis] = (),
    ) -> None:
        self.partial = partial or _seen
        self.op, self.known, self.view, self.store = op, known, view, store
        self.mistakes = (
            hidden_special, swapped, self._mistaken, zeros, constant, misplaced,
            self._part_of_the_row, scaled, self._bits, self._narrow, self._row_by_row,
        )  # fmt: skip
        self.own, self.special = special, (masked, *special, self._mistaken)
        self.subtle = (self._bits, self._narrow)

    def data(self, setting: Setting) -> RowData:
        """Inputs and answers of a case."""
        contract = self.op.contract(setting.variant, setting.atomics)
        dims = {name: int(value) for name, value in setting.dims.items()}
        return RowData(self.op, contract, dims, setting.seed, Cache())

    def inputs(self, setting: Setting, where: str) -> Arrays | None:
        """See ``Subject``."""
        data = self.data(setting)
        if where in FAMILIES:
            return data.spread_out(data.family(get_family(where)).stored)
        probes = self.op.probes(data.contract, data.dims, "full")
        probe = next((p for p in probes if p.name == where), None)
        return None if probe is None else data.spread_out(data.probe(probe).stored)

    def unrepeated(self, setting: Setting, where: str) -> Arrays | None:
        """See ``Subject``: each repetition of the distinct rows is rolled along the columns."""
        data, inputs = self.data(setting), self.inputs(setting, where)
        rows, cols = data.shape
        if inputs is None or data.distinct == rows:
            return None
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([setting.seed, _ROLLS])))
        for first in range(data.distinct, rows, data.distinct):
            by = int(rng.integers(1, max(2, cols)))
            for name in (i.name for i in self.op.inputs(data.contract) if i.kind == "rows"):
                part = inputs[name][first : first + data.distinct]
                part[...] = np.roll(part, by, axis=1)
        return inputs

    def beyond(self, setting: Setting) -> Sequence[Beyond]:
        """See ``Subject``."""

        def again(op: RowOp) -> Rows:
            return Rows(op, self.known, self.view, self.store, self.partial, self.own)

        return tuple(rows_beyond.cases(self, setting, again))

    def expected(self, setting: Setting, inputs: Inputs) -> tuple[Expected, ...]:
        """See ``Subject``."""
        data = self.data(setting)
        values = data.values(dict(inputs))
        return tuple(_expected(one) for one in self.op.answers(data.contract, values))

    def moving(self, setting: Setting) -> Mapping[str, int]:
        """See ``Subject``: all rows."""
        contract = self.op.contract(setting.variant, setting.atomics)
        rows = [i.name for i in self.op.inputs(contract) if i.kind != "parameter"]
        return dict.fromkeys([*rows, *self.op.outputs(contract)], 0)

    # -- hypotheses -------------------------------------------------------------------------------

    def _values(self, e: Evidence) -> tuple[RowContract, Values]:
        data = self.data(e.setting)
        return data.contract, data.values(dict(e.inputs))

    def _mistaken(self, e: Evidence) -> Diagnosis | None:
        """The mistake of the operation that explains what is wrong, and best what is right."""
        contract, values = self._values(e)
        best: tuple[float, Mistake] | None = None
        for one in self.known:
            found = {} if one.bits else one.compute(self.op, contract, values)
            main = found.get(e.expected.name)
            if main is None or e.near(main) < EXPLAINED:
                continue
            share = e.agreement(found)
            if best is None or share > best[0]:
                best = share, one
        return None if best is None else best[1].diagnosis

    def _bits(self, e: Evidence) -> Diagnosis | None:
        """A mistake of rounding: the numbers are the very ones it stores."""
        contract, values = self._values(e)
        right = e.expected.ideal.reshape(e.got.shape)
        differs = e.got != right
        if not differs.any():
            return None
        for one in self.known:
            found = (
                one.compute(self.op, contract, values).get(e.expected.name) if one.bits else None
            )
            if found is not None:
                same = (e.got == found.reshape(e.got.shape)) & differs
                if same.sum() >= EXPLAINED * differs.sum():
                    return one.diagnosis
        return None

    def _part_of_the_row(self, e: Evidence) -> Diagnosis | None:
        """The sums see only some of the columns."""
        contract, values = self._values(e)
        cols = values["x"].shape[1]
        for text, over in _parts(cols):
            computed = self.partial(self.op, contract, values, over)
            found = [self.op.finished(contract, values, c).get(e.expected.name) for c in computed]
            if any(one is not None and self._looks_like(values, e, one) for one in found):
                return Diagnosis(
                    "dropped-terms",
                    f"the sums of a row see {text}",
                    "check where the loop over the columns ends, and that the partial sums of all "
                    "threads and all warps meet",
                )
        return None

    def _looks_like(self, values: Values, e: Evidence, candidate: Floats) -> bool:
        same = rows_arithmetic.same_rows(values, e, candidate, self.view)
        return same or e.near(candidate) >= EXPLAINED

    def _narrow(self, e: Evidence) -> Diagnosis | None:
        contract, values = self._values(e)
        return rows_arithmetic.narrow(self.op, contract, values, e, self.view)

    def _row_by_row(self, e: Evidence) -> Diagnosis | None:
        _, values = self._values(e)
        return rows_arithmetic.row_by_row(values, e, self.view)


def _expected(answer: Answer) -> Expected:
    low, high = answer.ends()
    with np.errstate(invalid="ignore"):
        width = np.nan_to_num(0.5 * (high - low), nan=0.0, posinf=0.0, neginf=0.0)
    slack = width + answer.row.min_subnormal
    return Expected(answer.name, answer.row.name, answer.r1, slack, answer.ideal(), answer.right)


def _parts(cols: int) -> Iterator[tuple[str, Any]]:
    """Columns that sums may see by mistake: in words, and as an index."""
    every = np.arange(cols)
    yield f"{cols - 1} of {cols} columns: the last is missing", slice(0, cols - 1)
    yield f"{cols - 1} of {cols} columns: the first is missing", slice(1, None)
    for tile in _TILES:
        if tile < cols:
            whole = cols // tile * tile
            if whole < cols:
                yield f"only the first {whole} of {cols} columns", slice(0, whole)
            yield f"only the first {tile} of {cols} columns", slice(0, tile)
    for block in _TILES[:6]:
        if block > _WARP and cols > _WARP:
            yield (
                f"only the columns of the first warp of {block} threads",
                every[every % block < _WARP],
            )
        if block < cols:
            yield f"only the columns of one thread of {block}", every[::block]


def hidden_special(e: Evidence) -> Diagnosis | None:
    """Numbers where NaN or infinity belongs."""
    if not (e.bad & ~np.isfinite(e.right)).any() or (e.bad & np.isfinite(e.right)).any():
        return None
    return Diagnosis(
        "nonfinite",
        "numbers stand where NaN or infinity belongs",
        "a NaN in a row must reach its results: comparisons and fmaxf lose it",
    )


def masked(e: Evidence) -> Diagnosis | None:
    """NaN in rows that hold a -inf, and in no other."""
    wrong = (e.bad & np.isnan(e.got)).any(axis=1)
    x = e.inputs["x"]
    with np.errstate(invalid="ignore"):
        hidden = np.isneginf(x.astype(np.float64)).any(axis=1) if x.dtype.kind == "f" else None
    if hidden is None or not wrong.any() or not hidden.any() or (wrong & ~hidden).any():
        return None
    where = "only the first row is" if np.flatnonzero(wrong).tolist() == [0] else "rows are"
    return Diagnosis(
        "masked-nan",
        f"{where} NaN although its answer is a number: the row holds -inf (a masked element)",
        "(-inf) - (-inf) is NaN: while the maximum is still -inf there is nothing to rescale",
    )
