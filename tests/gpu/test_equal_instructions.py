"""Floating-point instructions on the card and on the emulated device: every bit of every result."""

import numpy as np
import pytest
from equality import Family, Ins, check
from equality_inputs import (
    RANDOM,
    dtype_of,
    floats,
    generator,
    packed,
    pairs,
    random_codes,
    triples,
)

pytestmark = pytest.mark.gpu

MODES = ("rn", "rz", "rm", "rp")
WIDE = ("f32", "f64")
COUNT = {"f32": RANDOM, "f64": RANDOM // 10}
"""Random patterns; the emulated device rounds some float64 lanes one by one."""


def around(centres, ulps, seed):
    """float32 codes next to given numbers, of both signs."""
    codes = np.float32(centres).view(np.uint32).astype(np.int64)
    dense = codes[:, None] + np.arange(-ulps, ulps + 1)
    wide = codes[:, None] + generator("around", seed).integers(-(1 << 18), 1 << 18, (1, 4 * ulps))
    found = np.concatenate([dense.ravel(), wide.ravel()]) & 0x7FFFFFFF
    return np.concatenate([found, found | 0x80000000]).astype(np.uint32)


def uniform(low, high, count, seed):
    drawn = generator("uniform", low, high, seed).uniform(low, high, count)
    return drawn.astype(np.float32).view(np.uint32)


def scaled(low, high, count, seed):
    """float32 codes with exponent fields in low .. high, both signs."""
    rng = generator("scaled", low, high, seed)
    return (
        rng.integers(0, 1 << 23, count)
        + (rng.integers(low, high + 1, count) << 23)
        + (rng.integers(0, 2, count) << 31)
    ).astype(np.uint32)


ENDS = np.concatenate([
    floats("f32", RANDOM, "approx"), scaled(0, 0, RANDOM, 1), scaled(252, 254, RANDOM, 2),
    around([2.0**-126, 2.0**-125, 2.0**126, 2.0**127], 500, "ends"),
])  # fmt: skip
APPROXIMATE = {
    "rcp": ENDS,
    "sqrt": ENDS,
    "rsqrt": ENDS,
    "lg2": np.concatenate(
        [ENDS, around([2.0**-4, 2.0**-3, 2.0**-2, 0.5, 1, 2, 4], 2000, "lg2"),
         scaled(124, 129, RANDOM, 3)]
    ),
    "ex2": np.concatenate(
        [ENDS, around([1, 2, 64, 126, 127, 128, 149, 150, 151, 2.0**-23, 2.0**-24], 500, "ex2"),
         uniform(-160, 130, RANDOM, 4), uniform(-152, -124, RANDOM, 5), uniform(-2, 2, RANDOM, 6),
         scaled(90, 127, RANDOM, 7)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("base", APPROXIMATE)
def test_approximate(devices, base):
    names = [f"{base}.approx{ftz}.f32" for ftz in ("", ".ftz")]
    check(devices, Family(f"{base}.approx f32", names, [APPROXIMATE[base]], np.uint32))


def test_quotients(devices):
    """Divisors of all kinds: above 2^126, subnormal, zero; quotients that over- and underflow."""
    a, b = pairs("f32", RANDOM, "quotients")
    kinds = [(0, 254), (0, 0), (1, 2), (252, 254), (253, 254), (100, 150)]
    dividends = [scaled(*k, 2000, f"a{i}") for k in kinds for i in range(len(kinds))]
    divisors = [scaled(*k, 2000, f"b{i}") for i in range(len(kinds)) for k in kinds]
    edge = around([2.0**-126, 2.0**126, 1], 200, "divisors")
    other = np.resize(floats("f32", 500, "dividends"), edge.size)
    inputs = [np.concatenate([a, *dividends, other]), np.concatenate([b, *divisors, edge])]
    names = [f"div.{form}{ftz}.f32" for form in ("approx", "full") for ftz in ("", ".ftz")]
    check(devices, Family("div.approx and div.full f32", names, inputs, np.uint32))


def test_approximate_f64(devices):
    every = np.arange(0x3FE << 20, 0x401 << 20, dtype=np.uint64) << np.uint64(32)  # [0.5, 4)
    x = np.concatenate([floats("f64", RANDOM, "approx"), pairs("f64", 100)[0], every])
    names = ["rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64"]
    check(devices, Family("upper halves of f64", names, [x], np.uint64))


EVERY_HALF = np.arange(65536, dtype=np.uint32).astype(np.uint16)


def test_approximate_halves(devices):
    names = ["tanh.approx.f16", "tanh.approx.bf16", "ex2.approx.f16", "ex2.approx.ftz.bf16"]
    check(devices, Family("approx of every half", names, [EVERY_HALF], np.uint16))
    words = packed(np.concatenate([EVERY_HALF, random_codes(np.uint16, 40_000, "pairs")]))
    check(devices, Family("approx of pairs", [f"{n}x2" for n in names], words, np.uint32))


# -- exact arithmetic ------------------------------------------------------------------------------


def extras(form):
    """.ftz and .sat as the format has them."""
    return [f + s for f in ("", ".ftz") for s in ("", ".sat")] if form == "f32" else [""]


@pytest.mark.parametrize("form", WIDE)
def test_two_operands(devices, form):
    names = [f"{op}.{m}{e}.{form}" for op in ("add", "sub", "mul") for m in MODES
             for e in extras(form)]  # fmt: skip
    ftz = ("", ".ftz") if form == "f32" else ("",)
    names += [f"div.{m}{f}.{form}" for m in MODES for f in ftz]
    names += [f"{op}{f}.{form}" for op in ("min", "max") for f in ftz]
    if form == "f32":
        names += [f"{op}{f}{how}.f32" for op in ("min", "max") for f in ftz
                  for how in (".NaN", ".xorsign.abs", ".NaN.xorsign.abs")]  # fmt: skip
    names.append(f"copysign.{form}")
    inputs = pairs(form, COUNT[form], "two")
    check(devices, Family(f"two operands {form}", names, inputs, dtype_of(form)))


@pytest.mark.parametrize("form", WIDE)
def test_fma(devices, form):
    names = [f"fma.{m}{e}.{form}" for m in MODES for e in extras(form)]
    inputs = triples(form, COUNT[form])
    check(devices, Family(f"fma {form}", names, inputs, dtype_of(form)))


@pytest.mark.parametrize("form", WIDE)
def test_one_operand(devices, form):
    ftz = ("", ".ftz") if form == "f32" else ("",)
    names = [f"{op}{f}.{form}" for op in ("neg", "abs") for f in ftz]
    names += [f"{op}.{m}{f}.{form}" for op in ("rcp", "sqrt") for m in MODES for f in ftz]
    inputs = [floats(form, COUNT[form], "one")]
    check(devices, Family(f"one operand {form}", names, inputs, dtype_of(form)))
    tests = [
        Ins(f"testp.{t}.{form}", f".reg .pred p; testp.{t}.{form} p, %1; selp.u32 %0, 1, 0, p;")
        for t in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    ]
    check(devices, Family(f"testp {form}", tests, inputs, np.uint32))


def test_nearest_f64(devices):
    """The mode that compilers emit, on many more patterns."""
    two, three = pairs("f64", RANDOM, "rn"), triples("f64", RANDOM // 2, "rn")
    names = ["add.rn.f64", "sub.rn.f64", "mul.rn.f64", "div.rn.f64", "min.f64", "max.f64"]
    check(devices, Family("nearest f64, two", names, two, np.uint64))
    check(devices, Family("nearest f64, fma", ["fma.rn.f64"], three, np.uint64))
    names = ["neg.f64", "abs.f64", "sqrt.rn.f64", "rcp.rn.f64"]
    check(devices, Family("nearest f64, one", names, [floats("f64", RANDOM, "rn")], np.uint64))


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num",
               "nan")  # fmt: skip


def asked(opcode):
    return Ins(opcode, f".reg .pred p; {opcode} p, %1, %2; selp.u32 %0, 1, 0, p;")


@pytest.mark.parametrize("form", ["f32", "f64", "f16", "bf16"])
def test_comparisons(devices, form):
    ftz = {"f32": ("", ".ftz"), "f16": ("", ".ftz")}.get(form, ("",))
    names = [asked(f"setp.{c}{f}.{form}") for c in COMPARISONS for f in ftz]
    inputs = pairs(form, RANDOM // 4, "setp")
    check(devices, Family(f"setp {form}", names, inputs, np.uint32))
    if form == "f32":
        names = [f"set.{c}.{d}.f32" for c in COMPARISONS for d in ("u32", "s32", "f32")]
        check(devices, Family("set f32", names, inputs, np.uint32))


# -- halves ----------------------------------------------------------------------------------------

HALF_EXTRAS = {"f16": ("", ".ftz", ".sat", ".ftz.sat"), "bf16": ("",)}
HALF_FTZ = {"f16": ("", ".ftz"), "bf16": ("",)}


def two_halves(form):
    names = [f"{op}{r}{e}.{form}" for op in ("add", "sub", "mul")
             for r, e in [("", x) for x in HALF_EXTRAS[form]] + [(".rn", "")]]  # fmt: skip
    how = ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")
    return names + [f"{op}{f}{h}.{form}" for op in ("min", "max") for f in HALF_FTZ[form]
                    for h in how]  # fmt: skip


def fused_halves(form):
    return [f"fma.rn{e}.{form}" for e in HALF_EXTRAS[form]] + [
        f"fma.rn{f}.relu.{form}" for f in HALF_FTZ[form]
    ]


@pytest.mark.parametrize("form", ["f16", "bf16"])
def test_halves(devices, form):
    two, three = pairs(form, RANDOM, "half"), triples(form, RANDOM, "half")
    one = [f"{op}{f}.{form}" for op in ("neg", "abs") for f in HALF_FTZ[form]]
    check(devices, Family(f"one {form}", one, [EVERY_HALF], np.uint16))
    check(devices, Family(f"two {form}", two_halves(form), two, np.uint16))
    check(devices, Family(f"fma {form}", fused_halves(form), three, np.uint16))


def test_products_next_to_the_smallest_normal_half(devices):
    """Whether .ftz looks at a product before or after it is rounded shows here alone."""
    i, j = np.meshgrid(np.arange(1024), np.arange(1024), indexing="ij")
    product = (1024 + i) * (1024 + j)  # of 2^21, the smallest normal number
    near = (product < 1 << 21) & (product >= (1 << 21) - (1 << 10))
    first, second = i[near].astype(np.uint16), j[near].astype(np.uint16)
    for one, tiny in ((0x3800, 0x0400), (0x3400, 0x0800)):  # 1/2 2^-14, 1/4 2^-13
        a, b = first + np.uint16(one), second + np.uint16(tiny)
        check(devices, Family("mul f16 near 2^-14", ["mul.ftz.f16", "mul.f16"], [a, b], np.uint16))
        names = ["fma.rn.ftz.f16", "fma.rn.f16"]
        zero = np.zeros_like(a)
        check(devices, Family("fma f16 near 2^-14", names, [a, b, zero], np.uint16))


@pytest.mark.parametrize("form", ["f16", "bf16"])
def test_half_pairs(devices, form):
    two, three = packed(*pairs(form, RANDOM, "pair")), packed(*triples(form, RANDOM, "pair"))
    one = [f"{op}{f}.{form}x2" for op in ("neg", "abs") for f in HALF_FTZ[form]]
    check(devices, Family(f"one {form}x2", one, packed(EVERY_HALF), np.uint32))
    check(devices, Family(f"two {form}x2", [f"{n}x2" for n in two_halves(form)], two, np.uint32))
    check(devices, Family(f"fma {form}x2", [f"{n}x2" for n in fused_halves(form)], three,
                          np.uint32))  # fmt: skip
