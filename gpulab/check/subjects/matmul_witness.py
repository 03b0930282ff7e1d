"""Which accumulator a product kernel really used, read off its own results.

Row p of A times every column of B is 2^p + 1, a sum of two exact products. A running sum of w
significand bits holds it for every p < w and loses the 1 from p = w on, in whatever order the two
are added: the first p at which the 1 is lost is the width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.check.evidence import Diagnosis
from gpulab.formats import encode, get
from gpulab.numerics.contract import Contract
from gpulab.numerics.structure import POISONS
from gpulab.ops.base import Runner

COLUMNS, TERMS = 8, 16


@dataclass(frozen=True)
class Witness:
    """What was seen.

    Args:
        bits: significand bits of the running sum; at least this many where ``open`` is true.
        open: no width was found within what inputs and output can show.
        text: one sentence.
    """

    bits: int
    open: bool
    text: str


def inputs(contract: Contract) -> tuple[dict[str, NDArray[Any]], int]:
    """Stored operands, and the number of rows (one a power)."""
    row = contract.input_row
    top = math.floor(math.log2(row.max_finite))
    output = contract.output_row
    assert output is not None
    most = min(output.mantissa_bits, 2 * top - 1, math.floor(math.log2(output.max_finite)) - 1)
    high = min(top, most // 2 + 1)
    count = min(most, high + top) + 1
    a, b = np.zeros((count, TERMS)), np.zeros((TERMS, COLUMNS))
    a[:, 0], b[0] = 2.0 ** (np.arange(count) - high), 2.0**high
    a[:, -1], b[-1] = 1.0, 1.0
    return {"a": encode(row, a), "b": encode(row, b)}, count


def dims(contract: Contract) -> dict[str, int]:
    """The dims of the witness's product."""
    return {"m": inputs(contract)[1], "n": COLUMNS, "k": TERMS}


def look(contract: Contract, run: Runner) -> Witness:
    """Run the kernel at ``dims(contract)`` and read the width of its running sum."""
    sent, count = inputs(contract)
    got = contract.values(run(sent, poison=POISONS[0]).outputs["c"])
    want = 2.0 ** np.arange(count)[:, None] + 1.0
    held = (got == want).all(axis=1)
    bits = count if held.all() else int(np.argmin(held))
    if held.all():
        text = f"the running sum holds at least {count} significand bits"
        known = get("fp32").mantissa_bits + 1
        text += ": float32 or wider" if count >= known else ", all that these inputs can show"
        return Witness(count, True, text)
    name = {11: " (half)", 8: " (bf16)", 14: " (an fp8 tensor core)"}.get(bits, "")
    return Witness(bits, False, f"the running sum holds {bits} significand bits{name}")


def against(contract: Contract, seen: Witness) -> Diagnosis | None:
    """What a running sum that is narrower than declared means; None where it is wide enough."""
    if seen.open or seen.bits >= contract.sum_bits:
        return None
    slug = {11: "half-accumulator", 8: "bf16-accumulator"}.get(seen.bits, "narrow-accumulator")
    return Diagnosis(
        slug,
        f"{seen.text}, the exercise asks for {contract.sum_bits}",
        "declare the sum as float and convert each element before the multiplication",
    )
