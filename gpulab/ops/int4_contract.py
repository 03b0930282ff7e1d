"""What a product with int4 weights promises about its arithmetic, and the bound that follows.

C = A W, A (m, k) in fp16, W[t, j] = q[t, j] s[t // group, j], q in -8 .. 7, s in fp16, S = |A| |W|,
u = 2^-24. A weight is exact in float32 (``int4_weights``). Two ways of summing are declared:

- weight by weight, sum of a (q s): a float32 product over k terms, fused or not: 4 sqrt(k) u S
  (``numerics.contract``);
- group by group, sum over groups of s (sum of a q): the products a q have 15 bits and are exact;
  the sum of a group of g terms may be off by 4 sqrt(g) u of its part of S, its scaling by u, the
  sum over k / g groups by 4 sqrt(k / g) u. sqrt(g) + sqrt(k / g) is largest at g = 1 and g = k,
  where it is sqrt(k) + 1: together 4 (sqrt(k) + 1) u S + u S.

So both keep within D = 4 sqrt(k) u S + 5 u S + k 2^-149. On tensor cores with a float32 accumulator
the instruction's bound over all k terms takes the place of 4 sqrt(k) u S: chains that end with a
group lose less.

Neither is the sum over a (q + 8), from which 8 times the sum of A is taken: its partial sums are
several times larger, and so are its errors.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.formats import get
from gpulab.numerics.contract import Allowance, Capability, Contract, VariantLike

ACTIVATIONS = "fp16"
FURTHER = 5.0
"""Units u S for the scaling of groups and for the second sum."""


@dataclass(frozen=True)
class Int4Contract(Contract):
    """The contract of a row with int4 weights; ``format`` is that of A."""

    @classmethod
    def of(
        cls, variant: VariantLike, capability: Capability, atomics: bool = False
    ) -> Int4Contract:
        """What a variant declares."""
        used = variant.instruction(capability)
        return cls(ACTIVATIONS, variant.accumulator, variant.output, used, capability, atomics)

    def allowance(self, k: int) -> Allowance:
        """D for sums of ``k`` terms; see the module text."""
        product, u = super().allowance(k), get("fp32").unit_roundoff
        relative = product.relative + FURTHER * u
        text = f"{product.text}; groups: + {FURTHER:g} 2^-24 S = {relative:.4g} S"
        return Allowance(relative, product.absolute, text)
