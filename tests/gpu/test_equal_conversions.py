"""cvt between every two types on the card and on the emulated device."""

import numpy as np
import pytest
from equality import Family, Ins, check
from equality_inputs import RANDOM, dtype_of, floats, integers, packed, pairs, random_codes

pytestmark = pytest.mark.gpu

MODES = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")


def width(kind):
    """Bytes of a register that holds it."""
    return {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}.get(kind) or max(2, int(kind[1:]) // 8)


def grouped(conversions):
    """(result dtype, instructions) by the width of the result."""
    groups = {}
    for target, name in conversions:
        groups.setdefault(np.dtype(f"u{width(target)}"), []).append(name)
    return [(kind, names) for kind, names in groups.items() if names]


def inputs_of(source):
    if source in FLOATS:
        if width(source) == 2:
            return np.arange(65536, dtype=np.uint32).astype(np.uint16)
        ranges = [integer_neighbours(source)]
        return np.concatenate([floats(source, RANDOM, "cvt"), *ranges])
    return integers(f"u{width(source)}", RANDOM, "cvt")


def integer_neighbours(form):
    """Floats at and next to the ends of integer types, halves, and numbers around them."""
    kind = {"f32": np.float32, "f64": np.float64}[form]
    ends = [2.0**w for w in (7, 8, 15, 16, 23, 24, 31, 32, 52, 53, 63, 64)]
    base = np.array([e + d for e in ends for d in (-1.5, -1, -0.5, 0, 0.5, 1)], kind)
    halves = (np.arange(-40, 40) / 4).astype(kind)
    codes = np.concatenate([base, -base, halves]).view(dtype_of(form))
    steps = np.arange(-3, 4).astype(codes.dtype)
    return (codes[:, None] + steps).ravel()


def float_to_float(source, target):
    """The forms of a pair: rounding where it narrows, integral rounding where it stays."""
    order = {"f16": 0, "bf16": 0, "f32": 1, "f64": 2}
    ftz = ("", ".ftz") if "f32" in (source, target) and "bf16" not in (source, target) else ("",)
    sat = ("", ".sat") if "bf16" not in (source, target) else ("",)
    ends = [f + s for f in ftz for s in sat]
    if source == target:
        if source == "bf16":
            return [f".{i}" for i in INTEGRAL]
        return [f".{i}{e}" for i in INTEGRAL for e in ends] + [".sat"]
    if order[target] > order[source]:
        return ends
    modes = ("rn",) if (source, target) == ("f64", "bf16") else MODES
    forms = [f".{m}{e}" for m in modes for e in ends]
    if source == "f32":
        forms += [f".{m}{r}" for m in ("rn", "rz") for r in (".relu", ".satfinite",
                                                             ".relu.satfinite")]  # fmt: skip
    return forms


@pytest.mark.parametrize("source", FLOATS)
def test_float_to_float(devices, source):
    found = [(t, f"cvt{f}.{t}.{source}") for t in FLOATS for f in float_to_float(source, t)]
    for kind, names in grouped(found):
        inputs = [inputs_of(source)]
        check(devices, Family(f"cvt {source} to floats of {kind}", names, inputs, kind))


@pytest.mark.parametrize("source", FLOATS)
def test_float_to_integer(devices, source):
    ftz = ("", ".ftz") if source == "f32" else ("",)
    bf16 = source == "bf16"
    found = [(t, f"cvt.{i}{f}{s}.{t}.{source}") for t in INTEGERS[2 * bf16:] for i in INTEGRAL
             for f in ftz for s in (("",) if bf16 else ("", ".sat"))]  # fmt: skip
    for kind, names in grouped(found):
        inputs = [inputs_of(source)]
        check(devices, Family(f"cvt {source} to integers of {kind}", names, inputs, kind))


@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_float(devices, source):
    targets = [t for t in FLOATS if t != "bf16" or source not in ("u8", "s8")]
    found = [(t, f"cvt.{m}{s}.{t}.{source}") for t in targets for m in MODES
             for s in (("", ".sat") if t != "bf16" else ("",))]  # fmt: skip
    for kind, names in grouped(found):
        inputs = [inputs_of(source)]
        check(devices, Family(f"cvt {source} to floats of {kind}", names, inputs, kind))


def holds(target, source):
    """Every integer of ``source`` is one of ``target``: there is nothing to saturate."""
    own, other = (np.iinfo(f"{'ui'[k[0] == 's']}{int(k[1:]) // 8}") for k in (target, source))
    return own.min <= other.min and other.max <= own.max


@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer(devices, source):
    found = [(t, f"cvt.{t}.{source}") for t in INTEGERS]
    found += [(t, f"cvt.sat.{t}.{source}") for t in INTEGERS if not holds(t, source)]
    for kind, names in grouped(found):
        inputs = [inputs_of(source)]
        check(devices, Family(f"cvt {source} to integers of {kind}", names, inputs, kind))


def test_tf32(devices):
    names = ["cvt.rna.tf32.f32", "cvt.rna.satfinite.tf32.f32"]
    names += [f"cvt.{m}{r}.tf32.f32" for m in ("rn", "rz") for r in ("", ".relu")]
    check(devices, Family("cvt f32 to tf32", names, [floats("f32", 4 * RANDOM, "tf")], np.uint32))


def test_pairs_of_floats(devices):
    names = [f"cvt.{m}{r}{s}.{t}.f32" for t in ("f16x2", "bf16x2") for m in ("rn", "rz")
             for r in ("", ".relu") for s in ("", ".satfinite")]  # fmt: skip
    inputs = pairs("f32", RANDOM, "cvt x2")
    check(devices, Family("cvt f32 pairs to half pairs", names, inputs, np.uint32))
    names = [f"cvt.rn.satfinite{r}.{t}.f32" for t in ("e4m3x2", "e5m2x2") for r in ("", ".relu")]
    near = [small_floats(seed) for seed in (1, 2)]
    both = [np.concatenate(column) for column in zip(inputs, near, strict=True)]
    check(devices, Family("cvt f32 pairs to fp8 pairs", names, both, np.uint16))


def small_floats(seed):
    """float32 in the range of fp8, many of them ties."""
    rng = np.random.Generator(np.random.PCG64(seed))
    exponents = rng.integers(127 - 20, 127 + 18, RANDOM) << 23
    fraction = rng.integers(0, 64, RANDOM) << 17
    fraction += rng.integers(-1, 2, RANDOM) * (rng.integers(0, 2, RANDOM))
    sign = rng.integers(0, 2, RANDOM) << 31
    return ((exponents + fraction) & 0x7FFFFFFF | sign).astype(np.uint32)


def test_fp8(devices):
    """Every half to fp8 and every fp8 to half."""
    every = np.concatenate([np.arange(65536, dtype=np.uint32).astype(np.uint16),
                            random_codes(np.uint16, 30_000, "fp8")])  # fmt: skip
    names = [f"cvt.rn.satfinite{r}.{t}.f16x2" for t in ("e4m3x2", "e5m2x2") for r in ("", ".relu")]
    check(devices, Family("cvt half pairs to fp8 pairs", names, packed(every), np.uint16))
    codes = [np.arange(65536, dtype=np.uint32).astype(np.uint16)]
    names = [f"cvt.rn{r}.f16x2.{t}" for t in ("e4m3x2", "e5m2x2") for r in ("", ".relu")]
    check(devices, Family("cvt fp8 pairs to half pairs", names, codes, np.uint32))


def test_packed_integers(devices):
    rng = np.random.Generator(np.random.PCG64(5))
    three = [rng.permutation(integers(np.uint32, RANDOM, i)) for i in range(3)]
    two = [f"cvt.pack.sat.{t}.s32" for t in ("u16", "s16")]
    listed = [Ins(n, f"{n} %0, %1, %2;") for n in two]
    listed += [Ins(n, f"{n} %0, %1, %2, %3;")
               for n in (f"cvt.pack.sat.{t}.s32.b32" for t in ("u8", "s8"))]  # fmt: skip
    check(devices, Family("cvt.pack", listed, three, np.uint32))
