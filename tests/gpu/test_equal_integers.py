"""Integer and bit instructions on the card and on the emulated device."""

import numpy as np
import pytest
from equality import Family, Ins, check
from equality_inputs import RANDOM, generator, integers, random_codes

pytestmark = pytest.mark.gpu

KINDS = ("u16", "s16", "u32", "s32", "u64", "s64")


def codes(kind):
    return np.dtype(f"u{int(kind[1:]) // 8}")


def operands(kind, count, *seed):
    """Drawn independently, with the ends of the range against each other and zeros among them."""
    one = [integers(codes(kind), RANDOM // 2, kind, i, *seed) for i in range(count)]
    rng = generator("operands", kind, count, *seed)
    mixed = [rng.permutation(x) for x in one]
    ends = one[0][:80]
    grid = [g.ravel() for g in np.meshgrid(*[ends] * min(count, 2), indexing="ij")]
    grid += [rng.permutation(grid[0]) for _ in range(count - len(grid))]
    return [np.concatenate(column) for column in zip(mixed, grid, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic(devices, kind):
    """Division and remainder by zero, the most negative by -1, all halves of products."""
    names = [f"{op}.{kind}" for op in ("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min",
                                       "max")]  # fmt: skip
    if kind == "s32":
        names += ["add.sat.s32", "sub.sat.s32"]
    if kind in ("u32", "s32"):
        names.append(f"mul24.lo.{kind}")
    inputs = operands(kind, 2)
    check(devices, Family(f"integer {kind}", names, inputs, codes(kind)))
    if kind[1:] != "64":
        wide = np.dtype(f"u{2 * codes(kind).itemsize}")
        check(devices, Family(f"mul.wide {kind}", [f"mul.wide.{kind}"], inputs, wide))
    names = [f"{op}.{kind}" for op in ("mad.lo", "mad.hi", "sad")]
    if kind in ("u32", "s32"):
        names.append(f"mad24.lo.{kind}")
    check(devices, Family(f"integer of three {kind}", names, operands(kind, 3), codes(kind)))
    if kind[0] == "s":
        names = [f"neg.{kind}", f"abs.{kind}"]
        check(devices, Family(f"sign {kind}", names, operands(kind, 1), codes(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_comparisons(devices, kind):
    names = ("eq", "ne", "lt", "le", "gt", "ge") + (("lo", "ls", "hi", "hs") * (kind[0] == "u"))
    listed = [
        Ins(f"setp.{c}.{kind}", f".reg .pred p; setp.{c}.{kind} p, %1, %2; selp.u32 %0, 1, 0, p;")
        for c in names
    ]
    check(devices, Family(f"setp {kind}", listed, operands(kind, 2), np.uint32))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic_and_counts(devices, bits):
    unsigned = f"u{bits}"
    one, two = operands(unsigned, 1), operands(unsigned, 2)
    names = [f"{op}.b{bits}" for op in ("and", "or", "xor")]
    check(devices, Family(f"logic b{bits}", names, two, codes(unsigned)))
    names = [f"not.b{bits}", f"cnot.b{bits}"] + ([f"brev.b{bits}"] if bits > 16 else [])
    check(devices, Family(f"one b{bits}", names, one, codes(unsigned)))
    if bits > 16:
        names = [f"popc.b{bits}", f"clz.b{bits}"]
        names += [f"bfind{how}.{s}{bits}" for how in ("", ".shiftamt") for s in "us"]
        check(devices, Family(f"counts b{bits}", names, one, np.uint32))


def amounts(count, seed):
    """Shift amounts: mostly near a word, beyond it, and any 32-bit number."""
    rng = generator("amounts", seed)
    near = rng.integers(0, 72, count).astype(np.uint32)
    return np.where(rng.random(count) < 0.8, near, random_codes(np.uint32, count, seed))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_and_fields(devices, bits):
    """Amounts at and beyond the width; fields that leave the word."""
    (a,) = operands(f"u{bits}", 1)
    by = amounts(a.size, "shift")
    names = [f"shl.b{bits}"] + [f"shr.{k}{bits}" for k in "bus"]
    check(devices, Family(f"shift b{bits}", names, [a, by], a.dtype))
    if bits == 16:
        return
    length = amounts(a.size, "length")
    names = [f"bfe.{k}{bits}" for k in "us"]
    check(devices, Family(f"bfe {bits}", names, [a, by, length], a.dtype))
    b = generator("bfi").permutation(a)
    check(devices, Family(f"bfi {bits}", [f"bfi.b{bits}"], [a, b, by, length], a.dtype))


def test_permutes_and_funnels(devices):
    a, b = operands("u32", 2)
    n = amounts(a.size, "funnel")
    names = [f"shf.{side}.{mode}.b32" for side in "lr" for mode in ("clamp", "wrap")]
    check(devices, Family("shf", names, [a, b, n], np.uint32))
    selector = random_codes(np.uint32, a.size, "selector")
    check(devices, Family("prmt", ["prmt.b32"], [a, b, selector], np.uint32))
    tables = (0x00, 0x01, 0x16, 0x3C, 0x80, 0x96, 0xCA, 0xE8, 0xF0, 0xFE, 0xFF)
    listed = [Ins(f"lop3 {t:#04x}", f"lop3.b32 %0, %1, %2, %3, {t};") for t in tables]
    check(devices, Family("lop3", listed, [a, b, selector], np.uint32))


def test_dots_and_selection(devices):
    a, b, c = operands("u32", 3)
    listed = [f"dp4a.{x}.{y}" for x in ("u32", "s32") for y in ("u32", "s32")]
    listed += [f"dp2a.{h}.{x}.{y}" for h in ("lo", "hi") for x in ("u32", "s32")
               for y in ("u32", "s32")]  # fmt: skip
    listed += ["slct.b32.s32", "slct.b32.f32", "slct.ftz.b32.f32"]
    check(devices, Family("dp4a, dp2a, slct", listed, [a, b, c], np.uint32))


def test_carries(devices):
    """Sums and products of many words, as compilers write them."""
    a, b, c = operands("u32", 3)
    listed = [
        Ins("add.cc addc", ".reg .b32 t; add.cc.u32 t, %1, %2; addc.u32 %0, %3, %1;"),
        Ins("add.cc addc.cc addc", ".reg .b32 t; add.cc.u32 t, %1, %2; addc.cc.u32 t, %2, %3; "
            "addc.u32 %0, %3, t;"),
        Ins("sub.cc subc", ".reg .b32 t; sub.cc.u32 t, %1, %2; subc.u32 %0, %3, %1;"),
        Ins("sub.cc subc.cc subc", ".reg .b32 t; sub.cc.u32 t, %1, %2; subc.cc.u32 t, %2, %3; "
            "subc.u32 %0, %3, t;"),
        Ins("mad.lo.cc madc.hi", ".reg .b32 t; mad.lo.cc.u32 t, %1, %2, %3; "
            "madc.hi.u32 %0, %1, %2, %3;"),
        Ins("mad.hi.cc addc", ".reg .b32 t; mad.hi.cc.u32 t, %1, %2, %3; addc.u32 %0, t, 0;"),
    ]  # fmt: skip
    check(devices, Family("carry chains", listed, [a, b, c], np.uint32))
