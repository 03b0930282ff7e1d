"""c = a b."""

from __future__ import annotations

from gpulab.numerics.contract import Capability, Contract, VariantLike
from gpulab.ops.formulas import Line

SMALL = {"m": 128, "n": 128, "k": 128}
GROWING = ("m", "n", "k")
TIMED = {"m": 2048, "n": 2048, "k": 2048}


def lines(variant: VariantLike, capability: Capability) -> tuple[Line, ...]:
    """Matmul: products of stored numbers are exact, their sum is what errs."""
    own = Contract.declared(variant, capability)
    if own.split:
        return (
            *(
                line
                for name in ("a", "b")
                for line in (
                    Line(f"{name}_hi", f"cast({name}, 'tf32')", "tf32", "cast"),
                    Line(
                        f"{name}_lo", f"{name} - {name}_hi", "fp32", "exact", "its leading 11 bits"
                    ),
                )
            ),
            Line("s", "dot(a_hi, b_hi)", own.accumulator, "sum", how(own)),
            Line("t", "dot(a_lo, b_hi) + dot(a_hi, b_lo)", own.accumulator, "sum", taken(own)),
            Line("c", f"cast(s + t, '{variant.output}')", variant.output, "cast"),
        )
    return (
        Line("s", "dot(a, b)", own.accumulator, "exact" if own.exact else "sum", how(own)),
        Line("c", f"cast(s, '{variant.output}')", variant.output, "cast"),
    )


def how(contract: Contract) -> str:
    """How a product's sum is taken, in words."""
    if contract.exact:
        return "integers: exact"
    if contract.model is None:
        return "one fused multiply-add a term"
    text = taken(contract)
    if contract.promotion is not None:
        text += f"; added to a float32 sum every {contract.promotion} terms"
    return text


def taken(contract: Contract) -> str:
    """What a tensor core does to a sum, in words."""
    model = contract.model
    if model is None:
        return ""
    return (
        f"{model.block} products at a time, aligned to the largest with {model.fraction_bits} "
        "fraction bits, cut"
    )
