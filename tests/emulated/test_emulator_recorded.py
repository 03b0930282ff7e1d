"""Results of single instructions as an H200 gave them: NaN payloads, flushing, odd operands.

``recorded_h200.jsonl`` holds, for groups of instructions, rows of operand bits and result bits
recorded on an H200 (capability 9.0, driver 580.159.04). They are the inputs on which an earlier
model of an instruction was wrong, so each row tells two models apart.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from ptxcase import instruction, run

from gpulab.numerics.approx import evaluate2, evaluate_upper

GROUPS = [
    json.loads(line)
    for line in Path(__file__).with_name("recorded_h200.jsonl").read_text().splitlines()
]
CASES = [
    pytest.param(name, [row.split() for row in group["rows"]], id=name.replace(" ", "-"))
    for group in GROUPS
    for name in group["instructions"]
]


def column(texts):
    """Bits from their hexadecimal digits, as wide as those are many."""
    return np.array([int(t, 16) for t in texts], f"u{(len(texts[0]) - 2) // 2}")


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_equal_to_the_recorded_bits(name, rows):
    *inputs, card = map(column, zip(*rows, strict=True))
    if name.endswith(" left"):  # the cell of an atomic, found at the first operand
        opcode = name.removesuffix(" left")
        found = "%a0, " if opcode.startswith("atom") else ""
        body = f"st.global.b64 [%p0], %a0; {opcode} {found}[%p0], %a1; ld.global.b64 %d, [%p0];"
        body = "mad.wide.u32 %i, %t2, 8, %p0; " + body.replace("%p0", "%i")
        got = run(body, inputs, card.dtype)
    else:
        got = instruction(name, inputs, card.dtype)
    assert [hex(v) for v in got] == [hex(v) for v in card]


def test_the_models_alone_give_the_recorded_bits():
    """Quotients and upper words, without a machine around them."""
    seen = 0
    for case in CASES:
        name, rows = case.values
        *inputs, card = map(column, zip(*rows, strict=True))
        if name.startswith(("div.approx", "div.full")):
            assert np.array_equal(evaluate2(name, *inputs), card)
        elif name.endswith(".approx.ftz.f64"):
            assert np.array_equal(evaluate_upper(name, *inputs), card)
        else:
            continue
        seen += 1
    assert seen == 6


def test_flushing_looks_at_the_result_as_24_bits_would_hold_it():
    """(1 + 2^-23)(1 - 2^-23) 2^-126 is below 2^-126, and 2^-126 in 24 bits: it stays."""
    a, b = np.uint32([0x00800001] * 2), np.uint32([0x3F7FFFFE, 0x3F7FFFFF])
    got = instruction("mul.rn.ftz.f32", [a, b], np.uint32)
    assert [hex(v) for v in got] == ["0x800000", "0x800000"]
    got = instruction("mul.rz.ftz.f32", [a[:1], b[:1]], np.uint32)
    assert hex(got[0]) == "0x0"


def test_flushing_looks_at_a_half_as_11_bits_would_hold_it():
    """2^-14 (1 - 2^-11) fits into 11 bits and is flushed; what 11 bits would round up stays."""
    a, b = np.uint16([0x0400, 0x07FF, 0x3801]), np.uint16([0x3BFF, 0x3800, 0x07FE])
    zero = np.zeros_like(a)
    for flushed, plain, more in (
        ("mul.ftz.f16", "mul.f16", []),
        ("fma.rn.ftz.f16", "fma.rn.f16", [zero]),
    ):
        assert instruction(flushed, [a, b, *more], np.uint16).tolist() == [0, 0, 0x0400]
        assert instruction(plain, [a, b, *more], np.uint16).tolist() == [0x0400] * 3
    got = instruction(
        "fma.rn.ftz.f16", [np.uint16([x]) for x in (0x8400, 0x3BFF, 0x8002)], np.uint16
    )
    assert hex(got[0]) == "0x8000"  # as an H200 gave it


def test_zero_is_a_normal_number():
    """Unlike in IEEE 754's terms; subnormal numbers are not."""
    a = np.uint32([0, 1 << 31, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F800000, 0x7FC00000])
    got = instruction("testp.normal.f32", [a], np.bool_)
    assert got.tolist() == [1, 1, 0, 0, 1, 1, 0, 0]


def test_an_invalid_operation_on_float64_gives_the_negative_quiet_nan():
    infinity = np.uint64([0x7FF0000000000000])
    zero = np.uint64([0])
    for name, operands in (
        ("sub.rz.f64", [infinity, infinity]),
        ("mul.rn.f64", [infinity, zero]),
        ("fma.rn.f64", [infinity, zero, zero]),
        ("div.rm.f64", [zero, zero]),
        ("sqrt.rp.f64", [infinity | np.uint64(1 << 63)]),
    ):
        assert hex(instruction(name, operands, np.uint64)[0]) == "0xfff8000000000000", name
