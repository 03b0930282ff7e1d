"""The numbers of one attention kernel on one input family: errors, both gates, first wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode, get
from gpulab.numerics import gates
from gpulab.numerics.errors import ErrorSummary, elementwise, usual_allclose
from gpulab.numerics.gates import ContractTolerance, RmsSum
from gpulab.numerics.rounding import through
from gpulab.numerics.structure import first_index
from gpulab.numerics.verdict import FamilyResult, Reason
from gpulab.ops.attention_data import Data, Inputs, Piece
from gpulab.ops.attention_families import AttentionFamily
from gpulab.ops.attention_formula import Floats
from gpulab.ops.attention_simulate import row_squares

Outputs = Mapping[str, NDArray[Any]]

LSE = get("fp32")


@dataclass
class _Sums:
    error0: ErrorSummary = field(default_factory=lambda: ErrorSummary(0.0, 0.0, None))
    error1: ErrorSummary = field(default_factory=lambda: ErrorSummary(0.0, 0.0, None))
    storage: ErrorSummary = field(default_factory=lambda: ErrorSummary(0.0, 0.0, None))
    contract: float = 0.0
    interval: float = 0.0
    rms: RmsSum = field(default_factory=RmsSum)
    close: dict[str, bool] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)

    def fail(self, code: str, text: str, index: tuple[int, ...] | None, where: str) -> None:
        """Keep the first reason of each code."""
        self.reasons.setdefault(code, Reason(code, text, index, where))


def of_piece(data: Data, piece: Piece, outputs: Outputs) -> tuple[Floats, Floats]:
    """The kernel's out (r, d) and log-sum-exp (r,) for a piece, as values."""
    entry, head = divmod(piece.head.head, data.dims["heads"])
    out = outputs["out"][entry, head][piece.head.queries]
    lse = outputs["lse"][entry, head][piece.head.queries]
    return decode(data.contract.output, out), lse.astype(np.float64)


def place(data: Data, piece: Piece, at: tuple[int, ...]) -> tuple[int, ...]:
    """Index in the whole array of an element of a piece."""
    entry, head = divmod(piece.head.head, data.dims["heads"])
    return (entry, head, int(piece.head.queries[at[0]]), *at[1:])


def largest_r0(data: Data, family: AttentionFamily) -> float:
    """Max |R0| of the checked elements."""

    def make() -> float:
        found = 0.0
        for piece in data.pieces(data.family(family)):
            finite = piece.r0[np.isfinite(piece.r0)]
            found = max(found, float(np.abs(finite).max(initial=0.0)))
        return found

    key = (family, data.contract.format, data.contract.name)
    return data.cached("largest", *key, make=make)


def tolerance_of(data: Data) -> ContractTolerance:
    """The published tolerance."""
    c = data.contract
    return gates.contract_tolerance("attention", c.format, c.output, data.dims["seq_k"])


def measure(
    data: Data, inputs: Inputs, family: AttentionFamily, outputs: Outputs | None, asked: bool
) -> FamilyResult:
    """Judge the outputs on one family.

    Args:
        data: of the case.
        inputs: of the family.
        family: which.
        outputs: as stored; None where there is nothing to judge.
        asked: the published ceiling is asked even where storing the inputs alone breaks it.
    """
    sums, tolerance, largest = _Sums(), tolerance_of(data), largest_r0(data, family)
    if outputs is None:
        sums.contract = sums.interval = np.inf
        sums.error0 = sums.error1 = ErrorSummary(np.inf, np.inf, None)
    else:
        for piece in data.pieces(inputs):
            _judge(sums, data, piece, of_piece(data, piece, outputs), family.name)
            _contract(sums, data, piece, of_piece(data, piece, outputs)[0], tolerance, largest,
                      family.name, asked)  # fmt: skip
    rms = limit = None
    spread = data.spread(family)
    if spread is not None and sums.rms.count:
        rms, limit = sums.rms.rms, gates.rms_limit(spread, sums.rms.count)
        if not rms <= limit:
            text = f"{family.name}: rms((got - R1) / (P |V|)) = {rms:.3g}, limit {limit:.3g}"
            sums.fail("rms", text, sums.error1.index, family.name)
    atol = tolerance.rtol * largest
    return FamilyResult(
        family=family.name,
        seed=data.seed,
        max_abs_err=sums.error0.max_abs,
        max_rel_err=sums.error0.max_rel,
        max_abs_err_stored=sums.error1.max_abs,
        storage_err=sums.storage.max_abs,
        rtol=tolerance.rtol,
        atol=atol,
        contract_fraction=sums.contract,
        contract_text=f"{tolerance.text}; atol = rtol * max|R0| = {atol:.4g}",
        interval_fraction=sums.interval,
        rms=rms,
        rms_limit=limit,
        reasons=tuple(sums.reasons.values()),
        allclose=sums.close,
    )


