"""Integer and bit instructions against Python integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ptxcase import instruction, integers

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
        lambda a, b: a - b * truncated(a, b) if b else everything,
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
        if width == 32:  # the 64-bit form takes all bits of both, as recorded on an H200
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
        if width == 32:
            position, length = position & 255, length & 255
        for i in range(min(length, width)):
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
