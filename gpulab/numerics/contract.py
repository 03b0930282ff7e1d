"""What a kernel promises about its arithmetic, and the error bound that follows for a product.

For C = A B with K terms, S = |A| |B| over the stored inputs, and u = 2^-24, the declared
accumulation may move an element by at most D = c S + t before the one rounding to the output:

- float32 on CUDA cores, any order, fused or not: c = 4 sqrt(K) u, t = K 2^-149. Roundings to
  nearest are independent enough for sqrt(K); the factor 4 is five times what honest orders need.
- a 16-bit accumulator: c = (1 + u16)^(K+1) - 1, the worst case. No smaller bound holds: once terms
  fall below half an ulp of the sum, every rounding errs the same way.
- tensor core with blocks of N products, F fraction bits and p result bits (``tensorcore.model``):
  c = (0.4 K/N + 1) B 2^-(p+1), B = 2 + (N + 1) 2^(p+1-F). B is the most one block can lose; blocks
  truncate, so that on positive data all errors have one sign and the bound grows with K/N.
- promotion to float32 every P terms: K becomes P in the line above, plus 4 sqrt(K/P) u. The
  fp8 mma.sync that runs through fp16 restarts from zero in each instruction: P is its K.
- float32 by three products of tf32 (``split``): 2^-21 for what a product leaves out, the promoted
  line above for the sum of hi hi, its first term with K -> 2 K and times 2^-10 for the sum of
  lo hi + hi lo, and u for the addition of both.
- int8: exact; sums wrap at 32 bits.

Sources: N. Higham and T. Mary, SIAM J. Sci. Comput. 41(5), 2019 (probabilistic bounds);
P. Blanchard et al., SIAM J. Sci. Comput. 42(3), 2020 (block FMA).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpulab.arch import DEFAULT_EMULATED
from gpulab.arch import Capability as Capability
from gpulab.formats import Format, decode, encode, get
from gpulab.numerics import split, tensorcore
from gpulab.numerics.tensorcore import DotModel

RANDOM_WALK = 4.0
"""Allowed multiple of sqrt(K) u S for roundings to nearest."""
BLOCK_SHARE = 0.4
"""Share of the provable loss per block that chained truncating blocks are allowed."""


class VariantLike(Protocol):
    """What a row of the ladder declares (``gpulab.registry.Variant``)."""

    @property
    def format(self) -> str:
        """Storage format of the inputs."""

    @property
    def accumulator(self) -> str:
        """Format of the running sum."""

    @property
    def output(self) -> str:
        """Storage format of the result."""

    @property
    def contract(self) -> str:
        """Name of the rounding contract; empty where the operation has only one."""

    @property
    def promotion(self) -> int | None:
        """Terms after which a tensor-core sum is added to a float32 sum; None: never."""

    @property
    def lesson(self) -> bool:
        """Wrong on purpose."""

    @property
    def caught_on(self) -> tuple[str, ...]:
        """Input families that show a lesson's mistake."""

    def instruction(self, capability: Capability) -> str | None:
        """Tensor-core instruction, None for CUDA cores."""


@dataclass(frozen=True)
class Allowance:
    """The bound D = relative * S + absolute, and its arithmetic in words."""

    relative: float
    absolute: float
    text: str


