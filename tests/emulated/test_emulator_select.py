"""Comparison, selection, packing and integer conversion against Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptxcase import floats, instruction, integers, run

COUNT = 1500
TYPES = ["u16", "s16", "u32", "s32", "u64", "s64"]


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def dtype(kind: str) -> Any:
    return np.dtype({"u": "u", "s": "i"}[kind[0]] + str(int(kind[1:]) // 8))


def wrap(value: int, kind: str) -> int:
    width = int(kind[1:])
    value &= (1 << width) - 1
    return value - (1 << width) if kind[0] == "s" and value >> (width - 1) else value


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_setp(kind: str, name: str) -> None:
    generator = rng()
    a, b = (integers(generator, dtype(kind), COUNT) for _ in range(2))
    c = generator.random(COUNT) < 0.5
    want = getattr(
        np,
        {
            "eq": "equal",
            "ne": "not_equal",
            "lt": "less",
            "le": "less_equal",
            "gt": "greater",
            "ge": "greater_equal",
        }[name],
    )(a, b)
    assert np.array_equal(instruction(f"setp.{name}.{kind}", [a, b], bool), want)
    assert np.array_equal(instruction(f"setp.{name}.and.{kind}", [a, b, c], bool), want & c)
    both = run(
        f"setp.{name}.or.{kind} %d|%c0, %a0, %a1, %a2; "
        "@%c0 bra ON; bra OFF; ON: not.pred %d, %d; OFF:",
        [a, b, c],
        bool,
    )
    p, q = want | c, ~want | c
    assert np.array_equal(both, p ^ q)


def test_selection() -> None:
    generator = rng()
    a, b = (integers(generator, np.uint32, COUNT) for _ in range(2))
    p = generator.random(COUNT) < 0.5
    assert np.array_equal(instruction("selp.b32", [a, b, p], np.uint32), np.where(p, a, b))
    c = integers(generator, np.int32, COUNT)
    assert np.array_equal(instruction("slct.b32.s32", [a, b, c], np.uint32), np.where(c >= 0, a, b))
    x = floats(generator, 32, COUNT)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(
            instruction("slct.u32.f32", [a, b, x], np.uint32), np.where(x >= 0, a, b)
        )
    whole = np.where(a < b, 0xFFFFFFFF, 0).astype(np.uint32)
    assert np.array_equal(instruction("set.lt.u32.u32", [a, b], np.uint32), whole)
    one = np.where(a < b, 1.0, 0.0).astype(np.float32)
    assert np.array_equal(instruction("set.lt.f32.u32", [a, b], np.float32), one)


def test_predicate_logic() -> None:
    generator = rng()
    p, q = (generator.random(COUNT) < 0.5 for _ in range(2))
    assert np.array_equal(instruction("and.pred", [p, q], bool), p & q)
    assert np.array_equal(instruction("or.pred", [p, q], bool), p | q)
    assert np.array_equal(instruction("xor.pred", [p, q], bool), p ^ q)
    assert np.array_equal(instruction("not.pred", [p], bool), ~p)
    assert np.array_equal(run("and.pred %d, %a0, !%a1;", [p, q], bool), p & ~q)


def test_carry_chain_adds_128_bits() -> None:
    generator = rng()
    words = [integers(generator, np.uint64, COUNT) for _ in range(4)]
    body = ".reg .b64 %lo; add.cc.u64 %lo, %a0, %a2; addc.u64 %d, %a1, %a3;"
    got = run("{" + body + "}", words, np.uint64)
    for a0, a1, b0, b1, g in zip(*(w.tolist() for w in words), got.tolist(), strict=True):
        assert g == ((a1 << 64 | a0) + (b1 << 64 | b0) >> 64) & (2**64 - 1)
    got = run("{" + body.replace("add", "sub") + "}", words, np.uint64)
    for a0, a1, b0, b1, g in zip(*(w.tolist() for w in words), got.tolist(), strict=True):
        assert g == ((a1 << 64 | a0) - (b1 << 64 | b0) >> 64) & (2**64 - 1)


@pytest.mark.parametrize("name", ["add", "sub"])
def test_a_carry_goes_on_through_a_word_that_it_alone_makes_overflow(name: str) -> None:
    """Words of all ones and all zeros: the middle one passes on what comes in."""
    ends = np.array([0, 1, 0xFFFFFFFF], np.uint32)
    words = [ends[i] for i in np.indices((3,) * 6).reshape(6, -1)]
    body = f".reg .b32 %x, %y; {name}.cc.u32 %x, %a0, %a3; "
    body += f"{name}c.cc.u32 %y, %a1, %a4; {name}c.u32 %d, %a2, %a5;"
    got = run("{" + body + "}", words, np.uint32)
    lists = [w.astype(object) for w in words]
    a, b = (lists[i] + (lists[i + 1] << 32) + (lists[i + 2] << 64) for i in (0, 3))
    want = a + b if name == "add" else a - b
    assert got.tolist() == (want >> 64 & 0xFFFFFFFF).tolist()


def test_only_cc_writes_the_carry() -> None:
    ends = np.array([0, 1, 0xFFFFFFFF], np.uint32)
    a, b, c = (ends[i] for i in np.indices((3,) * 3).reshape(3, -1))
    body = ".reg .b32 %x, %y; add.cc.u32 %x, %a0, %a1; addc.u32 %y, %a2, %a2; addc.u32 %d, 5, 0;"
    got = run("{" + body + "}", [a, b, c], np.uint32)
    assert got.tolist() == [5 + (int(x) + int(y) >> 32) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("bits", [32, 64])
def test_copysign_takes_the_sign_of_its_first_operand(bits: int) -> None:
    generator = rng()
    sign, size = (floats(generator, bits, COUNT) for _ in range(2))
    raw = np.dtype(f"u{bits // 8}")
    got = instruction(f"copysign.f{bits}", [sign.view(raw), size.view(raw)], raw)
    assert np.array_equal(got, np.copysign(size, sign).view(raw))


def test_pack_and_unpack() -> None:
    generator = rng()
    a, b = (integers(generator, np.uint32, COUNT) for _ in range(2))
    pair = run("mov.b64 %d, {%a0, %a1};", [a, b], np.uint64)
    assert np.array_equal(pair, a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32))
    swapped = run(
        "{.reg .b32 %x, %y; mov.b64 {%x, %y}, %a0; mov.b64 %d, {%y, %x};}", [pair], np.uint64
    )
    assert np.array_equal(swapped, b.astype(np.uint64) | a.astype(np.uint64) << np.uint64(32))
    h = a.astype(np.uint16)
    assert np.array_equal(
        run("{.reg .b16 %x; mov.b32 {_, %x}, %a0; mov.b16 %d, %x;}", [a], np.uint16),
        (a >> 16).astype(np.uint16),
    )
    assert np.array_equal(run("mov.b32 %d, {%a0, %a0};", [h], np.uint32), h * np.uint32(0x10001))


def test_registers_wider_than_the_type() -> None:
    """A 32-bit register used as .u8/.s8/.u16/.s16: low bits count, results extend."""
    generator = rng()
    a = integers(generator, np.uint32, COUNT)
    assert np.array_equal(instruction("cvt.u32.u8", [a], np.uint32), a & 0xFF)
    assert np.array_equal(
        instruction("cvt.s32.s8", [a], np.int32), a.astype(np.uint8).view(np.int8).astype(np.int32)
    )
    assert np.array_equal(
        instruction("cvt.s32.s16", [a], np.int32),
        a.astype(np.uint16).view(np.int16).astype(np.int32),
    )
    assert np.array_equal(
        instruction("cvt.s8.s32", [a], np.int32), a.astype(np.uint8).view(np.int8).astype(np.int32)
    )


@pytest.mark.parametrize("source", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_integer_conversion(source: str, target: str) -> None:
    generator = rng()
    a = integers(generator, dtype(source), 400)
    held = a if dtype(source).itemsize > 1 else a.astype(np.int16).view(np.uint16)
    wide = (
        dtype(target)
        if int(target[1:]) > 8
        else np.dtype(np.int16 if target[0] == "s" else np.uint16)
    )
    got = instruction(f"cvt.{target}.{source}", [held], wide)
    assert got.tolist() == [wrap(v, target) for v in a.tolist()]
    info = np.iinfo(dtype(target))
    got = instruction(f"cvt.sat.{target}.{source}", [held], wide)
    assert got.tolist() == [max(info.min, min(info.max, v)) for v in a.tolist()]
