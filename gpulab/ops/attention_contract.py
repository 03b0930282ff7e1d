"""What an attention kernel promises about its arithmetic, and the error bound that follows.

For one query with scores x_j, probabilities p_j over n visible keys and u = 2^-24:

- scores: the product of Q and K over head_dim terms may be off by D(S), S = |q| |k_j|, as a matmul
  of that accumulator and instruction (``numerics.contract``); scaling, bias and the constant
  log2(e) add u (4 |x_j| + 2 |bias|); a 16-bit Q that is scaled before the product may lose half its
  smallest subnormal an element;
- probabilities: an error e of a score is a relative error e of p_j, and the exponential and the
  sum add u (3 (|x_j - max| + 6) + 8 + 4 sqrt(n)): exponentials may be relative to a base up to 2^8
  below the maximum, 6 > 8 log 2;
- P as stored for the product with V: half an ulp of the declared format, at most its sum and at
  most 4 times its random walk, and half the smallest subnormal;
- the product with V: a matmul over n terms, S = P |V|; the division adds 4 u;
- where a query sees one key, its P is 1 whatever its score, up to the rounding of the score that is
  subtracted from itself: E = 4 u |x| and the exponential's, and since every format holds 1 and
  nothing is added, neither D_P nor D(P |V|).

Together, for an output element o_d, with E_j the relative error of p_j:
D = sum_j p_j E_j (|v_jd| + |o_d|) + D_P + D(P |V|) + 4 u |o_d|.

For the log-sum-exp: D = sum_j p_j D(x_j) + u (3 * 6 + 12 + 4 sqrt(n) + 4 |max| + 2 |lse|).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpulab.formats import Format, get
from gpulab.numerics.contract import RANDOM_WALK, Capability, Contract, VariantLike

U = get("fp32").unit_roundoff
SLACK = 6.0
"""How far exponents may lie above the running maximum: 8 log 2, rounded up."""
FP8_BLOCK = 64
"""Rows of Q, K and V that share a scale; the sums of a block of keys are promoted together."""
CONTRACTS = ("", "block-scaled", "tensor-scaled")


@dataclass(frozen=True)
class AttentionContract:
    """The arithmetic that an attention kernel declares.

    Args:
        format: storage format of Q, K and V.
        output: storage format of the result; the log-sum-exp is float32.
        scores: of the product of Q and K.
        sums: of the product of P and V.
        name: how fp8 inputs are scaled: ``block-scaled`` or ``tensor-scaled``; else empty.
        atomics: two runs may differ in the order of sums.
    """

    format: str
    output: str
    scores: Contract
    sums: Contract
    name: str = ""
    atomics: bool = False

    @classmethod
    def of(
        cls, variant: VariantLike, capability: Capability, atomics: bool = False
    ) -> AttentionContract:
        """The contract a variant is judged by: its own, a lesson by float32 sums."""
        fmt, instruction = variant.format, variant.instruction(capability)
        scores = Contract(fmt, "fp32", "fp32", instruction, capability)
        promotion = FP8_BLOCK if scaled(fmt) else None
        sums = Contract(fmt, "fp32", "fp32", instruction, capability, promotion=promotion)
        return cls(fmt, variant.output, scores, sums, variant.contract, atomics)

    @cached_property
    def output_row(self) -> Format:
        """Row of the output format."""
        return get(self.output)

    @cached_property
    def probability_row(self) -> Format | None:
        """Format that P is rounded to before the product with V; None: it stays float32."""
        return None if self.sums.instruction is None else get(self.format)

    @property
    def scaled(self) -> bool:
        """Inputs carry scales."""
        return scaled(self.format)

    @property
    def splits_scale(self) -> bool:
        """Q is multiplied by a power of two in its own format before the product."""
        return self.scores.instruction is not None and not self.scaled

    def explain(self, head_dim: int, keys: int) -> str:
        """The arithmetic of D in one line."""
        scores, sums = self.scores.allowance(head_dim), self.sums.allowance(keys)
        row = self.probability_row
        rounded = "P in float32" if row is None else f"P rounded to {row.name}"
        return (
            f"scores: {scores.text}; probabilities: 2^-24 (3 (|x - max| + {SLACK:g}) + 8 + "
            f"{RANDOM_WALK:g} sqrt({keys})) relative; {rounded}; sums: {sums.text}"
        )


def scaled(fmt: str) -> bool:
    """Whether inputs of the format come with scales."""
    return get(fmt).bits <= 8