@dataclass(frozen=True)
class Contract:
    """The arithmetic a kernel declares.

    Args:
        format: storage format of both inputs.
        accumulator: ``fp32``, ``fp16``, ``bf16`` or ``int32``.
        output: storage format of the result, rounded to once.
        instruction: tensor-core instruction, or None for CUDA cores.
        capability: where it runs; decides the instruction's arithmetic.
        atomics: two runs may differ in the order of sums.
        promotion: terms after which a tensor-core sum is added to a float32 sum, or None.
        split: every float32 product is three of tf32 (``numerics.split``).
    """

    format: str
    accumulator: str
    output: str
    instruction: str | None = None
    capability: Capability = DEFAULT_EMULATED
    atomics: bool = False
    promotion: int | None = None
    split: bool = False

    @classmethod
    def of(cls, variant: VariantLike, capability: Capability, atomics: bool = False) -> Contract:
        """The contract a variant is judged by: its own, or for a lesson that of the operation."""
        own = cls.declared(variant, capability, atomics)
        return own.of_operation() if variant.lesson else own

    @classmethod
    def declared(
        cls, variant: VariantLike, capability: Capability, atomics: bool = False
    ) -> Contract:
        """The arithmetic that a variant itself declares, a lesson's mistake included."""
        return cls(
            variant.format,
            variant.accumulator,
            variant.output,
            variant.instruction(capability),
            capability,
            atomics,
            variant.promotion,
            variant.contract == split.TF32_SPLIT,
        )

    def of_operation(self) -> Contract:
        """The same row with the float32 accumulation that the operation asks for."""
        if self.exact or self.accumulator == "fp32":
            return self
        return replace(self, accumulator="fp32", instruction=_with_f32(self.instruction))

    @property
    def exact(self) -> bool:
        """Integer arithmetic: one right answer."""
        return self.accumulator == "int32"

    @property
    def input_row(self) -> Format:
        """Row of the input format."""
        return get(self.format)

    @cached_property
    def output_row(self) -> Format | None:
        """Row of the output format; None for int32, which holds every sum modulo 2^32."""
        return None if self.output == "int32" else get(self.output)

    def store(self, values: NDArray[np.float64]) -> NDArray[Any]:
        """Results as the output format stores them, rounded once."""
        if self.output_row is None:
            wrapped: NDArray[Any] = values.astype(np.int64).astype(np.int32)
            return wrapped
        with np.errstate(over="ignore", invalid="ignore"):
            return encode(self.output_row, values)

    def values(self, stored: NDArray[Any]) -> NDArray[np.float64]:
        """Stored results as float64."""
        if self.output_row is None:
            return stored.astype(np.float64)
        return decode(self.output_row, stored)

    @cached_property
    def model(self) -> DotModel | None:
        """The instruction's arithmetic, None on CUDA cores.

        A capability between two known ones has the arithmetic of the nearest lower one of its
        major version.
        """
        if self.instruction is None:
            return None
        known = [c for c in tensorcore.CAPABILITIES if c[0] == self.capability[0]]
        lower = [c for c in known if c <= self.capability]
        return tensorcore.model(self.instruction, max(lower, default=self.capability))

    @property
    def operand_bits(self) -> int:
        """Significand bits of an operand that products are made of."""
        return split.HELD_BITS if self.split else self.input_row.mantissa_bits + 1

    @property
    def sum_bits(self) -> int:
        """Significand bits in which every integer sum is exact, in any order: 24, 14 or 11."""
        if self.exact:
            return 8 * np.dtype(np.int32).itemsize
        model = self.model
        if model is not None:
            bits = _result_bits(model) + 1
            return min(bits, model.fraction_bits + 1)
        return get(self.accumulator).mantissa_bits + 1

    @property
    def roundoff(self) -> float:
        """Largest relative error of one rounding of the running sum."""
        if self.exact:
            return 0.0
        model = self.model
        if model is not None:
            return 2.0 ** -_result_bits(model)  # truncation: a whole gap
        return get(self.accumulator).unit_roundoff

    @property
    def terms_per_rounding(self) -> int:
        """Products summed before the running sum is rounded again."""
        return 1 if self.model is None else self.model.k

    def allowance(self, k: int) -> Allowance:
        """D for sums of ``k`` terms; see the module text."""
        if self.exact:
            return Allowance(0.0, 0.0, "integer arithmetic: exact")
        if self.model is not None:
            return self._tensor_core(self.model, k)
        row = get(self.accumulator)
        tiny = k * row.min_subnormal
        u = row.unit_roundoff
        if self.accumulator == "fp32":
            relative = RANDOM_WALK * math.sqrt(k) * u
            how = f"{RANDOM_WALK:g} sqrt({k}) {_power(u)} S"
        else:
            relative = math.expm1((k + 1) * math.log1p(u))
            how = f"((1 + {_power(u)})^({k} + 1) - 1) S"
        text = f"D = {how} + {k} {_power(row.min_subnormal)} = {relative:.4g} S + {tiny:.3g}"
        return Allowance(relative, tiny, text)

    def _tensor_core(self, model: DotModel, k: int) -> Allowance:
        result = _result_bits(model)
        n, f = model.block, model.fraction_bits
        promotion = self.promotion
        if model.route == "through_fp16":
            promotion = model.k
        chained = k if promotion is None else min(k, promotion)
        lost = 2.0 + (n + 1) * 2.0 ** (result + 1 - f)
        relative = (BLOCK_SHARE * chained / n + 1.0) * lost * 2.0 ** -(result + 1)
        how = f"({BLOCK_SHARE:g} {chained}/{n} + 1) {lost:g} 2^-{result + 1}"
        u = get("fp32").unit_roundoff
        if promotion is not None and k > promotion:
            relative += RANDOM_WALK * math.sqrt(k / promotion) * u
            how = f"{how} + {RANDOM_WALK:g} sqrt({k}/{promotion}) {_power(u)}"
            how = how if self.split else f"({how})"
        if self.split:
            share = 2 * split.LOW_SHARE
            chain = (BLOCK_SHARE * 2 * k / n + 1.0) * lost * 2.0 ** -(result + 1)
            relative += split.PRODUCT_LOSS + chain * share + u
            how = (
                f"({_power(split.PRODUCT_LOSS)} + {how} + {_power(share)} "
                f"({BLOCK_SHARE:g} {2 * k}/{n} + 1) {lost:g} 2^-{result + 1} + {_power(u)})"
            )
        smallest = get("fp16" if model.d_type == "f16" else "fp32").min_subnormal
        tiny = k * smallest
        text = f"D = {how} S + {k} {_power(smallest)} = {relative:.4g} S + {tiny:.3g}"
        return Allowance(relative, tiny, text)


def _result_bits(model: DotModel) -> int:
    """Fraction bits of the sum after each block."""
    return {"rz_e8m13": 13, "rne_f16": get("fp16").mantissa_bits}.get(
        model.result, get("fp32").mantissa_bits
    )


def _with_f32(instruction: str | None) -> str | None:
    """The instruction with float32 instead of half C and D: the first and last of four types."""
    if instruction is None:
        return None
    parts = instruction.split(".")
    shape = next(i for i, part in enumerate(parts) if re.fullmatch(r"m\d+n\d+k\d+", part))
    types = [i for i in range(shape + 1, len(parts)) if _is_type(parts[i])]
    for at in (types[0], types[-1]) if len(types) == 4 else (types[0],):  # wgmma names D, A, B
        if parts[at] == "f16":
            parts[at] = "f32"
    return ".".join(parts)


def _is_type(part: str) -> bool:
    """Whether a piece of an instruction's name is an operand type (``f16``, ``bf16``, ``e4m3``)."""
    return re.fullmatch(r"(bf|tf|f|s|u|e\dm)\d+", part) is not None


def _power(value: float) -> str:
    """``2^-24`` for a power of two."""
    return f"2^{int(math.log2(value))}"