def _judge(sums: _Sums, data: Data, piece: Piece, got: tuple[Floats, Floats], where: str) -> None:
    right, (out, lse) = piece.answer, got
    sums.error0 = sums.error0.merge(_placed(elementwise(out, piece.r0), data, piece))
    sums.error1 = sums.error1.merge(_placed(elementwise(out, right.out), data, piece))
    sums.storage = sums.storage.merge(_placed(elementwise(right.out, piece.r0), data, piece))
    usual_allclose(sums.close, out, right.out)
    squares = row_squares(out, right)
    sums.rms.square += float(squares.sum())
    sums.rms.count += squares.size
    for name, mine, exact, d, row in (
        ("out", out, right.out, right.d_out, data.contract.output_row),
        ("lse", lse, right.lse, right.d_lse, LSE),
    ):
        inside = gates.interval(mine, exact, d, row)
        sums.interval = max(sums.interval, inside.fraction)
        at = first_index(~inside.ok)
        if at is None:
            continue
        low, high = (float(through(row, exact[at] + side * d[at])) for side in (-1, 1))
        index = place(data, piece, at)
        text = (
            f"{where}: {name}{[*index]}: got {mine[at]:.9g}, R1 = {exact[at]:.9g}, "
            f"allowed {low:.9g} .. {high:.9g}"
        )
        sums.interval = max(sums.interval, np.nextafter(1.0, 2.0))
        sums.fail("interval", text, index, where)


def _contract(
    sums: _Sums,
    data: Data,
    piece: Piece,
    out: Floats,
    tolerance: ContractTolerance,
    largest: float,
    where: str,
    asked: bool,
) -> None:
    """The published ceiling, where a kernel that keeps its contract meets it for certain; of the
    first family it is asked everywhere."""
    row, right, r0 = data.contract.output_row, piece.answer, piece.r0
    meets = np.ones(r0.shape, bool)
    for end in (right.out - right.d_out, right.out + right.d_out):
        meets &= gates.contract_gate(through(row, end), r0, largest, tolerance).ok
    gate = gates.contract_gate(out, r0, largest, tolerance)
    if not asked:
        gate = gates.contract_gate(np.where(meets, out, r0), r0, largest, tolerance)
    sums.contract = max(sums.contract, gate.fraction)
    at = first_index(~gate.ok & meets)
    code = "contract" if at is not None else "contract-unmeetable"
    at = at if at is not None else first_index(~gate.ok)
    if at is None:
        return
    bound = tolerance.rtol * (largest + abs(r0[at]))
    index = place(data, piece, at)
    text = f"got {out[at]:.9g}, R0 = {r0[at]:.9g}, bound {bound:.4g}"
    sums.fail(code, f"{where}: out{[*index]}: {text}", index, where)


def _placed(summary: ErrorSummary, data: Data, piece: Piece) -> ErrorSummary:
    """The summary with its index in the whole result."""
    if summary.index is None:
        return summary
    return ErrorSummary(summary.max_abs, summary.max_rel, place(data, piece, summary.index))
