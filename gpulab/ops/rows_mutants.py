"""The standard mutants of row kernels, and the certificate that the gate fails them.

A mutant is what a kernel with one mistake stores for some rows of the very inputs that are judged.
Those here apply to every row operation; an operation adds its own. A mutant that no part of the
gate fails makes the verdict INCONCLUSIVE, unless it stores the correctly rounded right answer
everywhere (then it is not wrong on these inputs) or it is wrong in its rounding only and the inputs
have too few elements for that to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.formats import decode, encode
from gpulab.formats.threads import each
from gpulab.numerics import power
from gpulab.numerics.power import Certificate
from gpulab.numerics.rounding import next_lower, to_significand
from gpulab.ops.rows_arith import PLAIN, Arithmetic, Stepwise
from gpulab.ops.rows_contract import Answer, Floats, RowContract, Values

if TYPE_CHECKING:
    from gpulab.ops.rows_formula import RowFormula

Compute = Callable[[Any, RowContract, Values], dict[str, Floats]]
"""(operation, contract, inputs of some rows) -> outputs as stored; those left out are right."""
Refused = Callable[[RowContract, tuple[int, int]], str | None]
"""(contract, (rows, cols)) -> why the mistake changes nothing by construction, or None."""

SCALE_ERROR = 0.999
FEW = 1 << 12
"""Elements below which a mistake of rounding may stay invisible by chance."""


def _always(contract: RowContract, shape: tuple[int, int]) -> str | None:
    return None


@dataclass(frozen=True)
class RowMutant:
    """One mistake.

    Args:
        name: as in records.
        about: the mistake in one phrase.
        compute: what it stores.
        precision: wrong only in how it rounds, overflows or cancels.
        refused: see ``Refused``.
    """

    name: str
    about: str
    compute: Compute
    precision: bool = False
    refused: Refused = _always


def computed(arithmetic: Arithmetic) -> Compute:
    """The formula in another arithmetic."""

    def compute(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
        return op.stored_values(arithmetic, contract, values)

    return compute


def _right(op: RowFormula, contract: RowContract, values: Values) -> tuple[str, Floats]:
    """The main output, correctly rounded."""
    main = op.answers(contract, values)[0]
    return main.name, main.ideal()


def _zeros(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    return {a.name: np.zeros_like(a.r1) for a in op.answers(contract, values)}


def _constant(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    name, right = _right(op, contract, values)
    with np.errstate(invalid="ignore"):
        mean = np.mean(right, axis=-1, keepdims=True)
    fmt = op.output_format(name, contract)
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: decode(fmt, encode(fmt, np.broadcast_to(mean, right.shape)))}


def _dropped(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    with np.errstate(all="ignore"):
        found = op.compute(Arithmetic(), contract, values, over=slice(0, -1))
        return op.finished(contract, values, found)


def _rolled(axis: int) -> Compute:
    def compute(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
        name, right = _right(op, contract, values)
        return {name: np.roll(right, 1, axis=axis)}

    return compute


def _flipped(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    """The sign of one element of middle size."""
    name, right = _right(op, contract, values)
    flat = right.ravel().copy()
    sizes = np.abs(np.nan_to_num(flat))
    order = np.argsort(sizes, kind="stable")
    zeros = sizes.size - int(np.count_nonzero(sizes))
    at = order[min(sizes.size - 1, zeros + (sizes.size - zeros) // 2)]
    flat[at] = -flat[at]
    return {name: flat.reshape(right.shape)}


def _scaled(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    name, right = _right(op, contract, values)
    fmt = op.output_format(name, contract)
    with np.errstate(invalid="ignore"):
        return {name: decode(fmt, encode(fmt, SCALE_ERROR * right))}


def _truncated(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    main = op.answers(contract, values)[0]
    fmt = op.output_format(main.name, contract)
    with np.errstate(invalid="ignore", over="ignore"):
        return {main.name: decode(fmt, encode(fmt, main.r1, rounding="toward_zero"))}


def _lower_inputs(op: RowFormula, contract: RowContract, values: Values) -> dict[str, Floats]:
    bits = next_lower(contract.input_row).mantissa_bits + 1
    cut = dict(values)
    for one in op.inputs(contract):
        if one.kind == "rows":
            finite = np.isfinite(values[one.name])
            held = np.where(finite, values[one.name], 0.0)
            cut[one.name] = np.where(finite, to_significand(held, bits), values[one.name])
    return op.stored_values(PLAIN, contract, cut)


def _one_column(contract: RowContract, shape: tuple[int, int]) -> str | None:
    return "one column" if shape[1] == 1 else None


def _one_row(contract: RowContract, shape: tuple[int, int]) -> str | None:
    return "one row" if shape[0] == 1 else None


def _fp32_output(contract: RowContract, shape: tuple[int, int]) -> str | None:
    if contract.output_row.bits == 32:
        return "costs one ulp of float32, the declared arithmetic may lose more"
    return None


def _narrow_result(op_wide: bool) -> Refused:
    def refused(contract: RowContract, shape: tuple[int, int]) -> str | None:
        if not op_wide:
            return "the result has one element a row"
        return _one_column(contract, shape)

    return refused


def standard(op: RowFormula, contract: RowContract) -> tuple[RowMutant, ...]:
    """The general mutants and the operation's own."""
    wide = op.wide(op.outputs(contract)[0])
    general = (
        RowMutant("zeros", "writes zeros", _zeros),
        RowMutant("constant_mean", "writes the mean", _constant, False, _narrow_result(wide)),
        RowMutant("dropped_term", "the last column is missing", _dropped, False, _one_column),
        RowMutant("neighbour_row", "a row's neighbour", _rolled(0), False, _one_row),
        RowMutant("neighbour_column", "shifted", _rolled(-1), False, _narrow_result(wide)),
        RowMutant("sign_flip", "one element has the wrong sign", _flipped),
        RowMutant("scaled_0.999", "every element times 0.999", _scaled, True),
        RowMutant("fp16_sum", "sums in half", computed(Stepwise("fp16")), True, _one_column),
        RowMutant("bf16_sum", "sums in bf16", computed(Stepwise("bf16")), True, _one_column),
        RowMutant("truncated_output", "rounds toward zero", _truncated, True, _fp32_output),
        RowMutant("lower_inputs", "inputs in the next lower format", _lower_inputs, True),
    )
    return (*general, *op.mutants(contract))


