"""c = a b."""

from __future__ import annotations

from gpulab.numerics.contract import Capability, Contract, VariantLike
from gpulab.ops.formulas import Line

SMALL = {"m": 128, "n": 128, "k": 128}
GROWING = ("m", "n", "k")
TIMED = {"m": 2048, "n": 2048, "k": 2048}


def lines(variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """Matmul: products of stored numbers are exact, their sum is what errs."""
    own = Contract(
        variant.format,
        variant.accumulator,
        variant.output,
        variant.instruction(capability),
        capability,
        promotion=getattr(variant, "promotion", None),
    )
    return (
        Line("s", "dot(a, b)", own.accumulator, "exact" if own.exact else "sum", how(own)),
        Line("c", f"cast(s, '{variant.output}')", variant.output, "cast"),
    )


def how(contract: Contract) -> str:
    """How a product's sum is taken, in words."""
    model = contract.model
    if contract.exact:
        return "integers: exact"
    if model is None:
        return "one fused multiply-add a term"
    text = (
        f"{model.block} products at a time, aligned to the largest with {model.fraction_bits} "
        "fraction bits, cut"
    )
    if contract.promotion is not None:
        text += f"; added to a float32 sum every {contract.promotion} terms"
    return text
