"""Integer, bit and selection instructions against Python integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ptxcase import floats, instruction, integers, run

COUNT = 1500
TYPES = ["u16", "s16", "u32", "s32", "u64", "s64"]
SEED = np.random.SeedSequence(11)


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def dtype(kind: str) -> Any:
    return np.dtype({"u": "u", "s": "i", "b": "u"}[kind[0]] + str(int(kind[1:]) // 8))


def wrap(value: int, kind: str) -> int:
    width = int(kind[1:])
    value &= (1 << width) - 1
    return value - (1 << width) if kind[0] == "s" and value >> (width - 1) else value


def expect(
    opcode: str, kinds: list[str], result: str, model: Callable[..., int], *literals: int
) -> None:
    generator = rng()
    inputs = [integers(generator, dtype(k), COUNT) for k in kinds]
    got = instruction(opcode, inputs, dtype(result), *literals)
    rows = list(zip(*(x.tolist() for x in inputs), strict=True))
    want = [wrap(model(*row), result) for row in rows]
    bad = [i for i in range(COUNT) if int(got[i]) != want[i]]
    assert not bad, (opcode, rows[bad[0]], int(got[bad[0]]), want[bad[0]], len(bad))


def truncated(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


@pytest.mark.parametrize("kind", TYPES)
def test_arithmetic(kind: str) -> None:
    two, width = [kind, kind], int(kind[1:])
    expect(f"add.{kind}", two, kind, lambda a, b: a + b)
    expect(f"sub.{kind}", two, kind, lambda a, b: a - b)
    expect(f"mul.lo.{kind}", two, kind, lambda a, b: a * b)
    expect(f"mul.hi.{kind}", two, kind, lambda a, b: a * b >> width)
    expect(f"mad.lo.{kind}", [kind] * 3, kind, lambda a, b, c: a * b + c)
    expect(f"mad.hi.{kind}", [kind] * 3, kind, lambda a, b, c: (a * b >> width) + c)
    expect(f"min.{kind}", two, kind, min)
    expect(f"max.{kind}", two, kind, max)
    expect(f"sad.{kind}", [kind] * 3, kind, lambda a, b, c: c + abs(a - b))
    everything = (1 << width) - 1
    expect(f"div.{kind}", two, kind, lambda a, b: truncated(a, b) if b else everything)
    expect(
        f"rem.{kind}",
        two,
        kind,
        lambda a, b: a - b * truncated(a, b) if b else a + b * 0 - b * everything,
    )
    if width < 64:
        wide = f"{kind[0]}{2 * width}"
        expect(f"mul.wide.{kind}", two, wide, lambda a, b: a * b)
        expect(f"mad.wide.{kind}", [kind, kind, wide], wide, lambda a, b, c: a * b + c)
    if kind[0] == "s":
        expect(f"neg.{kind}", [kind], kind, lambda a: -a)
        expect(f"abs.{kind}", [kind], kind, abs)


def test_saturating_and_24_bit() -> None:
    low, high = -(2**31), 2**31 - 1
    expect("add.sat.s32", ["s32", "s32"], "s32", lambda a, b: max(low, min(high, a + b)))
    expect("sub.sat.s32", ["s32", "s32"], "s32", lambda a, b: max(low, min(high, a - b)))
    u24: Callable[[int], int] = lambda a: a & 0xFFFFFF  # noqa: E731
    s24: Callable[[int], int] = lambda a: (a & 0xFFFFFF) - ((a & 0x800000) << 1)  # noqa: E731
    expect("mul24.lo.u32", ["u32", "u32"], "u32", lambda a, b: u24(a) * u24(b))
    expect("mul24.lo.s32", ["s32", "s32"], "s32", lambda a, b: s24(a) * s24(b))
    expect("mad24.lo.s32", ["s32"] * 3, "s32", lambda a, b, c: s24(a) * s24(b) + c)


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
def test_logic_and_shifts(kind: str) -> None:
    width = int(kind[1:])
    mask = (1 << width) - 1
    expect(f"and.{kind}", [kind, kind], kind, lambda a, b: a & b)
    expect(f"or.{kind}", [kind, kind], kind, lambda a, b: a | b)
    expect(f"xor.{kind}", [kind, kind], kind, lambda a, b: a ^ b)
    expect(f"not.{kind}", [kind], kind, lambda a: ~a)
    expect(f"cnot.{kind}", [kind], kind, lambda a: int(a == 0))
    signed = f"s{width}"
    for n in (0, 1, width - 1, width, width + 9):
        expect(f"shl.{kind}", [kind], kind, lambda a, n=n: a << n & mask, n)
        expect(f"shr.u{width}", [f"u{width}"], f"u{width}", lambda a, n=n: a >> n, n)
        expect(f"shr.{signed}", [signed], signed, lambda a, n=n: a >> n, n)
    by = lambda a, n: a << n & mask if n < width else 0  # noqa: E731
    expect(f"shl.{kind}", [kind, "u32"], kind, by)
    expect(f"shr.{signed}", [signed, "u32"], signed, lambda a, n: a >> min(n, width))


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(mode: str) -> None:
    def amount(n: int) -> int:
        return min(n, 32) if mode == "clamp" else n & 31

    def left(low: int, high: int, n: int) -> int:
        return (high << 32 | low) << amount(n) >> 32

    def right(low: int, high: int, n: int) -> int:
        return (high << 32 | low) >> amount(n)

    expect(f"shf.l.{mode}.b32", ["b32"] * 3, "b32", left)
    expect(f"shf.r.{mode}.b32", ["b32"] * 3, "b32", right)


@pytest.mark.parametrize("table", [0x00, 0xE8, 0x96, 0xCA, 0xFF, 0x1B])
def test_lop3(table: int) -> None:
    def model(a: int, b: int, c: int) -> int:
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
            for i in range(32)
        )

    expect("lop3.b32", ["b32"] * 3, "b32", model, table)


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_counts(kind: str) -> None:
    width = int(kind[1:])
    expect(f"popc.{kind}", [kind], "u32", lambda a: a.bit_count())
    expect(f"clz.{kind}", [kind], "u32", lambda a: width - a.bit_length())
    expect(f"brev.{kind}", [kind], kind, lambda a: int(f"{a:0{width}b}"[::-1], 2))
    unsigned, signed = f"u{width}", f"s{width}"
    expect(f"bfind.{unsigned}", [unsigned], "u32", lambda a: a.bit_length() - 1)
    expect(f"bfind.{signed}", [signed], "u32", lambda a: (~a if a < 0 else a).bit_length() - 1)
    expect(
        f"bfind.shiftamt.{unsigned}",
        [unsigned],
        "u32",
        lambda a: width - a.bit_length() if a else -1,
    )


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind: str) -> None:
    width = int(kind[1:])

    def extract(a: int, position: int, length: int) -> int:
        position, length = position & 255, length & 255
        top = min(position + length - 1, width - 1)
        sign = 0 if kind[0] == "u" or length == 0 else a >> top & 1
        out = 0
        for i in range(width):
            inside = i < length and position + i < width
            out |= (a >> (position + i) & 1 if inside else sign) << i
        return out

    expect(f"bfe.{kind}", [kind, "u32", "u32"], kind, extract)
    plain = f"b{width}"

    def insert(a: int, b: int, position: int, length: int) -> int:
        position, length = position & 255, length & 255
        for i in range(length):
            if position + i < width:
                bit = 1 << (position + i)
                b = (b & ~bit) | (bit if a >> i & 1 else 0)
        return b

    expect(f"bfi.{plain}", [plain, plain, "u32", "u32"], plain, insert)


def test_prmt() -> None:
    def model(a: int, b: int, selector: int) -> int:
        octets = (b << 32 | a).to_bytes(8, "little")
        out = 0
        for i in range(4):
            pick = selector >> 4 * i & 15
            value = octets[pick & 7]
            if pick & 8:
                value = 0xFF if value & 0x80 else 0
            out |= value << 8 * i
        return out

    expect("prmt.b32", ["b32"] * 3, "b32", model)


@pytest.mark.parametrize("a_kind", ["u32", "s32"])
@pytest.mark.parametrize("b_kind", ["u32", "s32"])
def test_dot_products(a_kind: str, b_kind: str) -> None:
    def lanes(word: int, width: int, signed: bool) -> list[int]:
        out = [word >> at & ((1 << width) - 1) for at in range(0, 32, width)]
        return [v - (1 << width) if signed and v >> (width - 1) else v for v in out]

    result = "u32" if a_kind == b_kind == "u32" else "s32"

    def four(a: int, b: int, c: int) -> int:
        pairs = zip(lanes(a, 8, a_kind[0] == "s"), lanes(b, 8, b_kind[0] == "s"), strict=True)
        return c + sum(x * y for x, y in pairs)

    expect(f"dp4a.{a_kind}.{b_kind}", ["b32", "b32", result], result, four)
    for half, at in (("lo", 0), ("hi", 2)):

        def two(a: int, b: int, c: int, at: int = at) -> int:
            right = lanes(b, 8, b_kind[0] == "s")[at : at + 2]
            return c + sum(
                x * y for x, y in zip(lanes(a, 16, a_kind[0] == "s"), right, strict=True)
            )

        expect(f"dp2a.{half}.{a_kind}.{b_kind}", ["b32", "b32", result], result, two)


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
