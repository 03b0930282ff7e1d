"""The numbers of a row kernel on one input family: errors, both gates, first wrong elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode
from gpulab.numerics import gates
from gpulab.numerics.errors import elementwise, usual_allclose
from gpulab.numerics.gates import ContractTolerance, RmsSum
from gpulab.numerics.simulate import Spread
from gpulab.numerics.structure import first_index, same_bits
from gpulab.numerics.verdict import FamilyResult
from gpulab.ops.found import Found, placed
from gpulab.ops.rows_contract import Answer, Floats
from gpulab.ops.rows_data import RowData, RowInputs, row_squares
from gpulab.ops.rows_families import RowFamily


@dataclass(frozen=True)
class Band:
    """One repetition of the distinct rows.

    Args:
        first: its first row in the whole result.
        right: the answer for its rows.
        r0: R0 likewise.
        got: the values.
        times: bands with these very bits, which stand for each other.
    """

    first: int
    right: Answer
    r0: Floats
    got: Floats
    times: int

    def place(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Index in the whole result."""
        return (self.first + at[0], *at[1:])


def bands(
    answer: Answer, r0: Floats, stored: NDArray[Any], rows: int | None = None
) -> Iterator[Band]:
    """The whole result against the distinct rows, one repetition at a time, equal ones once.

    Args:
        answer: for the distinct rows.
        r0: R0 likewise.
        stored: the whole result; or the distinct rows of one whose others repeat them.
        rows: of the whole result; None: ``stored`` is it.
    """
    distinct = len(answer.r1)
    if rows is not None and len(stored) == distinct < rows:
        yield Band(0, answer, r0, decode(answer.row, stored), rows // distinct)
        return
    starts = range(0, len(stored), distinct)
    parts = [stored[first : first + distinct] for first in starts]
    known = [same_bits(part, parts[0][: len(part)]) for part in parts]
    known[0] = False
    times = 1 + sum(same and len(part) == distinct for same, part in zip(known, parts, strict=True))
    for first, part, same in zip(starts, parts, known, strict=True):
        if len(part) < distinct:
            top, right0 = _top(answer, len(part)), r0[: len(part)]
            yield Band(first, top, right0, decode(answer.row, part), 1)
        elif not same:
            values = decode(answer.row, part)
            yield Band(first, answer, r0, values, times if first == 0 else 1)


def _top(answer: Answer, rows: int) -> Answer:
    """The answer for the first rows."""

    def finish(values: Floats, at: Any) -> Floats:
        if at is not ...:
            return answer.finish(values, at)
        whole = np.zeros(answer.r1.shape)
        whole[:rows] = values
        return answer.finish(whole, ...)[:rows]

    return Answer(
        answer.name,
        answer.r1[:rows],
        answer.centre[:rows],
        answer.d[:rows],
        answer.scale[:rows],
        finish,
        answer.row,
    )


def ceiling(
    data: RowData, family: RowFamily, answer: Answer, r0: Floats
) -> tuple[ContractTolerance, float, bool]:
    """The published tolerance of an output, max |R0|, and whether every right kernel meets it."""

    def make() -> tuple[ContractTolerance, float, bool]:
        contract = data.contract
        tolerance = gates.contract_tolerance(
            data.op.table, contract.format, answer.row.name, data.shape[1]
        )
        finite = r0[np.isfinite(r0)]
        largest = float(np.abs(finite).max(initial=0.0))
        ends = (answer.ideal(), *answer.ends())
        met = [gates.contract_gate(end, r0, largest, tolerance).ok.all() for end in ends]
        return tolerance, largest, all(met)

    return data.cached("ceiling", family, answer.name, make=make)


def measure(
    data: RowData,
    inputs: RowInputs,
    family: RowFamily,
    outputs: Mapping[str, NDArray[Any]] | None,
    asked: bool,
) -> FamilyResult:
    """Judge the outputs on one family.

    Args:
        data: of the case.
        inputs: of the family.
        family: which.
        outputs: as stored; None where there is nothing to judge.
        asked: the published ceiling is asked of this family even where storing the inputs alone
            breaks it.
    """
    spreads = data.spreads(family)
    main = inputs.answers[0]
    tolerance, largest, _ = ceiling(data, family, main, inputs.r0[main.name])
    sums = Found() if outputs is not None else Found.nothing()
    sums.storage = inputs.storage
    for answer in inputs.answers if outputs is not None else ():
        assert outputs is not None
        stored = outputs[answer.name]
        found = list(bands(answer, inputs.r0[answer.name], stored, data.shape[0]))
        _judge(sums, data, inputs, answer, found, family, asked, answer is main)
        _rms(sums, answer, found, spreads.get(answer.name), family)
    return sums.result(family.name, data.seed, tolerance, largest)


def _judge(
    sums: Found,
    data: RowData,
    inputs: RowInputs,
    answer: Answer,
    found: Sequence[Band],
    family: RowFamily,
    asked: bool,
    shown: bool,
) -> None:
    r0 = inputs.r0[answer.name]
    tolerance, largest, meetable = ceiling(data, family, answer, r0)
    for band in found:
        right, exact, got = band.right, band.r0, band.got
        if shown:
            sums.error0 = sums.error0.merge(placed(elementwise(got, exact), band.place))
            sums.error1 = sums.error1.merge(placed(elementwise(got, right.r1), band.place))
        usual_allclose(sums.close, got, right.r1)
        if meetable or asked:
            gate = gates.contract_gate(got, exact, largest, tolerance)
            sums.contract = max(sums.contract, gate.fraction)
            at = first_index(~gate.ok)
            if at is not None:
                bound = tolerance.rtol * (largest + abs(exact[at]))
                text = f"got {got[at]:.9g}, R0 = {exact[at]:.9g}, bound {bound:.4g}"
                code = "contract" if meetable else "contract-unmeetable"
                _fail(sums, code, text, band.place(at), answer, family)
        ok = right.right(got)
        share = float(right.share(got).max(initial=0.0))
        sums.interval = max(sums.interval, share if not ok.all() else min(share, 1.0))
        at = first_index(~ok)
        if at is not None:
            low, high = right.ends()
            text = (
                f"got {got[at]:.9g}, R1 = {right.r1[at]:.9g}, "
                f"allowed {low[at]:.9g} .. {high[at]:.9g}"
            )
            _fail(sums, "interval", text, band.place(at), answer, family)


def _fail(
    sums: Found,
    code: str,
    text: str,
    index: tuple[int, ...],
    answer: Answer,
    family: RowFamily,
) -> None:
    sums.fail(code, f"{family.name}: {answer.name}{[*index]}: {text}", index, family.name)


def _rms(
    sums: Found, answer: Answer, found: Sequence[Band], spread: Spread | None, family: RowFamily
) -> None:
    """The rms part of one output; the one that uses most of its limit is shown."""
    if spread is None:
        return
    total = RmsSum()
    for band in found:
        q = row_squares(band.right, band.got)
        total.square += band.times * float(q.sum())
        total.count += band.times * len(q)
    rms, limit = total.rms, gates.rms_limit(spread, min(total.count, len(answer.r1)))
    if not rms <= limit:
        text = f"{family.name}: rms of {answer.name} is {rms:.3g}, limit {limit:.3g}"
        sums.fail("rms", text, None, family.name)
    worse = sums.rms is None or sums.limit is None or not rms * sums.limit <= sums.rms * limit
    if worse:
        sums.rms, sums.limit = rms, limit
