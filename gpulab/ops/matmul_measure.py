"""The numbers of one kernel on one input family: errors, both gates, first wrong elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.formats.threads import each
from gpulab.numerics import gates
from gpulab.numerics.contract import Allowance, Contract
from gpulab.numerics.errors import elementwise, usual_allclose
from gpulab.numerics.gates import ContractTolerance
from gpulab.numerics.reference import Patch
from gpulab.numerics.rounding import through
from gpulab.numerics.simulate import Spread, to_output
from gpulab.numerics.structure import first_index
from gpulab.numerics.verdict import FamilyResult
from gpulab.ops.found import Found, placed
from gpulab.ops.matmul_data import FamilyData

Floats = NDArray[np.float64]
Piece = tuple[Patch, slice]

_BAND_ELEMENTS = 1 << 18
"""Elements judged at a time; temporaries stay small."""


@dataclass(frozen=True)
class Band:
    """Some rows of a patch.

    Args:
        rows: indices in the whole result.
        cols: likewise.
        got: values.
        r1: float64 over the stored inputs.
        r0: over the original ones (for integers: R1 as int32 holds it).
        s: |A| |B|.
    """

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    got: Floats
    r1: Floats
    r0: Floats
    s: Floats

    def place(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Index in the whole result."""
        return int(self.rows[at[0]]), int(self.cols[at[1]])


def pieces(data: FamilyData) -> Iterator[Piece]:
    """The checked elements of a result: some rows of a patch at a time."""
    for patch in data.reference.patches:
        step = max(1, _BAND_ELEMENTS // max(1, len(patch.cols)))
        for first in range(0, len(patch.rows), step):
            yield patch, slice(first, first + step)


def band(contract: Contract, patch: Patch, part: slice, values: Floats) -> Band:
    """One piece of a result (m, n) with its references."""
    r1 = patch.r1[part]
    r0 = r1 if patch.r0_shift is None else r1 + patch.r0_shift[part]
    if contract.exact:
        r0 = to_output(contract, r1)
    got = values[part] if values.shape == patch.r1.shape else patch.rows_of(values, part)
    s = patch.s[part].astype(np.float64)
    return Band(patch.rows[part], patch.cols, got, r1, r0, s)


def measure(
    contract: Contract,
    data: FamilyData,
    spread: Spread | None,
    values: Floats | None,
    family: str,
    seed: int,
    k: int,
) -> FamilyResult:
    """Judge a result on one family.

    Args:
        contract: of the kernel.
        data: inputs and references.
        spread: the simulated contract's errors; None for integer arithmetic.
        values: the result (m, n); None where there is none to judge.
        family: name.
        seed: of the inputs.
        k: terms of a sum.
    """
    tolerance = gates.contract_tolerance("matmul", contract.format, contract.output, k)
    allowance = contract.allowance(k)
    if values is None:
        sums = Found.nothing()
    else:

        def judge(piece: Piece) -> Found:
            one = band(contract, *piece, values)
            return _judge(contract, tolerance, allowance, data.largest, one, family)

        sums = Found()
        for found in each(judge, list(pieces(data))):
            sums.merge(found)
    sums.storage = data.storage
    sums.check_rms(spread, "(got - R1) / S", family)
    return sums.result(family, seed, tolerance, data.largest)


def _judge(
    contract: Contract,
    tolerance: ContractTolerance,
    allowance: Allowance,
    largest: float,
    band: Band,
    family: str,
) -> Found:
    sums, place = Found(), band.place
    sums.error0 = sums.error0.merge(placed(elementwise(band.got, band.r0), place))
    right = to_output(contract, band.r1) if contract.exact else band.r1
    sums.error1 = sums.error1.merge(placed(elementwise(band.got, right), place))
    usual_allclose(sums.close, band.got, right)
    ceiling = gates.contract_gate(band.got, band.r0, largest, tolerance)
    sums.contract = max(sums.contract, ceiling.fraction)
    at = first_index(~ceiling.ok)
    if at is not None:
        _contract_reason(sums, contract, tolerance, largest, band, family, ~ceiling.ok)
    d = allowance.relative * band.s + allowance.absolute
    inside = gates.interval(band.got, band.r1, d, contract.output_row)
    sums.interval = max(sums.interval, inside.fraction)
    at = first_index(~inside.ok)
    if at is not None:
        got, r1 = band.got[at], band.r1[at]
        text = f"got {got:.9g}, R1 = {r1:.9g}"
        if contract.output_row is not None:
            low, high = (through(contract.output_row, r1 + side * d[at]) for side in (-1, 1))
            text += f", allowed {float(low):.9g} .. {float(high):.9g}"
        index = place(at)
        sums.fail("interval", f"{family}{[*index]}: {text}", index, family)
    if not contract.exact:
        sums.squares.add(band.got, band.r1, band.s)
    return sums


def _contract_reason(
    sums: Found,
    contract: Contract,
    tolerance: ContractTolerance,
    largest: float,
    band: Band,
    family: str,
    bad: NDArray[np.bool_],
) -> None:
    """The kernel's fault where the correctly rounded product of the stored inputs would pass."""
    ideal = gates.contract_gate(to_output(contract, band.r1), band.r0, largest, tolerance)
    own = first_index(bad & ideal.ok)
    at = own if own is not None else first_index(bad)
    assert at is not None  # the caller saw a bad element
    bound = tolerance.rtol * (largest + abs(band.r0[at]))
    text = f"got {band.got[at]:.9g}, R0 = {band.r0[at]:.9g}, bound {bound:.4g}"
    code = "contract" if own is not None else "contract-unmeetable"
    index = band.place(at)
    sums.fail(code, f"{family}{[*index]}: {text}", index, family)
