"""The numbers of one attention kernel on one input family: errors, both gates, first wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.formats import decode, get
from gpulab.numerics import gates
from gpulab.numerics.errors import elementwise, usual_allclose
from gpulab.numerics.gates import ContractTolerance
from gpulab.numerics.rounding import through
from gpulab.numerics.structure import first_index
from gpulab.numerics.verdict import FamilyResult
from gpulab.ops.attention_data import Data, Inputs, Piece
from gpulab.ops.attention_families import AttentionFamily
from gpulab.ops.attention_formula import Floats
from gpulab.ops.attention_simulate import row_squares
from gpulab.ops.found import Found, placed

Outputs = Mapping[str, NDArray[Any]]

LSE = get("fp32")


def of_piece(data: Data, piece: Piece, outputs: Outputs) -> tuple[Floats, Floats]:
    """The kernel's out (r, d) and log-sum-exp (r,) for a piece, as values."""
    entry, head = divmod(piece.head, data.dims["heads"])
    out = outputs["out"][entry, head][piece.queries]
    lse = outputs["lse"][entry, head][piece.queries]
    return decode(data.contract.output, out), lse.astype(np.float64)


def place(data: Data, piece: Piece, at: tuple[int, ...]) -> tuple[int, ...]:
    """Index in the whole array of an element of a piece."""
    entry, head = divmod(piece.head, data.dims["heads"])
    return (entry, head, int(piece.queries[at[0]]), *at[1:])


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
    tolerance, largest = tolerance_of(data), largest_r0(data, family)
    if outputs is None:
        return Found.nothing().result(family.name, data.seed, tolerance, largest)
    found = Found()
    for piece in data.pieces(inputs):
        got = of_piece(data, piece, outputs)
        _judge(found, data, piece, got, family.name)
        _contract(found, data, piece, got[0], tolerance, largest, family.name, asked)
    found.check_rms(data.spread(family), "(got - R1) / unit", family.name)
    return found.result(family.name, data.seed, tolerance, largest)


def _judge(sums: Found, data: Data, piece: Piece, got: tuple[Floats, Floats], where: str) -> None:
    right, (out, lse) = piece.answer, got
    at_place = partial(place, data, piece)
    sums.error0 = sums.error0.merge(placed(elementwise(out, piece.r0), at_place))
    sums.error1 = sums.error1.merge(placed(elementwise(out, right.out), at_place))
    sums.storage = sums.storage.merge(placed(elementwise(right.out, piece.r0), at_place))
    usual_allclose(sums.close, out, right.out)
    squares = row_squares(out, right)
    sums.squares.square += float(squares.sum())
    sums.squares.count += squares.size
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
    sums: Found,
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
