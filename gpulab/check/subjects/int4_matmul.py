"""A product with int4 weights as the checker knows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check import ptx
from gpulab.check.hypotheses import constant, misplaced, scaled, zeros
from gpulab.check.subject import Arrays, Beyond, Expected, Inputs, Seen, Setting, Subject
from gpulab.check.subjects import int4_mistakes
from gpulab.check.subjects import matmul_witness as witness
from gpulab.check.subjects.matmul import LEAST_BITS
from gpulab.formats import decode, encode, get
from gpulab.numerics import gates
from gpulab.numerics.cache import Cache
from gpulab.numerics.contract import Capability
from gpulab.numerics.inputs import FAMILIES, get_family
from gpulab.ops import int4_weights as int4
from gpulab.ops.base import Runner, RunResult
from gpulab.ops.int4_contract import ACTIVATIONS, Int4Contract
from gpulab.ops.int4_data import ALL_PROBES, Int4Data
from gpulab.ops.int4_matmul import GROUP_STEP, INT4_MATMUL
from gpulab.registry import Variant


class Int4(Subject):
    """C (m, n) = A (m, k) W (k, n), W in int4 with a scale for each group of rows."""

    guard = (
        "row < m && column < n for C; bytes of w end at row (k + 1) / 2, scales at row "
        "(k + group - 1) / group"
    )
    store = "c[row * n + column] = sum"
    mistakes = (
        zeros, constant, int4_mistakes.known, int4_mistakes.misread, misplaced,
        int4_mistakes.partial_sum, scaled, int4_mistakes.rounded, int4_mistakes.narrow,
    )  # fmt: skip
    subtle = (int4_mistakes.rounded, int4_mistakes.narrow)
    along = ("m",)

    def row(
        self,
        variant: Variant,
        instructions: Sequence[str],
        capability: Capability,
        dims: Mapping[str, int],
    ) -> Variant:
        """See ``Subject``: of the instructions used, the one that may be off most."""
        used = ptx.loosest(instructions, ACTIVATIONS, variant.output, capability, dims["k"])
        return replace(variant, instructions=((capability, used),)) if used else variant

    @staticmethod
    def contract(setting: Setting) -> Int4Contract:
        """The arithmetic that is declared."""
        return Int4Contract.of(setting.variant, setting.capability, setting.atomics)

    def inputs(self, setting: Setting, where: str) -> Arrays | None:
        """See ``Subject``."""
        dims = {name: int(value) for name, value in setting.dims.items()}
        data = Int4Data(INT4_MATMUL, self.contract(setting), dims, setting.seed, Cache())
        if where in FAMILIES:
            return data.stored(get_family(where), dims)[0]
        return data.named_probe(where).probe.inputs if where in ("exact", *ALL_PROBES) else None

    def expected(self, setting: Setting, inputs: Inputs) -> tuple[Expected, ...]:
        """See ``Subject``."""
        contract, a = self.contract(setting), decode(ACTIVATIONS, inputs["a"])
        weights = int4.weights(inputs, a.shape[1], int(setting.dims["group"]))
        with np.errstate(invalid="ignore", over="ignore"):
            right, s = a @ weights, np.abs(a) @ np.abs(weights)
        allowed = contract.allowance(a.shape[1])
        d = allowed.relative * s + allowed.absolute

        def ok(got: NDArray[np.float64]) -> NDArray[np.bool_]:
            return gates.interval(got, right, d, contract.output_row).ok

        ideal = contract.values(contract.store(right))
        return (Expected("c", contract.output, right, d, ideal, ok),)

    def beyond(self, setting: Setting) -> Sequence[Beyond]:
        """See ``Subject``: subnormal activations, and then scales."""
        small, usual = (self.inputs(setting, name) for name in ("subnormal", "normal"))
        assert small is not None
        assert usual is not None
        row = get(ACTIVATIONS)
        scales = decode(ACTIVATIONS, usual["scales"])
        size = 2.0 ** math.floor(math.log2(row.min_normal / np.abs(scales).max()))
        told = (
            "subnormal halves are read as zero or wrongly",
            "__half2float converts them too; a number whose exponent field is 0 is its mantissa",
            "flushed-subnormals",
        )
        low = {**usual, "scales": encode(ACTIVATIONS, scales * size)}
        return (
            Beyond("A below the smallest normal number", small, *told),
            Beyond("scales below the smallest normal number", low, *told),
        )

    def moving(self, setting: Setting) -> Mapping[str, int]:
        """See ``Subject``: the rows of A, and with them those of C."""
        return {"a": 0, "c": 0}

    def witness(self, setting: Setting, at: Callable[[Mapping[str, int]], Runner]) -> Seen | None:
        """See ``Subject``: the width of the running sum, the powers of W being scales."""
        contract = self.contract(setting)
        run = at({**witness.dims(contract), "group": GROUP_STEP})
        seen = witness.look(contract, _Packed(run))
        facts = {"bits": seen.bits, "at_least": seen.open}
        return Seen(seen.text, witness.against(contract, seen), seen.bits < LEAST_BITS, facts)


@dataclass(frozen=True)
class _Packed:
    """Takes the witness's B, whose first and last rows are powers of two, as int4 weights."""

    run: Runner

    def __call__(self, inputs: Mapping[str, NDArray[Any]], *, poison: int) -> RunResult:
        b = decode(ACTIVATIONS, inputs["b"])
        starts = np.arange(0, len(b), GROUP_STEP)
        scales = np.maximum.reduceat(b, starts, axis=0)
        packed = int4.store(np.sign(b), encode(ACTIVATIONS, scales))
        return self.run({"a": inputs["a"], **packed}, poison=poison)


SUBJECT = Int4()
