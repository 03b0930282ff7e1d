"""mma.sync on the card and on the emulated device, tile by tile, and the cases at the bottom of
the range that no recording decides."""

import numpy as np
import pytest
from equality import differences, execute, keep, record, same
from equality_inputs import floats, generator, integers, random_codes, specials

from gpulab.formats import encode, get
from gpulab.registry import LaunchPlan

pytestmark = pytest.mark.gpu

TILES = 200
_FORMAT = {"f16": "fp16", "bf16": "bf16", "tf32": "fp32", "e4m3": "e4m3", "e5m2": "e5m2"}
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
_CODE = {8: np.uint8, 16: np.uint16, 32: np.uint32}
FP8 = ("e4m3", "e5m2")
FORMS = [
    *(f"m16n8k{k}.{d}.f16.f16.{d}" for k in (8, 16) for d in ("f32", "f16")),
    *(f"m16n8k{k}.f32.bf16.bf16.f32" for k in (8, 16)),
    *(f"m16n8k{k}.f32.tf32.tf32.f32" for k in (4, 8)),
    *(f"m16n8k32.{d}.{a}.{b}.{d}" for d in ("f32", "f16") for a in FP8 for b in FP8),
]
INTEGER_FORMS = [
    f"m16n8k{k}.s32.{a}.{b}.s32{s}" for k in (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")
    for s in ("", ".satfinite")
]  # fmt: skip


def shape_of(form):
    """(registers of A, of B, of C, bits of an element of A, type of A, of B, of C)."""
    words = form.split(".")
    k = int(words[0].rpartition("k")[2])
    bits = _BITS[words[2]]
    count = 2 if words[1] == "f16" else 4
    return 16 * k * bits // 1024, 8 * k * bits // 1024, count, bits, words[2], words[3], words[1]


def source_of(form):
    na, nb, nc, *_ = shape_of(form)
    words = form.split(".")
    saturate = ".satfinite" if "satfinite" in words else ""
    opcode = f"mma.sync.aligned.{words[0]}.row.col{saturate}." + ".".join(words[1:5])

    def group(first, count):
        return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"

    text = ", ".join([group(0, nc), group(nc, na), group(nc + na, nb), group(nc + na + nb, nc)])
    loads = "".join(
        f"    unsigned {name}{i} = ((const unsigned*)x{j})[({count} * at) + {i}];\n"
        for j, (name, count) in enumerate(zip("abc", (na, nb, nc), strict=True))
        for i in range(count)
    )
    ins = ", ".join(f'"r"({name}{i})' for name, count in zip("abc", (na, nb, nc), strict=True)
                    for i in range(count))  # fmt: skip
    outs = ", ".join(f'"=r"(d{i})' for i in range(nc))
    stores = "".join(f"    y0[{nc} * at + {i}] = d{i};\n" for i in range(nc))
    return f"""extern "C" __global__ void k(const int* x0, const int* x1, const int* x2, int* y0,
                                  int n) {{
    int at = 32 * blockIdx.x + threadIdx.x;
{loads}    unsigned {", ".join(f"d{i}" for i in range(nc))};
    asm volatile("{opcode} {text};" : {outs} : {ins});
{stores}}}
"""


def compare_tiles(devices, form, cases):
    """``cases``: name -> (A, B, C words, each (tiles, lanes, registers))."""
    names = list(cases)
    a, b, c = (np.concatenate([case[i] for case in cases.values()]) for i in range(3))
    tiles = len(a)
    plan = LaunchPlan((tiles, 1, 1), (32, 1, 1))
    source = source_of(form)
    card, emulated = (
        execute(d, devices.folder, source, [a, b, c], [(c.size, np.uint32)], 0, plan)[0]
        for d in (devices.card, devices.emulated)
    )
    registers = c.shape[2]

    def inputs(first, count):
        def texts(at):
            tile, lane, register = np.unravel_index(at, (count, 32, registers))
            row, column = lane // 4, 2 * (lane % 4)
            place = f"tile {first + tile} lane {lane} register {register} ({row}, {column})"
            return [place, f"A {words(a[first + tile])}", f"B {words(b[first + tile])}",
                    f"C {words(c[first + tile])}"]  # fmt: skip

        return texts

    found, first = [], 0
    for name in names:
        count = len(cases[name][0])
        part = slice(first * 32 * registers, (first + count) * 32 * registers)
        found += differences(
            [f"{form} {name}"], card[None, part], emulated[None, part], inputs(first, count)
        )
        first += count
    record(devices, f"mma {form}", len(names), tiles, found)
    keep(f"mma {form}", [a, b, c], {"d": card} if found else {})
    same(f"mma {form}", found)
    return card


def words(tile):
    """The fragments of a tile, lane by lane, as text."""
    return np.ascontiguousarray(tile).tobytes().hex()


# -- what tiles are made of ------------------------------------------------------------------------


def packed_words(codes, registers):
    return np.ascontiguousarray(codes).view(np.uint32).reshape(-1, 32, registers)


def drawn(kind, family, count, *seed):
    """``count`` codes of a type; tf32 with anything in the bits that are not read."""
    bits = _BITS.get(kind, 32)
    rng = generator(kind, family, *seed)
    raw = random_codes(_CODE[bits], count, kind, family, *seed).copy()
    if family == "any bits":
        return raw
    if kind == "f32":
        return drawn("tf32", family, count, *seed)
    fmt = get(_FORMAT[kind])
    drift = {"normal": 1.0, "specials": 1.0, "wide": 2.0 ** rng.integers(-6, 7, count),
             "tiny": fmt.min_normal, "huge": 0.25 * fmt.max_finite}[family]  # fmt: skip
    values = rng.standard_normal(count) * drift
    with np.errstate(over="ignore"):
        codes = encode(fmt.name, values, saturate=True).view(_CODE[bits]).copy()
    if kind == "tf32":
        codes ^= raw & np.uint32(0x1FFF)
    if family == "specials":
        chosen = rng.random(count) < 0.01
        pool = specials({"f16": "f16", "bf16": "bf16"}.get(kind, "f32")) if bits > 8 else raw
        codes[chosen] = rng.choice(pool, int(chosen.sum()))
    return codes


def addends(kind, family, count, *seed):
    """C: as large as the products, or of all sizes."""
    if family == "any bits":
        return floats(kind, count, "C", *seed)[-count:]
    form = {"f32": "tf32", "f16": "f16"}[kind]
    codes = drawn(form, family, count, "C", *seed)
    zero = generator("zero", *seed).random(count) < 0.1
    return np.where(zero, codes.dtype.type(0), codes)


FAMILIES = ("normal", "wide", "tiny", "huge", "specials", "any bits")


@pytest.mark.parametrize("form", FORMS)
def test_tiles(devices, form):
    na, nb, nc, bits, a_type, b_type, c_type = shape_of(form)
    cases = {}
    for family in FAMILIES:
        a, b = (
            packed_words(drawn(kind, family, TILES * 32 * n * 32 // bits, form, i), n)
            for i, (kind, n) in enumerate(((a_type, na), (b_type, nb)))
        )
        each = 2 if c_type == "f16" else 1
        c = packed_words(addends(c_type, family, TILES * 32 * nc * each, form), nc)
        if family == "tiny":  # products with 1: sums at the bottom of the range of A and C
            half = TILES // 2
            ones = drawn(b_type, "wide", TILES * 32 * nb * 32 // bits, form, "ones")
            b[:half] = packed_words(ones, nb)[:half]
        cases[family] = (a, b, c)
    compare_tiles(devices, form, cases)


@pytest.mark.parametrize("form", INTEGER_FORMS)
def test_integer_tiles(devices, form):
    na, nb, nc, *_ = shape_of(form)
    a, b = (random_codes(np.uint32, TILES * 32 * n, form, i) for i, n in enumerate((na, nb)))
    a[: a.size // 4] = 0x7F7F7F7F
    b[: b.size // 8] = 0x80808080
    c = integers(np.uint32, TILES * 32 * nc, form)[: TILES * 32 * nc]
    case = [x.reshape(TILES, 32, n) for x, n in ((a, na), (b, nb), (c, nc))]
    compare_tiles(devices, form, {"integers": case})


# -- cases that tell readings of the arithmetic apart ----------------------------------------------


def test_products_far_below_float32(devices):
    """Sixteen products of 2^-153 and no addend: their sum, 2^-149, has code 1 where zero takes no
    part in the alignment, and is lost where it counts as 2^-126."""
    form = "m16n8k16.f32.bf16.bf16.f32"
    na, nb, nc, *_ = shape_of(form)
    exponents = {"2^-76 * 2^-77": (76, 77), "2^-75 * 2^-75": (75, 75), "2^-80 * 2^-73": (80, 73)}
    cases = {}
    for name, (i, j) in exponents.items():
        a, b = (np.full((1, 32, n), ((127 - e) << 7) * 0x10001, np.uint32)
                for n, e in ((na, i), (nb, j)))  # fmt: skip
        for addend in (0, 1, 0x80000001, 0x80000000):
            cases[f"{name} + {addend:#x}"] = (a, b, np.full((1, 32, nc), addend, np.uint32))
    card = compare_tiles(devices, form, cases)
    assert set(card[: 32 * nc]) == {1}


def test_sums_at_the_bottom_of_float16(devices):
    """2^-12 * 2^-13 + 2^-24 * 2^-24: above half of the smallest float16, but the small product is
    lost: a float16 zero keeps E up. With C = code 2 the result tells that C's exponent is -14."""
    form = "m16n8k16.f16.f16.f16.f16"
    na, nb, nc, *_ = shape_of(form)
    codes = np.float16([2.0**-12, 2.0**-13, 2.0**-24]).view(np.uint16).astype(np.uint32)
    first = np.arange(32) % 4 == 0  # lanes that hold k = 0 and 1
    a, b = np.zeros((1, 32, na), np.uint32), np.zeros((1, 32, nb), np.uint32)
    a[0, first, :2] = codes[0] | codes[2] << 16
    b[0, first, 0] = codes[1] | codes[2] << 16
    cases = {
        f"C = code {code}": (a, b, np.full((1, 32, nc), code * 0x10001, np.uint32))
        for code in (0, 1, 2, 3, 4, 0x3FF, 0x400, 0x401, 0x8000, 0x8001, 0x8002)
    }
    card = compare_tiles(devices, form, cases).reshape(len(cases), -1)
    assert set(card[0]) == {0}
    assert set(card[2]) == {0x00020002}