@dataclass(frozen=True)
class Evidence:
    """Some rows of one run and how results on them are judged.

    Args:
        name: family or probe.
        values: inputs.
        answers: what must come out.
        failed_by: names of the parts of the gate that fail outputs.
    """

    name: str
    values: Values
    answers: tuple[Answer, ...]
    failed_by: Callable[[dict[str, Floats]], list[str]]

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        rows, cols = self.values["x"].shape
        return int(rows), int(cols)


def certify(
    op: RowFormula, contract: RowContract, evidence: Sequence[Evidence], thorough: bool
) -> tuple[Certificate, ...]:
    """Try every mutant, and an unwritten last row on the structure checks.

    Args:
        op: operation.
        contract: what is judged.
        evidence: families and probes of the verdict.
        thorough: on every input; else only until one input has failed the mutant.
    """
    elements = sum(one.answers[0].r1.size for one in evidence)

    def certificate(mutant: RowMutant) -> Certificate:
        attempt = _attempt(op, contract, mutant, elements)
        return power.certificate(mutant.name, evidence, attempt, thorough)

    mutants = standard(op, contract)
    found = each(certificate, mutants, elements * len(mutants))
    main = evidence[0].answers[0]
    right = encode(op.output_format(main.name, contract), main.ideal())
    return (*found, power.unwritten(right, 0))


def _attempt(
    op: RowFormula, contract: RowContract, mutant: RowMutant, elements: int
) -> power.Attempt[Evidence]:
    def attempt(one: Evidence) -> tuple[Sequence[str], str | None]:
        refusal = mutant.refused(contract, one.shape)
        if refusal is not None:
            return (), refusal
        right = {a.name: a.ideal() for a in one.answers}
        with np.errstate(all="ignore"):
            wrong = right | mutant.compute(op, contract, one.values)
        parts = one.failed_by(wrong)
        if all(np.array_equal(wrong[n], right[n], equal_nan=True) for n in right):
            return parts, "stores the correctly rounded right answer everywhere"
        few = mutant.precision and elements < FEW
        return parts, f"{elements} elements are too few for it to show" if few else None

    return attempt
