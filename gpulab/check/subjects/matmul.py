"""A matrix product as the checker knows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpulab.check import ptx
from gpulab.check.hypotheses import constant, misplaced, scaled, zeros
from gpulab.check.subject import Arrays, Beyond, Expected, Inputs, Seen, Setting, Subject
from gpulab.check.subjects import matmul_witness as witness
from gpulab.check.subjects.matmul_mistakes import (
    flushed,
    misread,
    narrow,
    partial_sum,
    rounded_inputs,
)
from gpulab.errors import UsageError
from gpulab.formats import decode, encode, get
from gpulab.numerics import gates
from gpulab.numerics.contract import Capability, Contract
from gpulab.ops.base import Runner
from gpulab.ops.matmul import MATMUL
from gpulab.registry import Variant

LEAST_BITS = 4
"""A running sum that seems narrower than this is none: something else is wrong."""


_ROOM = 3
"""Powers of two between the scale of large inputs and the largest number."""


def ends_of_the_range(inputs: Arrays, fmt: str) -> Arrays:
    """Stored A and B, times a power of two and over it; N(0, 1) stays finite."""
    size = 2.0 ** (math.floor(math.log2(get(fmt).max_finite)) - _ROOM)
    a, b = (decode(fmt, inputs[name]) for name in ("a", "b"))
    return {"a": encode(fmt, a * size), "b": encode(fmt, b / size)}


def negative_nan(inputs: Arrays, fmt: str) -> Arrays:
    """Stored A and B with one such NaN each."""
    made = {name: np.array(array) for name, array in inputs.items()}
    for name, at in (("a", (0, -1)), ("b", (-1, 0))):
        array = made[name]
        code = encode(fmt, np.full(array.shape, np.nan))[at]
        bits = array.view(f"u{array.itemsize}")
        bits[at] = code.view(bits.dtype) | bits.dtype.type(1 << (8 * array.itemsize - 1))
    return made


def special_at_the_ends(inputs: Arrays, fmt: str) -> Arrays:
    """Stored A and B with an infinity (NaN where there is none) in the last term of a row of A
    and the first of the next, and in the first of a column of B, where all other rows of A are
    zero, and the last of the next."""
    a, b = (decode(fmt, inputs[name]) for name in ("a", "b"))
    row, column = len(a) // 2, b.shape[1] // 2
    a[np.arange(len(a)) != row, 0] = 0.0
    special = np.inf if get(fmt).has_inf else np.nan
    a[row, -1] = b[0, column] = special
    a[row + 1 : row + 2, 0] = b[-1, column + 1 : column + 2] = special
    return {"a": encode(fmt, a), "b": encode(fmt, b)}


class Matmul(Subject):
    """C (m, n) = A (m, k) B (k, n)."""

    guard = (
        "row < m && column < n for C, the terms of k likewise: threads beyond the matrix must not "
        "touch it"
    )
    store = "c[row * n + column] = sum"
    mistakes = (
        zeros, constant, misread, misplaced, partial_sum, scaled, rounded_inputs, flushed, narrow,
    )  # fmt: skip
    subtle = (narrow,)
    along = ("m",)

    def row(
        self,
        variant: Variant,
        instructions: Sequence[str],
        capability: Capability,
        dims: Mapping[str, int],
    ) -> Variant:
        """See ``Subject``: of the instructions used, the one that may be off most."""
        used = ptx.loosest(instructions, variant.format, variant.output, capability, dims["k"])
        return replace(variant, instructions=((capability, used),)) if used else variant

    @staticmethod
    def contract(setting: Setting) -> Contract:
        """The arithmetic that is declared."""
        return Contract.of(setting.variant, setting.capability, setting.atomics)

    def inputs(self, setting: Setting, where: str) -> Arrays | None:
        """See ``Subject``."""
        try:
            return MATMUL.stored_inputs(setting.variant, setting.dims, where, setting.seed)
        except UsageError:  # a probe: its integers tell no mistakes apart
            return None

    def expected(self, setting: Setting, inputs: Inputs) -> tuple[Expected, ...]:
        """See ``Subject``."""
        contract = self.contract(setting)
        a, b = (decode(contract.format, inputs[name]) for name in ("a", "b"))
        with np.errstate(invalid="ignore", over="ignore"):
            right, s = a @ b, np.abs(a) @ np.abs(b)
        allowed = contract.allowance(a.shape[1])
        d = allowed.relative * s + allowed.absolute
        row = contract.output_row

        def ok(got: NDArray[np.float64]) -> NDArray[np.bool_]:
            return gates.interval(got, right, d, row).ok

        ideal = contract.values(contract.store(right))
        return (Expected("c", contract.output, right, d, ideal, ok),)

    def beyond(self, setting: Setting) -> Sequence[Beyond]:
        """See ``Subject``: the ends of the format's range, and NaN with its sign set."""
        small, usual = (self.inputs(setting, name) for name in ("subnormal", "normal"))
        assert small is not None
        assert usual is not None
        return (
            Beyond(
                "A near the largest number, B near the smallest",
                ends_of_the_range(usual, setting.variant.format),
                "the inputs go through a format of a smaller range",
                "convert each element to float and to nothing else",
                "rounded-inputs",
            ),
            Beyond(
                "A below the smallest normal number",
                small,
                "subnormal numbers are read as zero or wrongly",
                "a number whose exponent field is 0 is its mantissa alone: convert with the CUDA "
                "headers' functions, or treat it apart",
                "flushed-subnormals",
            ),
            Beyond(
                "NaN with its sign set",
                negative_nan(usual, setting.variant.format),
                "a NaN whose sign bit is set is read as a number",
                "take the sign away before the code is compared with that of NaN",
                "nonfinite",
            ),
            Beyond(
                "infinity in the last term, or the first, and opposite zeros",
                special_at_the_ends(usual, setting.variant.format),
                "an infinity meets terms that it does not belong to, or none: 0 times infinity is "
                "NaN",
                "beyond the last term load zeros of both A and B, and skip no zero",
                "nonfinite",
            ),
        )

    def moving(self, setting: Setting) -> Mapping[str, int]:
        """See ``Subject``: the rows of A, and with them those of C."""
        return {"a": 0, "c": 0}

    def witness(self, setting: Setting, at: Callable[[Mapping[str, int]], Runner]) -> Seen | None:
        """See ``Subject``: the width of the running sum."""
        contract = self.contract(setting)
        seen = witness.look(contract, at(witness.dims(contract)))
        facts = {"bits": seen.bits, "at_least": seen.open}
        return Seen(seen.text, witness.against(contract, seen), seen.bits < LEAST_BITS, facts)


SUBJECT = Matmul()
